"""Models as ranks cut and store them, and what may be wrong with one rank's word of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import Generation, Rank
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""(offset, shape)."""


@dataclass(frozen=True)
class Mesh:
    """Ranks in rows of a second axis, which is inner."""

    outer: int
    inner: int

    @property
    def size(self) -> int:
        return self.outer * self.inner

    def at(self, rank: int) -> tuple[int, int]:
        return rank // self.inner, rank % self.inner


def share(items: int, count: int, number: int) -> tuple[int, int]:
    """(begin, size) of the ceiling's share; the last ones may have less, or nothing."""
    most = -(-items // count)
    begin = min(items, number * most)
    return begin, min(items, begin + most) - begin


def boxes_along_one(mesh: Mesh, shape: tuple[int, int]) -> list[Box]:
    """FSDP."""
    rows = [share(shape[0], mesh.size, rank) for rank in range(mesh.size)]
    return [((begin, 0), (size, shape[1])) for begin, size in rows]


def boxes_along_both(mesh: Mesh, shape: tuple[int, int]) -> list[Box]:
    """FSDP beside tensor parallelism."""
    out = []
    for rank in range(mesh.size):
        place = mesh.at(rank)
        rows, columns = share(shape[0], mesh.outer, place[0]), share(shape[1], mesh.inner, place[1])
        out.append(((rows[0], columns[0]), (rows[1], columns[1])))
    return out


def boxes_in_copies(mesh: Mesh, shape: tuple[int, int]) -> list[Box]:
    """HSDP: the inner axis cuts, the outer one repeats."""
    rows = [share(shape[0], mesh.inner, mesh.at(rank)[1]) for rank in range(mesh.size)]
    return [((begin, 0), (size, shape[1])) for begin, size in rows]


def boxes_that_cross(mesh: Mesh, shape: tuple[int, int]) -> list[Box]:
    """Each reaches a row into the next."""
    out = []
    for rank in range(mesh.size):
        begin, size = share(shape[0], mesh.size, rank)
        out.append(((begin, 0), (min(shape[0], begin + size + 1) - begin, shape[1])))
    return out


CUTS: Sequence[Callable[[Mesh, tuple[int, int]], list[Box]]] = (
    boxes_along_one, boxes_along_one, boxes_along_both, boxes_in_copies, boxes_in_copies,
    boxes_that_cross,
)  # fmt: skip
MESHES = (Mesh(1, 2), Mesh(2, 2), Mesh(1, 4), Mesh(2, 3), Mesh(4, 2))
SHAPES = ((8, 4), (12, 2), (6, 3), (5, 1), (24, 4), (2, 2))
DTYPES = ("<f4", "|u1", "bfloat16")
BYTES = {"<f4": 4, "|u1": 1, "bfloat16": 2}


@dataclass(frozen=True)
class Kind:
    """What tensors of a model have in common."""

    meaning: Meaning
    shape: tuple[int, ...]
    dtype: str
    boxes: Sequence[Box]
    """Of each rank."""
    halves: bool
    """A rank declares its box as two."""


@st.composite
def kinds(draw: st.DrawFn, mesh: Mesh) -> Kind:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    what = draw(st.sampled_from(["shard", "shard", "shard", "replica", "own", "scalar"]))
    if what == "shard":
        boxes = draw(st.sampled_from(CUTS))(mesh, shape)
        halves = draw(st.integers(0, 7)) == 0
        return Kind(Meaning.SHARD, shape, dtype, boxes, halves)
    whole: tuple[int, ...] = () if what == "scalar" else shape
    meaning = Meaning.OWN if what == "own" else Meaning.REPLICATED
    return Kind(meaning, whole, dtype, [((0,) * len(whole), whole)] * mesh.size, halves=False)


@st.composite
def tensors(draw: st.DrawFn, kind: Kind, name: str, at: list[int]) -> list[list[TensorEntry]]:
    """One tensor as each rank declares it. at: where each rank's payload has room; moved on."""
    home = draw(st.sampled_from([None, None, None, Generation(2, 7)]))
    printed = draw(st.sampled_from([True, True, False])) or kind.meaning is not Meaning.SHARD
    ways = ["each"] if kind.meaning is Meaning.OWN else ["each", "each", "one", "one", "shares"]
    stored, who = draw(st.sampled_from(ways)), draw(st.integers(0, 7))
    rows = []
    for rank, box in enumerate(kind.boxes):
        alike = [other for other, one in enumerate(kind.boxes) if one == box]
        size = BYTES[kind.dtype] * prod(box[1])
        start, length = 0, size
        if stored == "one" and alike[who % len(alike)] != rank:
            length = 0
        if stored == "shares":
            start, length = share(size, len(alike), alike.index(rank))
        pieces: tuple[Piece, ...] = ()
        if length:
            piece = Piece(start, at[rank], length)
            pieces = (piece if home is None else piece.at(home),)
            at[rank] += length
        fingerprint = (alike[0] + 1).to_bytes(16, "big") if printed else b""
        entry = TensorEntry(name, kind.meaning, kind.dtype, kind.shape, *box, pieces, fingerprint)
        rows.append(in_halves(entry) if kind.halves else [entry])
    return rows


def in_halves(entry: TensorEntry) -> list[TensorEntry]:
    """The box as two, where its rank stores all of it."""
    upper = entry.shape[0] // 2
    if not upper or not entry.pieces or entry.pieces[0].start:
        return [entry]
    (piece,) = entry.pieces
    row = piece.length // entry.shape[0]
    second = replace(
        piece, payload_offset=piece.payload_offset + upper * row, length=piece.length - upper * row
    )
    return [
        replace(
            entry, shape=(upper, *entry.shape[1:]), pieces=(replace(piece, length=upper * row),)
        ),
        replace(
            entry,
            offset=(entry.offset[0] + upper, *entry.offset[1:]),
            shape=(entry.shape[0] - upper, *entry.shape[1:]),
            pieces=(second,),
        ),
    ]


def _with_piece(
    change: Callable[[Piece], tuple[Piece, ...]],
) -> Callable[[TensorEntry], TensorEntry]:
    def damaged(entry: TensorEntry) -> TensorEntry:
        return replace(entry, pieces=tuple(n for piece in entry.pieces for n in change(piece)))

    return damaged


def _halved(piece: Piece) -> tuple[Piece, ...]:
    half = piece.length // 2
    if not half:
        return (piece,)
    rest = replace(
        piece, start=piece.start + half, payload_offset=piece.payload_offset + 4096,
        length=piece.length - half,
    )  # fmt: skip
    return replace(piece, length=half), rest


DAMAGES: dict[str, Callable[[TensorEntry], TensorEntry]] = {
    "no pieces": _with_piece(lambda piece: ()),
    "a short piece": _with_piece(lambda piece: (replace(piece, length=piece.length - 1),)),
    "a long piece": _with_piece(lambda piece: (replace(piece, length=piece.length + 1),)),
    "a late piece": _with_piece(lambda piece: (replace(piece, start=piece.start + 1),)),
    "two pieces": _with_piece(_halved),
    "two that overlap": _with_piece(lambda piece: (piece, piece)),
    "another place": _with_piece(
        lambda piece: (replace(piece, payload_offset=piece.payload_offset + 64),)
    ),
    "another home": _with_piece(
        lambda p: (Piece(p.start, p.payload_offset, p.length).at(Generation(1, 1)),)
    ),
    "far away": _with_piece(lambda piece: (replace(piece, payload_offset=1 << 44),)),
    "no fingerprint": lambda entry: replace(entry, fingerprint=b""),
    "another fingerprint": lambda entry: replace(entry, fingerprint=b"?" * 16),
    "half a fingerprint": lambda entry: replace(entry, fingerprint=b"?" * 8),
    "another dtype": lambda entry: replace(entry, dtype="<f8"),
    "no dtype": lambda entry: replace(entry, dtype="float9000"),
    "another meaning": lambda entry: replace(entry, meaning=Meaning.OWN),
    "a shard": lambda entry: replace(entry, meaning=Meaning.SHARD),
    "another offset": lambda entry: replace(entry, offset=tuple(n + 1 for n in entry.offset)),
    "below zero": lambda entry: replace(entry, offset=tuple(n - 9 for n in entry.offset)),
    "a smaller box": lambda entry: replace(entry, shape=tuple(n // 2 for n in entry.shape)),
    "a larger box": lambda entry: replace(entry, shape=tuple(n + 1 for n in entry.shape)),
    "an axis more": lambda entry: replace(entry, shape=(*entry.shape, 1)),
    "a larger tensor": lambda entry: replace(
        entry, global_shape=tuple(n + 1 for n in entry.global_shape)
    ),
    "no end": lambda entry: replace(
        entry, global_shape=tuple((1 << 63) - 1 for _ in entry.global_shape)
    ),
    "another name": lambda entry: replace(entry, name="zz"),
}


@st.composite
def models(draw: st.DrawFn) -> list[RankTable]:
    """All ranks' tables, damaged ones among them. Most tensors are of a kind with others."""
    mesh = draw(st.sampled_from(MESHES))
    at = [4096 + draw(st.sampled_from([0, 0, 0, 64])) for _ in range(mesh.size)]
    common = [draw(kinds(mesh)) for _ in range(draw(st.integers(1, 2)))]
    count = draw(st.integers(1, 7))
    rows = [draw(tensors(draw(st.sampled_from(common)), f"t{n}", at)) for n in range(count)]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        number, rank = draw(st.integers(0, count - 1)), draw(st.integers(0, mesh.size - 1))
        *others, last = rows[number][rank]
        rows[number][rank] = [*others, DAMAGES[draw(st.sampled_from(sorted(DAMAGES)))](last)]
    has_own = draw(st.sampled_from([False, False, True]))
    absent = draw(st.sampled_from([None] * 30 + [*range(mesh.size)]))
    tables = []
    for rank in range(mesh.size):
        left_out = draw(st.integers(0, count - 1)) if rank == absent else None
        kept = [row[rank] for number, row in enumerate(rows) if number != left_out]
        entries = [entry for each in kept for entry in each]
        if has_own:
            place = TensorEntry(
                f"t{rank}r", Meaning.OWN, "|u1", (1,), (0,), (1,), (Piece(0, 0, 1),)
            )
            entries = sorted([*entries, place], key=lambda entry: entry.name)
        if draw(st.integers(0, 40)) == 0:
            entries += [replace(entry, name="zzz") for entry in entries[-1:]]
        tables.append(RankTable(Rank(rank), mesh.size, tuple(entries)))
    return tables
