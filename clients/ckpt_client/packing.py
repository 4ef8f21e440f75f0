"""Where does each byte that a rank stages lie in its half of the arena, and how does it get there?

    | tree document | own leaves, shards | share of copies |0000| others' shares | declaration |
    |<--------------------- payload ------------------------>|    |<-- witness --->|             |
    0                                            payload_bytes                         half_bytes

The payload is what is stored. The zeros are the padding of its last stripe, which is encoded in
place. A copy is what several ranks hold: a replica, or a box with holders. The witness is the bytes
of copies that other ranks store, so that the stager can fingerprint this rank's whole copy; the
declaration tells the stager where everything lies. Items begin on 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import CODE_COLUMNS_MAX, PAGE_BYTES, PAYLOAD_BYTES_MAX
from ckpt.base.units import align_up, format_bytes
from ckpt.format.messages import ReplicaPolicy
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry, decode_table, encode_table
from ckpt.format.tree import encode_tree
from ckpt.plan.replicas import leaf_parts, share_replicas
from ckpt_client.state import AnyArray, FlatState, Leaf

ITEM_ALIGN: Final = 64
TAIL_BYTES: Final = CODE_COLUMNS_MAX * PAGE_BYTES
"""The last stripe's padding stays below k pages."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, start + length) of a leaf's C-order bytes lie at `offset` of the half."""

    leaf: int
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Packing:
    """The whole plan of one save. Equal states give equal plans."""

    leaves: tuple[Leaf, ...]
    document: bytes
    """The tree document; it lies at offset 0."""
    spans: tuple[Span, ...]
    """Ascending by offset; those below `payload_bytes` are stored, the others are witness."""
    payload_bytes: int
    declaration: bytes
    declaration_offset: int

    @property
    def half_bytes(self) -> int:
        return self.declaration_offset + len(self.declaration)


class Witness(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [start, start + length) of an entry lie at `offset` of the half,
    outside the payload.
    """

    entry: int
    start: int
    offset: int
    length: int


class _Declaration(msgspec.Struct, frozen=True, array_like=True):
    table: bytes
    witnesses: list[Witness]
    copies: list[int]


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the trainer tells its stager about a half: the table without fingerprints,
    the witness, and which entries are copies.
    """

    table: RankTable
    witnesses: tuple[Witness, ...]
    copies: frozenset[int]
    """Entries that other ranks hold too: each is fingerprinted whole."""


_declaration_decoder = msgspec.msgpack.Decoder(_Declaration)


@dataclass(frozen=True, slots=True)
class _Laid:
    """What a packing has besides the state's own bytes."""

    spans: tuple[Span, ...]
    payload_bytes: int
    declaration: bytes
    declaration_offset: int


class Planner:
    """I plan saves, and remember the last layout: a state of the same names, types and shapes, as
    every step of a training has it, is not laid out and declared anew."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], _Laid] | None = None

    def plan(
        self,
        state: FlatState,
        rank: int,
        world_size: int,
        replicas: ReplicaPolicy = ReplicaPolicy.ABORT,
    ) -> Packing:
        """Lay the state out for one rank.

        Raises Refused when it is too large for a payload, or when a box's holders leave this rank
        out. With ReplicaPolicy.KEEP every rank stores its whole replicas: a copy that differs must
        be there to be kept, and which one differs is known only afterwards.
        """
        document = encode_tree(state.root)
        # All that a layout follows from: two states that agree in it have the same one.
        shapes = tuple(
            (one.name, one.meaning, one.dtype, one.array.shape, one.global_shape, one.offset,
             one.holders)
            for one in state.leaves
        )  # fmt: skip
        asked = (len(document), rank, world_size, replicas, shapes)
        if self._last is None or self._last[0] != asked:
            laid = _lay_out(state.leaves, len(document), rank, world_size, replicas)
            self._last = asked, laid
        _, laid = self._last
        return Packing(
            leaves=state.leaves,
            document=document,
            spans=laid.spans,
            payload_bytes=laid.payload_bytes,
            declaration=laid.declaration,
            declaration_offset=laid.declaration_offset,
        )


def plan_packing(
    state: FlatState, rank: int, world_size: int, replicas: ReplicaPolicy = ReplicaPolicy.ABORT
) -> Packing:
    """One save's plan; see `Planner.plan`."""
    return Planner().plan(state, rank, world_size, replicas)


def _lay_out(
    leaves: Sequence[Leaf],
    document_bytes: int,
    rank: int,
    world_size: int,
    replicas: ReplicaPolicy,
) -> _Laid:
    stored_parts, witness_parts = _share_out(leaves, rank, world_size, replicas)
    stored = _place(stored_parts, document_bytes)
    payload_bytes = max(document_bytes, *(one.offset + one.length for one in stored), 0)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise Refused(
            f"rank {rank} would store {format_bytes(payload_bytes)}, "
            f"{format_bytes(PAYLOAD_BYTES_MAX)} are allowed"
        )
    witness = _place(witness_parts, payload_bytes + TAIL_BYTES)
    end = max((one.offset + one.length for one in witness), default=payload_bytes + TAIL_BYTES)
    return _Laid(
        spans=(*stored, *witness),
        payload_bytes=payload_bytes,
        declaration=_declare(leaves, stored, witness, rank, world_size),
        declaration_offset=align_up(end, ITEM_ALIGN),
    )


def copy_into(packing: Packing, half: memoryview) -> None:
    """Copy everything into a writable half of at least `half_bytes`:
    the whole of a warm save's stall.
    """
    assert len(half) >= packing.half_bytes
    target = np.frombuffer(half, np.uint8)
    half[: len(packing.document)] = packing.document
    target[packing.payload_bytes : packing.payload_bytes + TAIL_BYTES] = 0
    for span in packing.spans:
        array = packing.leaves[span.leaf].array
        copy_bytes(array, span.start, target[span.offset : span.offset + span.length])
    half[packing.declaration_offset : packing.half_bytes] = packing.declaration


def read_declaration(document: memoryview) -> Declaration:
    """What `plan_packing` wrote; raises Corrupt."""
    try:
        raw = _declaration_decoder.decode(document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the declaration of a staged save does not parse: {error}") from None
    return Declaration(decode_table(raw.table), tuple(raw.witnesses), frozenset(raw.copies))


def copy_bytes(
    array: AnyArray, start: int, target: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> None:
    """Bytes [start, start + len(target)) of the array's elements in C order into `target`.

    Without a temporary of more than one element: strided arrays are copied by numpy's own loops.
    """
    if not target.size:
        return
    if array.flags.c_contiguous:
        target[:] = array.reshape(-1).view(np.uint8)[start : start + target.size]
    elif start == 0 and target.size == array.nbytes:
        np.copyto(target.view(array.dtype).reshape(array.shape), array, casting="no")
    else:
        _copy_part(array, start, target)


def _copy_part(
    array: AnyArray, start: int, target: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> None:
    """Row by row along the first axis, so that all but the two cut rows are copied whole."""
    if array.ndim == 0:
        target[:] = np.frombuffer(array.tobytes(), np.uint8)[start : start + target.size]
        return
    row_bytes = array.nbytes // array.shape[0]
    done = 0
    while done < target.size:
        row, skipped = divmod(start + done, row_bytes)
        if skipped == 0 and target.size - done >= row_bytes:
            rows = (target.size - done) // row_bytes
            copy_bytes(array[row : row + rows], 0, target[done : done + rows * row_bytes])
            done += rows * row_bytes
        else:
            count = min(row_bytes - skipped, target.size - done)
            copy_bytes(array[row, ...], skipped, target[done : done + count])
            done += count


Part = tuple[int, int, int]
"""(leaf, start, end): bytes [start, end) of a leaf."""


def _share_out(
    leaves: Sequence[Leaf], rank: int, world_size: int, replicas: ReplicaPolicy
) -> tuple[list[Part], list[Part]]:
    """What this rank stores, its own first, and what others store of the copies that it holds.

    Copies with the same holders are shared out together, each group over its holders.
    """
    stored: list[Part] = []
    groups: dict[Sequence[int], list[int]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.meaning is Meaning.REPLICATED and replicas is not ReplicaPolicy.KEEP:
            groups.setdefault(range(world_size), []).append(number)
        elif leaf.holders:
            _check_holders(leaf, rank, world_size)
            groups.setdefault(leaf.holders, []).append(number)
        else:
            stored.append((number, 0, leaf.array.nbytes))
    witness: list[Part] = []
    for holders, numbers in groups.items():
        sizes = [leaves[number].array.nbytes for number in numbers]
        cuts = share_replicas(sizes, len(holders))
        place = holders.index(rank)
        first, last = cuts[place], cuts[place + 1]
        stored += _parts(numbers, sizes, first, last)
        witness += _parts(numbers, sizes, 0, first) + _parts(numbers, sizes, last, cuts[-1])
    return stored, witness


def _check_holders(leaf: Leaf, rank: int, world_size: int) -> None:
    if rank not in leaf.holders or leaf.holders[-1] >= world_size:
        raise Refused(
            f"{leaf.name}: holders {leaf.holders} do not fit rank {rank} of {world_size}",
            hint="holders name every rank that declares the box, this one too",
        )


def _parts(numbers: Sequence[int], sizes: Sequence[int], first: int, last: int) -> list[Part]:
    """Parts under the concatenated bytes [first, last) of a group of copies."""
    return [(numbers[n], start, end) for n, start, end in leaf_parts(sizes, first, last)]


def _place(parts: Iterable[Part], begin: int) -> list[Span]:
    """Parts one behind the other from `begin` on, each aligned; empty ones need no place."""
    spans: list[Span] = []
    for leaf, start, end in parts:
        if start < end:
            offset = align_up(begin, ITEM_ALIGN)
            spans.append(Span(leaf, start, end - start, offset))
            begin = offset + end - start
    return spans


def _declare(
    leaves: Sequence[Leaf],
    stored: Iterable[Span],
    witness: Iterable[Span],
    rank: int,
    world_size: int,
) -> bytes:
    pieces: list[list[Piece]] = [[] for _ in leaves]
    for span in stored:
        pieces[span.leaf].append(Piece(span.start, span.offset, span.length))
    entries = tuple(
        TensorEntry(
            name=leaf.name,
            meaning=leaf.meaning,
            dtype=leaf.dtype,
            global_shape=leaf.global_shape,
            offset=leaf.offset,
            shape=leaf.array.shape,
            pieces=tuple(pieces[number]),
        )
        for number, leaf in enumerate(leaves)
    )
    table = encode_table(RankTable(Rank(rank), world_size, entries))
    outside = [Witness(one.leaf, one.start, one.offset, one.length) for one in witness]
    copies = [
        number
        for number, leaf in enumerate(leaves)
        if leaf.meaning is Meaning.REPLICATED or leaf.holders
    ]
    return msgspec.msgpack.encode(_Declaration(table, outside, copies))
