"""What of a rank's save did not change since its last committed one, and where does the rest move?

What did not change is not written again: the save refers to the generation whose payload really
holds it, its *home*. References never chain, so a base says of each piece where its bytes lie.

    half    | document | a | b (as before) | c | d (as before) | e |
    sent    | document | a | c | e |            b and d: pieces of their homes' payloads

A home stays as long as anything refers to it, with all its bytes. So one is used only when at least
a quarter of this rank's payload there is still of use: what is kept is at most four times what is
needed, and a few bytes that did not change hold no old generation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from ckpt.base.ids import Generation, Home
from ckpt.base.limits import HOMES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, align_up
from ckpt.format.table import Piece, RankTable, TensorEntry

REFERRED_BYTES_MIN: Final = 64 * KiB
"""Smallest entry of one rank's payload that may be referred to; a smaller one is written again."""
USEFUL_SHARE_MIN: Final = 4
"""A home must hold at least one part in so many of a rank's payload."""
ITEM_ALIGN: Final = 64

Key = tuple[str, tuple[int, ...]]
"""Of an entry in a rank's table: name and box offset."""


@dataclass(frozen=True, slots=True)
class Base:
    """A committed save of one rank: where the bytes of its tensors really lie."""

    entries: Mapping[Key, TensorEntry]
    """Every piece names its home."""
    payloads: Mapping[Home, int]
    """Bytes of this rank's payload in each home."""


class Move(msgspec.Struct, frozen=True, gc=False):
    """Bytes [source, source + length) of the payload go to `destination`, which is not above."""

    source: int
    destination: int
    length: int


@dataclass(frozen=True, slots=True)
class References:
    """A save that refers to homes."""

    homes: tuple[Home, ...]
    """Ascending."""
    table: RankTable
    """To certify: pieces of the smaller payload, and of homes."""
    moves: tuple[Move, ...]
    """Ascending. One after the other, they make the smaller payload of the whole one."""
    payload_bytes: int


def key_of(entry: TensorEntry) -> Key:
    """What finds the same entry in another save."""
    return entry.name, entry.offset


def base_of(table: RankTable, home: Home, payload_bytes: int, payloads: Mapping[Home, int]) -> Base:
    """Of a save that was committed as `home` with this table; `payloads` knows all other homes."""
    entries = {}
    used = {home.generation}
    for entry in table.entries:
        pieces = tuple(p if p.home else p.at(home.generation) for p in entry.pieces)
        entries[key_of(entry)] = replace(entry, pieces=pieces)
        used.update(piece.home for piece in entry.pieces if piece.home is not None)
    sizes = {**payloads, home: payload_bytes}
    return Base(entries, {one: size for one, size in sizes.items() if one.generation in used})


def may_refer(base: Base, entry: TensorEntry, stored: Collection[str]) -> bool:
    """Whether it is worth a look: if its bytes are those of the base, they are not written again.

    stored: names of what is always stored.
    """
    before = base.entries.get(key_of(entry))
    return (
        before is not None
        and bool(before.fingerprint)
        and entry.name not in stored
        and bytes_of(entry) >= REFERRED_BYTES_MIN
        and _extents(before) == _extents(entry)
    )


def bytes_of(entry: TensorEntry) -> int:
    """Bytes of the entry that lie in this rank's payload, or would if they had changed."""
    return sum([piece.length for piece in entry.pieces])


def find_references(
    base: Base, table: RankTable, stored: Collection[str], payload_bytes: int, document_bytes: int
) -> References | None:
    """What a save refers to, whose table has fingerprints where `may_refer` holds and the samples
    are the same; None when it is stored whole. The document stays at 0.
    """
    same = [
        base.entries[key_of(entry)]
        for entry in table.entries
        if may_refer(base, entry, stored)
        and entry.fingerprint == base.entries[key_of(entry)].fingerprint
    ]
    homes = _homes_that_pay(base, same)
    if not homes:
        return None
    paying = {home.generation for home in homes}
    referred = {key_of(entry): entry.pieces for entry in same if _home(entry) in paying}
    room = align_up(document_bytes, PAGE_BYTES)
    stored_pieces = (p for e in table.entries if key_of(e) not in referred for p in e.pieces)
    offsets, end = _packed(stored_pieces, room)
    entries = tuple(
        replace(
            entry,
            pieces=referred.get(key_of(entry))
            or tuple(replace(p, payload_offset=offsets[p.payload_offset]) for p in entry.pieces),
        )
        for entry in table.entries
    )
    assert end <= payload_bytes
    return References(
        homes=homes,
        table=replace(table, entries=entries),
        moves=tuple(_moves(table, offsets)),
        payload_bytes=end,
    )


def _extents(entry: TensorEntry) -> list[tuple[int, int]]:
    return [(piece.start, piece.length) for piece in entry.pieces]


def _home(entry: TensorEntry) -> Generation:
    """Of an entry of a base: it was stored whole once, and is referred to whole."""
    (home,) = {piece.home for piece in entry.pieces}
    assert home is not None
    return home


def _homes_that_pay(base: Base, same: Iterable[TensorEntry]) -> tuple[Home, ...]:
    """Ascending. Of too many, those that save most."""
    useful: dict[Generation, int] = {}
    for entry in same:
        useful[_home(entry)] = useful.get(_home(entry), 0) + bytes_of(entry)
    paying = [
        (useful.get(home.generation, 0), home)
        for home, payload_bytes in base.payloads.items()
        if 0 < payload_bytes <= USEFUL_SHARE_MIN * useful.get(home.generation, 0)
    ]
    return tuple(sorted(home for _, home in sorted(paying)[-HOMES_MAX:]))


def _packed(pieces: Iterable[Piece], room: int) -> tuple[dict[int, int], int]:
    """Where each piece goes, by its offset now, and where the last one ends; their order stays."""
    offsets: dict[int, int] = {}
    end = room
    for piece in sorted(pieces, key=lambda piece: piece.payload_offset):
        offsets[piece.payload_offset] = align_up(end, ITEM_ALIGN)
        end = offsets[piece.payload_offset] + piece.length
        assert offsets[piece.payload_offset] <= piece.payload_offset
    return offsets, end


def _moves(table: RankTable, offsets: Mapping[int, int]) -> Iterator[Move]:
    """Neighbours that go equally far go together, with what lies between them."""
    lengths = {
        piece.payload_offset: piece.length for entry in table.entries for piece in entry.pieces
    }
    open_move: Move | None = None
    for source, destination in sorted(offsets.items()):
        length = lengths[source]
        if open_move is not None and source - destination == (
            open_move.source - open_move.destination
        ):
            whole = source + length - open_move.source
            open_move = replace(open_move, length=whole)
            continue
        if open_move is not None and open_move.source != open_move.destination:
            yield open_move
        open_move = Move(source, destination, length)
    if open_move is not None and open_move.source != open_move.destination:
        yield open_move
