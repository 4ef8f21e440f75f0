"""What lies on a target, page by page, for the coordinator that it has registered with: with a
proof for each column for one of an earlier version, else with one for each page of thousands. And
which columns of those that it names lie here, proved again.

    first page or columns asked for --nothing is on the disk's way, or nothing more, or
                                      SEAL_WAIT_US has passed--> answered

What an earlier coordinator, a stager of an attempt that has ended, or a worker whose lease has
ended had stored while this one asks would be in no answer, and nobody would tell this one of it:
the first page waits for that, and so does who asks for that column.

The names are put in order with the first page, and the later ones go on in that: of 20,000 files it
costs as much as a page does. What is stored meanwhile is in none of them, as if it came after the
last; what has gone is in none either.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ckpt.base.ids import CheckpointId, ColumnId, RunName
from ckpt.base.limits import SEAL_WAIT_US
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    HELD_COLUMN,
    HOLDINGS_BYTES,
    Attest,
    Attested,
    ColumnsListed,
    DocumentSummary,
    HeldGeneration,
    HoldingsListed,
    HoldingsPage,
    ListColumns,
    ListHoldings,
    encode_holdings,
)
from ckpt.protocol.events import Session
from ckpt.protocol.proofs import holdings_mac
from ckpt.protocol.target.columns import Columns
from ckpt.protocol.target.core import (
    ATTEST_COLUMNS_MAX,
    META_BUDGET_BYTES,
    PROOF_BYTES_MAX,
    Core,
    DocumentKey,
    Entry,
    SealedColumn,
)

ORDERS_MAX: Final = 8
"""Lists that are kept between their pages; a later page of another one puts the names in order."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A first page that was asked for, or columns."""

    session: Session
    request: int
    message: ListColumns | ListHoldings | Attest
    asked_us: int
    columns: frozenset[ColumnId]
    """That were being sealed then."""
    documents: frozenset[DocumentKey]
    """That were being stored then."""


@dataclass(frozen=True, slots=True)
class NameOrder:
    """All that was here at a first page, ascending."""

    names: list[str]
    keys: list[ColumnId | DocumentKey]


class Listing:
    """I list."""

    def __init__(self, core: Core, columns: Columns) -> None:
        self._core = core
        self._columns = columns
        self._waiting: list[_Waiting] = []
        #: For sessions that have not heard the last page, latest last; at most ORDERS_MAX.
        self._orders: dict[Session, NameOrder] = {}

    def attest(self, session: Session, request: int, message: Attest) -> None:
        """Prove again, as this process, which of these columns are here."""
        if len(message.columns) > ATTEST_COLUMNS_MAX:
            text = f"at most {ATTEST_COLUMNS_MAX} columns are attested at once"
            self._core.fail(session, request, "refused", text)
            return
        sealing = self._columns.sealing_now().intersection(message.columns)
        if sealing:
            now = self._core.now_us
            self._waiting.append(_Waiting(session, request, message, now, sealing, frozenset()))
        else:
            self._attest(session, request, message)

    def _attest(self, session: Session, request: int, message: Attest) -> None:
        core = self._core
        known = [one for id in message.columns if (one := core.columns.get(id)) is not None]
        damaged = tuple(one.header.column for one in known if core.is_rotten(one))
        core.send(session, request, Attested(tuple(map(core.proof, known)), damaged))

    def asked(self, session: Session, request: int, message: ListColumns | ListHoldings) -> None:
        """For one page."""
        columns, documents = self._columns.sealing_now(), frozenset(self._core.replacing)
        if message.cursor or not (columns or documents):
            self._answer(session, request, message)
            return
        now = self._core.now_us
        self._waiting.append(_Waiting(session, request, message, now, columns, documents))

    def session_closed(self, session: Session) -> None:
        """Nobody waits there any more."""
        self._waiting = [one for one in self._waiting if one.session != session]
        self._orders.pop(session, None)

    def look(self) -> None:
        """A disk operation has ended, or time has passed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if self._still_waits(one):
                self._waiting.append(one)
            else:
                self._answer(one.session, one.request, one.message)

    def _still_waits(self, one: _Waiting) -> bool:
        ends = self._core.now_us - one.asked_us >= SEAL_WAIT_US
        columns = one.columns & self._columns.sealing_now()
        documents = one.documents & self._core.replacing.keys()
        return not ends and bool(columns or documents)

    def _answer(
        self, session: Session, request: int, message: ListColumns | ListHoldings | Attest
    ) -> None:
        match message:
            case ListColumns():
                self._answer_columns(session, request, message)
            case ListHoldings():
                self._answer_holdings(session, request, message)
            case Attest():
                self._attest(session, request, message)

    def _answer_columns(self, session: Session, request: int, message: ListColumns) -> None:
        """Columns in name order, then documents; as many as one frame's meta holds."""
        order = self._order(session, begins=not message.cursor)
        start = bisect_right(order.names, message.cursor)
        columns, documents, budget, count = [], [], META_BUDGET_BYTES, 0
        for key in islice(order.keys, start, start + max(1, message.count_max)):
            entry = self._entry(key)
            if entry is not None:
                budget -= PROOF_BYTES_MAX + len(_checkpoint_of(entry).run.encode())
            if budget < 0:
                break
            count += 1
            if isinstance(entry, SealedColumn):
                columns.append(self._core.proof(entry))
            elif entry is not None:
                header = entry.header
                summary = DocumentSummary(
                    entry.kind, header.checkpoint, header.total_bytes, header.digest
                )
                documents.append(summary)
        cursor = self._cursor(session, order, start + count)
        self._core.send(session, request, ColumnsListed(tuple(columns), tuple(documents), cursor))

    def _answer_holdings(self, session: Session, request: int, message: ListHoldings) -> None:
        order = self._order(session, begins=not message.cursor)
        start = bisect_right(order.names, message.cursor)
        held, count = _Held(), 0
        for key in islice(order.keys, start, None):
            if held.size >= HOLDINGS_BYTES:
                break
            count += 1
            entry = self._entry(key)
            if entry is not None:
                held.add(entry)
        page, core = encode_holdings(held.page()), self._core
        mac = holdings_mac(core.key, core.identity.cluster, message.cursor, page)
        cursor = self._cursor(session, order, start + count)
        core.send(session, request, HoldingsListed(core.identity.boot, cursor, mac), page)

    def _cursor(self, session: Session, order: NameOrder, end: int) -> str:
        """After the page that ends there; empty at the end."""
        if end < len(order.names):
            return order.names[end - 1]
        del self._orders[session]
        return ""

    def _order(self, session: Session, *, begins: bool) -> NameOrder:
        """That its pages are in."""
        order = None if begins else self._orders.get(session)
        if order is None:
            self._orders.pop(session, None)
            order = self._orders[session] = in_order(self._core)
            if len(self._orders) > ORDERS_MAX:
                del self._orders[next(iter(self._orders))]
        return order

    def _entry(self, key: ColumnId | DocumentKey) -> Entry | None:
        """What is there now; None: it has gone."""
        if isinstance(key, ColumnId):
            return self._core.columns.get(key)
        return self._core.documents.get(key)


class _Held:
    """I gather one page."""

    def __init__(self) -> None:
        self.size = 0
        """About so long is it by now."""
        self._runs: dict[RunName, int] = {}
        self._generations: list[HeldGeneration] = []
        #: Of the generation that the last file was of, which is not in the list yet.
        self._now: CheckpointId | None = None
        self._columns = bytearray()
        self._documents: list[tuple[DocumentKind, int, bytes]] = []

    def add(self, entry: Entry) -> None:
        """The next file."""
        checkpoint = _checkpoint_of(entry)
        if checkpoint != self._now:
            self._end()
            self._now = checkpoint
        if isinstance(entry, SealedColumn):
            id, digest = entry.header.column, entry.header.manifest_digest
            self._columns += HELD_COLUMN.pack(id.payload.rank, id.column, digest)
        else:
            header = entry.header
            self._documents.append((entry.kind, header.total_bytes, header.digest))
        self.size += HELD_COLUMN.size

    def page(self) -> HoldingsPage:
        """All of it."""
        self._end()
        return HoldingsPage(tuple(self._runs), tuple(self._generations))

    def _end(self) -> None:
        if self._now is None:
            return
        run, step, generation = self._now.run, self._now.step, self._now.generation
        self._generations.append(
            HeldGeneration(
                self._runs.setdefault(run, len(self._runs)), step, generation.term,
                generation.counter, bytes(self._columns), tuple(self._documents),
            )
        )  # fmt: skip
        self.size += HELD_COLUMN.size
        self._now, self._documents = None, []
        self._columns.clear()


def in_order(core: Core) -> NameOrder:
    """All that is here, by name."""
    named: list[tuple[str, ColumnId | DocumentKey]] = []
    named += [(f"c/{one.name}", key) for key, one in core.columns.items()]
    named += [(f"d/{one.name}", key) for key, one in core.documents.items()]
    named.sort(key=lambda pair: pair[0])
    return NameOrder([name for name, _ in named], [key for _, key in named])


def _checkpoint_of(entry: Entry) -> CheckpointId:
    if isinstance(entry, SealedColumn):
        return entry.header.column.payload.checkpoint
    return entry.header.checkpoint
