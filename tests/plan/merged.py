"""All ranks' tables at once, merged in small slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckpt.format.index.pages import IndexTensor
from ckpt.format.table import RankTable
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


def merge_tables(tables: Sequence[RankTable], differing: Differing = Differing.ABORT) -> Merged:
    tensors: list[IndexTensor] = []
    merger = TableMerger(tables, differing, tensors.append)
    while not merger.done:
        merger.go_on(ENTRIES)
    return Merged(tuple(tensors), merger.overlaps, merger.problems, merger.warnings)
