"""From a handed-over save to its table: fingerprints, what it repeats, what it refers to.

    no base    opened at once; the table is made beside the sending
    a base     compared before it is opened: a few pages of each large tensor, and whole ones where
               these are the same ── nothing is ──> ReferencesFound(nothing), then as without a base
                                  └── some are ──> ReferencesFound, TableReady

A base is the run's last save that committed. It is not kept on disk, nor from one store to the
next: the first save of a launch is stored whole.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ckpt.aio.clock import now_us
from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, Home, RunName, Step
from ckpt.format.messages.saving import Repeats
from ckpt.format.table import RankTable, encode_sound_table
from ckpt.plan.references import Base, References, base_of, find_references
from ckpt.protocol.stager.events import ReferencesFound, StagerEvent, TableReady
from ckpt_client.stager.fingerprint import Fingerprinter, Samples
from ckpt_client.stager.history import RUNS_MAX, History
from ckpt_client.stager.jobs import Jobs
from ckpt_client.stager.log import log


@dataclass(frozen=True, slots=True)
class TableOrder:
    """A save whose table is to be made."""

    save: int
    run: RunName
    step: Step
    payload_bytes: int
    document_bytes: int
    warn: bool
    """Of a save that repeats the one before."""
    refer: bool
    """To what did not change; this one, or one after it."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """What later saves may refer to."""

    save: int
    home: Home
    payload_bytes: int
    table: RankTable
    payloads: Mapping[Home, int]
    """Bytes of this rank's payload in each home that the table names."""
    samples: Samples

    def base(self) -> Base:
        """The base, which a worker makes, because that takes milliseconds."""
        return base_of(self.table, self.home, self.payload_bytes, self.payloads)


@dataclass(frozen=True, slots=True)
class _Made:
    """By a worker."""

    table: RankTable
    encoded: bytes
    samples: Samples
    repeats: Repeats | None
    found: References | None = None
    found_encoded: bytes = b""
    payloads: Mapping[Home, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    """A save that has not ended."""

    order: TableOrder
    made: _Made | None = None
    refers: bool = False
    """It was planned and is sent so."""
    forgotten: bool = False
    """Another store is open: nobody may refer to it."""


class Tables:
    """I make tables with workers, and tell the machine of them. Used by the stager's loop."""

    def __init__(self, jobs: Jobs, handle: Callable[[StagerEvent], None]) -> None:
        self._jobs = jobs
        self._handle = handle
        #: Workers note saves in it, under the lock.
        self._history = History()
        self._history_lock = threading.Lock()
        #: The last committed save of each of at most RUNS_MAX runs, the newest last.
        self._committed: OrderedDict[RunName, _Committed] = OrderedDict()
        #: By save, from the hand-over until it has committed or failed.
        self._pending: dict[int, _Pending] = {}
        #: By run: tensors that a coordinator has asked to compare. Their bytes must be here, so no
        #: save refers to them.
        self._stored: dict[RunName, set[str]] = {}

    def forget(self) -> None:
        """Forget all: another store is open. What is under way goes on."""
        with self._history_lock:
            self._history = History()
        self._committed.clear()
        self._stored.clear()
        for pending in self._pending.values():
            pending.forgotten = True

    def has_base(self, order: TableOrder) -> bool:
        """Whether there is a base to compare it with before it is opened."""
        return order.refer and order.run in self._committed

    def make(self, order: TableOrder, prints: Fingerprinter) -> None:
        """Make the table, once the machine knows of the save, beside the training and the
        sending.
        """
        self._pending[order.save] = _Pending(order)
        known = self._committed.get(order.run) if order.refer else None
        if known is None:
            self._make(order, prints)
            return
        stored = frozenset(self._stored.get(order.run, ()))
        self._jobs.start(
            lambda: self._compare(order, prints, known, stored),
            partial(self._compared, order, prints),
            partial(self._not_compared, order, prints),
        )

    def sent(self, save: int) -> References:
        """Note with what the save was planned: what it refers to."""
        pending = self._pending[save]
        assert pending.made is not None
        assert pending.made.found is not None
        pending.refers = True
        return pending.made.found

    def committed(self, save: int, checkpoint: CheckpointId) -> None:
        """Note that the save committed: later saves may refer to it."""
        pending = self._pending.pop(save, None)
        if pending is None or pending.forgotten or not pending.order.refer:
            return
        order, made, found = pending.order, pending.made, None
        assert made is not None, "certified with its table"
        before = self._committed.pop(order.run, None)
        if before is not None and before.save > save:
            self._committed[order.run] = before
            return
        if pending.refers:
            found = made.found
        self._committed[order.run] = _Committed(
            save=save,
            home=Home.of(checkpoint),
            payload_bytes=order.payload_bytes if found is None else found.payload_bytes,
            table=made.table if found is None else found.table,
            payloads=made.payloads if found is not None else {},
            samples=made.samples,
        )
        while len(self._committed) > RUNS_MAX:
            self._committed.popitem(last=False)

    def failed(self, save: int) -> None:
        """Note that it will never commit."""
        self._pending.pop(save, None)

    def compared_with_others(self, run: RunName, names: Collection[str]) -> None:
        """Note that these tensors lie in several ranks: their bytes are always stored."""
        self._stored.setdefault(run, set()).update(names)

    # ----------------------------------------------------------------------- workers

    def _compare(
        self,
        order: TableOrder,
        prints: Fingerprinter,
        known: _Committed,
        stored: Collection[str],
    ) -> _Made | None:
        """None when nothing is the same: then the table can wait."""
        base = known.base()
        if not prints.compare(base, known.samples, stored):
            return None
        made = self._fingerprint(order, prints)
        found = find_references(base, made.table, stored, order.payload_bytes, order.document_bytes)
        if found is None:
            return made
        payloads = {home: base.payloads[home] for home in found.homes}
        encoded = encode_sound_table(found.table)
        return replace(made, found=found, found_encoded=encoded, payloads=payloads)

    def _fingerprint(self, order: TableOrder, prints: Fingerprinter) -> _Made:
        with self._history_lock:
            last = self._history.samples(order.run)
        table = prints.table(last, warn=order.warn, refer=order.refer)
        repeats = None
        if order.warn or order.refer:
            with self._history_lock:
                repeats = self._history.note(order.run, order.step, table, prints.samples)
        encoded = encode_sound_table(table)
        return _Made(table, encoded, prints.samples, repeats if order.warn else None)

    # ----------------------------------------------------------------------- loop

    def _make(self, order: TableOrder, prints: Fingerprinter) -> None:
        self._jobs.start(
            lambda: self._fingerprint(order, prints),
            partial(self._made, order),
            lambda error: log("error", f"save {order.save} has no table: {error}"),
        )

    def _made(self, order: TableOrder, made: _Made) -> None:
        pending = self._pending.get(order.save)
        if pending is not None:
            pending.made = made
        self._handle(TableReady(now_us(), order.save, made.encoded, made.repeats))

    def _compared(self, order: TableOrder, prints: Fingerprinter, made: _Made | None) -> None:
        if made is None:
            self._handle(ReferencesFound(now_us(), order.save))
            self._make(order, prints)
            return
        self._made(order, made)
        found, event = made.found, ReferencesFound(now_us(), order.save)
        if found is not None:
            homes, left_bytes = found.homes, found.payload_bytes
            event = ReferencesFound(now_us(), order.save, homes, left_bytes, made.found_encoded)
        self._handle(event)

    def _not_compared(self, order: TableOrder, prints: Fingerprinter, error: CkptError) -> None:
        log("error", f"save {order.save} was not compared: {error}")
        self._handle(ReferencesFound(now_us(), order.save))
        self._make(order, prints)
