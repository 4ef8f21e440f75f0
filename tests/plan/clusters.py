"""Clusters and ranks' tables, as the tests of planning need them."""

from __future__ import annotations

from ckpt.base.ids import BootId, Domain, Rank, TargetId
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry
from ckpt.plan.seating import Candidate


def cluster(target_count: int, host_count: int, bytes_free: int = 1 << 50) -> list[Candidate]:
    """Targets dealt over hosts, eight racks, two power feeds; one device for each target."""
    return [
        candidate(index, f"w{host % 8 % 2}/r{host % 8}/h{host}/d{index}", bytes_free=bytes_free)
        for index in range(target_count)
        for host in [index % host_count]
    ]


def candidate(
    index: int,
    domain: str,
    *,
    device: str = "",
    bytes_free: int = 1 << 50,
    load_bytes: int = 0,
    live: bool = True,
) -> Candidate:
    return Candidate(
        TargetId(f"t{index:04}"),
        BootId(index + 1),
        Domain.parse(domain),
        device,
        bytes_free,
        load_bytes,
        live,
    )


def entry(
    name: str,
    meaning: Meaning,
    global_shape: tuple[int, ...],
    offset: tuple[int, ...] | None = None,
    shape: tuple[int, ...] | None = None,
    *,
    dtype: str = "|u1",
    pieces: tuple[Piece, ...] | None = None,
    fingerprint: bytes = b"",
) -> TensorEntry:
    """An entry of one-byte items, its bytes in one piece unless said otherwise."""
    shape = global_shape if shape is None else shape
    offset = (0,) * len(global_shape) if offset is None else offset
    item_count = 1
    for count in shape:
        item_count *= count
    if pieces is None:
        pieces = (Piece(0, 4096, item_count),) if item_count else ()
    return TensorEntry(name, meaning, dtype, global_shape, offset, shape, pieces, fingerprint)


def tables(*ranks: tuple[TensorEntry, ...]) -> list[RankTable]:
    """One table for each rank, entries in name order."""
    return [
        RankTable(Rank(rank), len(ranks), tuple(sorted(entries, key=lambda e: e.name)))
        for rank, entries in enumerate(ranks)
    ]
