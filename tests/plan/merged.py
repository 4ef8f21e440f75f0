"""All ranks' tables at once, merged in small slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ckpt.base.limits import INDEX_PAGE_BYTES_MAX
from ckpt.format.array_table import ArrayTable, WholeTensors
from ckpt.format.index.pages import IndexTensor, WireTensor
from ckpt.format.packed_table import Table, table_arrays
from ckpt.format.table import RankTable, encode_sound_table
from ckpt.plan.coverage import TableMerger
from ckpt.plan.tensor_merger import Differing, Overlap, Problem

ENTRIES = 7


@dataclass(frozen=True)
class Merged:
    """The union of all tables."""

    tensors: tuple[IndexTensor, ...]
    overlaps: tuple[Overlap, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


@dataclass
class Heard:
    """I keep every tensor."""

    tensors: list[IndexTensor] = field(default_factory=list)

    def add(self, tensor: IndexTensor) -> None:
        self.tensors.append(tensor)

    def add_wholes(self, wholes: WholeTensors) -> None:
        arrays, count = wholes.table.arrays, wholes.end - wholes.first
        raw = arrays.tensors(wholes.first, wholes.end, count * INDEX_PAGE_BYTES_MAX)
        head = b"\xdd" + count.to_bytes(4, "big")
        for wire in msgspec.msgpack.decode(head + raw, type=list[WireTensor]):
            form = wire.name, wire.meaning, wire.dtype, wire.global_shape
            self.tensors.append(IndexTensor(*form, wire.boxes))


def merge_tables(tables: Sequence[RankTable], differing: Differing = Differing.ABORT) -> Merged:
    """That of a rank alone is merged as arrays as well, where it can be: nothing may differ."""
    merged = merged_slices(tables, differing)
    arrays = table_arrays(encode_sound_table(tables[0])) if len(tables) == 1 else None
    alone = ArrayTable.of(arrays) if arrays is not None else None
    if alone is not None:
        assert merged_slices([alone], differing) == merged
    return merged


def merged_slices(tables: Sequence[Table], differing: Differing) -> Merged:
    heard = Heard()
    merger = TableMerger(tables, differing, heard)
    while not merger.done:
        merger.go_on(ENTRIES)
    return Merged(tuple(heard.tensors), merger.overlaps, merger.problems, merger.warnings)
