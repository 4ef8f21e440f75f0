"""All ranks' tables become the tensors of a checkpoint's index, in slices of bounded work.

Ranks come in any order and are thousands, so that what they hold is gathered by name first; then
one name after the other is looked at (ckpt.plan.tensor_merger). Tables that describe their tensors
alike, nearly all of a launch's, are gathered as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, Protocol

import numpy as np

from ckpt.format.array_table import ArrayTable, WholeTensors
from ckpt.format.index.pages import IndexTensor
from ckpt.format.packed_table import PackedTable, Table, TableForm
from ckpt.format.table import RankTable
from ckpt.plan.form_tables import FormTables
from ckpt.plan.holdings import Holding, whole_entries
from ckpt.plan.tensor_merger import Differing, Overlap, Problem, TensorMerger

ENTRIES_AT_ONCE: Final = 2048
"""Entries that are merged before anything else is done: 10 to 20 ms."""
GATHERING_COST: Final = 0.1
"""Cost of gathering an entry, relative to merging it."""
WHOLE_COST: Final = 0.05
"""The same of adding one of many that are whole."""


class TensorSink(Protocol):
    """Where merged tensors go."""

    def add(self, tensor: IndexTensor) -> None:
        """The next one."""

    def add_wholes(self, wholes: WholeTensors) -> None:
        """The next ones, without fault."""


class TableMerger:
    """I merge tables a part at a time, so that a coordinator of other jobs has time for these.

    tables, by rank --gathered--> what ranks hold, by name --merged--> tensors, ascending
    """

    def __init__(self, tables: Sequence[Table], differing: Differing, pages: TensorSink) -> None:
        """tables: all members', one for each rank, in any order. pages: hear each tensor that has
        no problem, in the index's order.
        """
        ordered = sorted(tables, key=lambda table: table.rank)
        ranks = tuple(table.rank for table in ordered)
        assert len(set(ranks)) == len(ranks), "one table for each rank"
        self._pages = pages
        self._merger = TensorMerger(ranks, differing, pages.add)
        if len({table.world_size for table in ordered}) > 1:
            self._merger.report("", ranks, "ranks disagree about the world size")
        only = ordered[0] if len(ordered) == 1 else None
        #: Of the only rank, in arrays: its entries are in the index's order.
        self._only = _Lone(only) if isinstance(only, ArrayTable) else None
        alone, self._forms = _by_form(ordered if self._only is None else ())
        #: To be gathered, the last first.
        self._tables = alone[::-1]
        self._holdings: defaultdict[str, list[Holding]] = defaultdict(list)
        #: Where tables of one form have it, and its number in them.
        self._numbers: defaultdict[str, list[tuple[FormTables, int]]] = defaultdict(list)
        #: To be merged, the last first; None while tables are gathered.
        self._names: list[str] | None = None

    def go_on(self, entries: int) -> None:
        """Take so many entries further, and one name or table more."""
        if self._only is not None:
            self._go_on_alone(self._only, entries)
            return
        left = float(entries)
        while self._tables and left > 0:
            table = self._tables.pop()
            for entry in table.entries:
                self._holdings[entry.name].append((table.rank, entry))
            left -= len(table.entries) * GATHERING_COST
        while self._forms and left > 0:
            form = self._forms.pop()
            for number, entry in enumerate(form.form.entries):
                self._numbers[entry.name].append((form, number))
            further = form.further()
            for holding in further:
                self._holdings[holding[1].name].append(holding)
            left -= (len(form.form.entries) + len(further)) * GATHERING_COST
        if self._tables or self._forms:
            return
        if self._names is None:
            self._names = sorted({*self._holdings, *self._numbers}, reverse=True)
        while self._names and left > 0:
            left -= self._merge(self._names.pop())

    def _go_on_alone(self, lone: _Lone, entries: int) -> None:
        left = float(entries)
        while not lone.done and left > 0:
            wholes = lone.wholes(max(1, int(left / WHOLE_COST)))
            if wholes is not None:
                self._pages.add_wholes(wholes)
                left -= (wholes.end - wholes.first) * WHOLE_COST
            else:
                holdings = lone.holdings()
                self._merger.merge(holdings[0][1].name, holdings)
                left -= len(holdings) + 1

    def _merge(self, name: str) -> float:
        """One tensor; what it cost, in entries."""
        holdings, numbers = self._holdings.pop(name, []), self._numbers.pop(name, [])
        if len(numbers) == 1 and not holdings:
            return self._merger.merge_of_form(name, *numbers[0])
        for form, number in numbers:
            holdings += form.holdings(number)
        holdings.sort(key=itemgetter(0))
        if holdings:
            self._merger.merge(name, holdings)
        return len(holdings) + 1

    @property
    def done(self) -> bool:
        if self._only is not None:
            return self._only.done
        return self._names is not None and not self._names

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        return tuple(self._merger.overlaps)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._merger.problems)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(self._merger.warnings)


class _Lone:
    """I go through the table of the only rank, in the index's order."""

    def __init__(self, table: ArrayTable) -> None:
        self._table = table
        self._whole = whole_entries(table)
        #: Entries that are not whole, ascending, then the end.
        self._others = [*np.flatnonzero(~self._whole).tolist(), len(table)][::-1]
        #: The first entry that was not taken.
        self._next = 0

    @property
    def done(self) -> bool:
        return self._next == len(self._table)

    def wholes(self, count: int) -> WholeTensors | None:
        """The next ones, at most so many; None where another one is next."""
        first, self._next = self._next, min(self._next + count, self._others[-1])
        return WholeTensors(self._table, first, self._next) if self._next > first else None

    def holdings(self) -> list[Holding]:
        """Of the next tensor, which is none of these."""
        rank, first = self._table.rank, self._table.entry(self._next)
        found = [(rank, first)]
        self._take_other()
        while not self.done and self._next == self._others[-1]:
            entry = self._table.entry(self._next)
            if entry.name != first.name:
                break
            found.append((rank, entry))
            self._take_other()
        return found

    def _take_other(self) -> None:
        self._others.pop()
        self._next += 1


def _by_form(ordered: Sequence[Table]) -> tuple[list[RankTable], list[FormTables]]:
    """Those that no other is like, and those that are alike."""
    alone: list[RankTable] = []
    forms: defaultdict[TableForm, list[PackedTable]] = defaultdict(list)
    for table in ordered:
        if isinstance(table, PackedTable):
            forms[table.form].append(table)
        else:
            alone.append(table if isinstance(table, RankTable) else table.unpacked())
    alike: list[FormTables] = []
    for tables in forms.values():
        if len(tables) > 1:
            alike.append(FormTables(tables))
        else:
            alone.append(tables[0].unpacked())
    return sorted(alone, key=lambda table: table.rank), alike
