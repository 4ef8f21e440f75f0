"""Bugs of several coordinators over one store, each of which a history must show."""

from __future__ import annotations

import math
from collections.abc import Callable

from ckpt.base.errors import CkptError, Unavailable
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import Place
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.cluster.membership import Target
from ckpt.protocol.coordinator.cluster.vouching import Vouching
from ckpt.protocol.coordinator.confirming import Confirming
from ckpt.protocol.coordinator.saving.generations import Generations
from ckpt.protocol.coordinator.saving.space.orphans import Orphans
from ckpt.protocol.coordinator.saving.space.standing import StandingSpace
from ckpt.protocol.events import Session
from ckptd.catalog.etcd import fence as fencing
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.catalog import Batch, EtcdCatalog
from ckptd.catalog.etcd.fence import Fence, FencedSpace, _put
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.mirror import Mirror
from ckptd.catalog.etcd.words import (
    Compare,
    KeyValue,
    Range,
    RangeFound,
    Transaction,
    TransactionDone,
)
from ckptd.coordinator.front import Front
from ckptd.coordinator.shell import CoordinatorShell
from tests.sim.leading.book import Sent
from tests.sim.leading.loop import running
from tests.sim.planted import Plant

NEVER_US = 1 << 62

_write = FencedSpace.write
_try_to_take = FencedSpace.try_to_take
_term_of = fencing._term_of
_read = Mirror._read
_turn_away = Front.turn_away
_persist = CoordinatorShell._persist
_closed = CoordinatorShell.closed


async def _write_under(
    space: FencedSpace, fence: Fence, writes: Writes, compare: tuple[Compare, ...]
) -> None:
    full, number = space._space.full, fence.sequence + 1
    request = Transaction(
        compare, (*space._operations(writes), _put(full(keys.SEQUENCE), str(number).encode())),
        tuple(fencing._get(full(name)) for name in (keys.LEADER, keys.SEQUENCE, keys.TERM)),
    )  # fmt: skip
    done = await space._client.call("kv/txn", request, TransactionDone, math.inf)
    if not done.succeeded:
        space._explain(fence, done, number)
    fence.sequence = number


async def _records_without_fence(
    self: FencedSpace, fence: Fence, writes: Writes, deadline: float
) -> None:
    """What is decided is decided, whoever says it."""
    if any(name.startswith("record/") for name in writes.values):
        await _write_under(self, fence, writes, ())
    else:
        await _write(self, fence, writes, deadline)


async def _without_sequence(
    self: FencedSpace, fence: Fence, writes: Writes, deadline: float
) -> None:
    """The leader's key says that it is mine, and values are whole."""
    key = self._space.full(keys.LEADER)
    mine = Compare(key, "CREATE", create_revision=fence.revision)
    await _write_under(self, fence, writes, (mine,))


async def _anybodys(self: FencedSpace, deadline: float, *, copied_from: str = "") -> Fence | None:
    """There is a leader's key, and I have just taken it."""
    fence = await _try_to_take(self, deadline, copied_from=copied_from)
    found = await self._one(keys.LEADER, deadline)
    if fence is None and found is not None:
        term = _term_of(await self._one(keys.TERM, deadline))
        return Fence(term, found.create_revision, 0, 2, key=found.value)
    return fence


def _same_term(found: KeyValue | None) -> int:
    """A term that wrote nothing worth while goes on."""
    return max(0, _term_of(found) - 1)


async def _failed_without_answer(
    self: EtcdCatalog, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
) -> None:
    """What was not answered was not done: it goes along with what has come since."""
    process, batch, sent = running(), Batch(), ()
    try:
        while batch.tickets or await self._has_work():
            more = self._gather()
            merged = batch.writes.merged(more.writes) or more.writes
            batch = Batch(batch.tickets + more.tickets, merged)
            sent = (*sent, *self._sent.tickets)  # type: ignore[attr-defined]
            process.client.mark = Sent(process.life, self._fence.term, sent)
            try:
                await self._space.write(self._fence, batch.writes, -math.inf)
            except Unavailable:
                continue
            for ticket in batch.tickets:
                on_durable(ticket)
            batch, sent = Batch(), ()
    except CkptError as error:
        self._failure = error
        on_failed(error)
    finally:
        process.client.mark = None


def _newest_first(self: EtcdCatalog) -> tuple[int, Writes] | None:
    """Whoever came last has waited least: it is served at once."""
    if len(self._waiting) > 1:
        self._waiting.rotate(1)
    return _fold_next(self)


_fold_next = EtcdCatalog._fold_next


def _believed(self: FencedSpace, fence: Fence, done: TransactionDone, number: int) -> None:
    """It has come to etcd, so it is stored."""


async def _as_it_is(
    self: Mirror, revision: int, patience_s: float
) -> list[tuple[str, bytes]] | None:
    """Nobody waits for a copy."""
    return list(self._values.items()) or None


async def _go_on_watching(self: Mirror) -> None:
    """What it had is still there: only a new watch is needed."""
    if not self._values:
        await _read(self)
        return
    request = Range(self._names.full(keys.META))
    found = await self._client.call("kv/range", request, RangeFound, -math.inf)
    self.revision = found.header.revision


def _keep_shell(self: Front) -> CoordinatorShell | None:
    """Readers may still come."""
    return self._shell


def _serve_readers(self: Front, role: Role) -> Failed | None:
    """Who stands by knows nearly as much as who leads."""
    if not hasattr(self._shell, "is_over"):
        return _turn_away(self, role)
    if role is Role.READER:
        return None
    return Failed(Unavailable.code, "stands by", leader=self.leader)


def _persist_if_open(self: CoordinatorShell, action: Persist) -> None:
    if not self._catalog._closing:  # type: ignore[attr-defined]
        _persist(self, action)


def _end_for_most(self: CoordinatorShell) -> None:
    self.is_over = True  # type: ignore[attr-defined]


def _fail_once(self: CoordinatorShell, error: CkptError) -> None:
    if not hasattr(self, "is_over"):
        _end_for_most(self)
        self._on_failed(error)


def _close_if_known(self: CoordinatorShell, session: Session, reason: str) -> None:
    if session in self._roles:
        _closed(self, session, reason)


def _still_an_orphan(self: Orphans, place: Place) -> None:
    """What has been claimed may be claimed again, and does not go back."""
    self._found_us[place.target, place.boot, place.reservation] = NEVER_US


def _drop_what_is_new(self: Vouching, target: Target) -> str:
    """What lies there and is in no catalog is of a save that nobody goes on with: by the copy that
    there was when the leader before began.
    """
    generations = self._known
    assert isinstance(generations, Generations)
    for id in sorted(target.proved.checkpoints() | target.documents.checkpoints()):
        if self._members.term - 1 <= id.generation.term < self._members.term:
            generations._deleter.drop_on(target, id)
    return ""


def _nobody_has_it(self: StandingSpace, *_of_the_claim: object) -> bool:
    """Whatever is claimed is counted."""
    return False


PLANTS: tuple[Plant, ...] = (
    Plant("records-without-fence", "P10", ((FencedSpace, "write", _records_without_fence),)),
    Plant("term-not-raised", "P10", ((fencing, "_term_of", _same_term),)),
    Plant("no-answer-is-a-failure", "P2", ((EtcdCatalog, "_write_all", _failed_without_answer),)),
    Plant("newest-ticket-first", "P2", ((EtcdCatalog, "_fold_next", _newest_first),)),
    Plant(
        "a-standby-serves-readers", "P2",
        (
            (Front, "retire", _keep_shell),
            (Front, "turn_away", _serve_readers),
            (CoordinatorShell, "end", _end_for_most),
            (CoordinatorShell, "_stop_for", _fail_once),
            (CoordinatorShell, "closed", _close_if_known),
            (CoordinatorShell, "_persist", _persist_if_open),
            (Confirming, "confirm", lambda self, then: then()),
        ),
    ),
    Plant("a-copy-as-it-is", "P1", ((Mirror, "pairs_at", _as_it_is),)),
    Plant("sequence-not-compared", "P1", ((FencedSpace, "write", _without_sequence),)),
    Plant("a-watch-that-skips", "P1", ((Mirror, "_read", _go_on_watching),)),
    Plant("lost-fence-is-no-failure", "P2", ((FencedSpace, "_explain", _believed),)),
    Plant("anybodys-key-is-mine", "P10", ((FencedSpace, "try_to_take", _anybodys),)),
    Plant(
        "claimed-space-counts-twice", "P6",
        (
            (Orphans, "take", _still_an_orphan),
            (StandingSpace, "heard_again", _nobody_has_it),
        ),
    ),
    Plant(
        "strays-dropped-by-a-stale-catalog", "P1",
        ((Vouching, "_objection_of_holdings", _drop_what_is_new),),
    ),
)  # fmt: skip
