"""Bugs that the simulator must find: each breaks one safety rule, by replacing one function.

A simulator that finds nothing proves nothing until it is shown that it can. Every plant names the
rule it breaks; `tests/sim/test_planted_bugs.py` runs seeds until one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ckpt.aio import directory_scan
from ckpt.base.ids import CheckpointId, ColumnNumber, Domain, Generation, TargetId
from ckpt.erasure.codec import codec_for
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import OpenPayload
from ckpt.format.messages.targets import RegisterTarget
from ckpt.plan.placement import Holder, Level, Placement, Survivable, place_in
from ckpt.plan.seating import Candidate, Seating
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.cluster import launches
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.image import CatalogRow
from ckpt.protocol.coordinator.keeping import documents
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.documents import Copies, store_document
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.reading.launch_round import Round
from ckpt.protocol.coordinator.reading.resolving import Resolver
from ckpt.protocol.coordinator.reading.rounds import LaunchRounds
from ckpt.protocol.coordinator.reading.waiting import WaitingLoad
from ckpt.protocol.coordinator.saving import attempts, committing, ending, opening
from ckpt.protocol.coordinator.saving.attempts import Attempt, AttemptState, Payload
from ckpt.protocol.coordinator.saving.committing import Committer
from ckpt.protocol.coordinator.saving.ending import Ending
from ckpt.protocol.coordinator.saving.opening import Opening
from ckpt.protocol.coordinator.saving.space import reservations
from ckpt.protocol.coordinator.saving.space.reservations import Reserver
from ckpt.protocol.events import Session, SessionClosed
from ckpt.protocol.reader.events import DecodePart
from ckpt.protocol.stager.events import CoordinatorEvent, Outcome, SaveFailed
from ckpt.protocol.stager.machine import StagerMachine
from ckpt.protocol.stager.records import RankSave, SaveState
from ckpt.protocol.stager.state import StagerState
from ckpt.protocol.target.credit import Credit
from ckpt.protocol.target.machine import TargetMachine
from ckpt.protocol.target.reading.reads import Reads
from ckpt.protocol.target.stream import Stream
from ckpt.testing.disk import FakeDisk
from ckpt.transfer.assembly import Assembly, Checks

StoredThen = Callable[[tuple[TargetId, ...]], None]
Patch = tuple[object, str, Callable[..., object]]


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug."""

    name: str
    rule: str
    """What it breaks."""
    patches: tuple[Patch, ...]
    begin: int = 0
    """The first seed that is tried: the one that shows it, where earlier ones only cost time."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The code with the bug in it."""
        with ExitStack() as undo:
            for owner, name, replacement in self.patches:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, replacement)
            yield


# --------------------------------------------------------------------------- coordinator


def _persist_after(
    self: Desk, entries: tuple[catalog.CatalogEntry, ...], then: Callable[[], None]
) -> None:
    """Announce first, write later."""
    _persist(self, entries, lambda: None)
    then()


_persist = Desk.persist


def _proofs_as_they_came(
    payload: Payload, members: Membership, rule: SpreadRule
) -> list[ColumnNumber]:
    """What was certified once is believed for ever."""
    return sorted(payload.proofs)


def _keep_proofs(
    self: Membership, target: Target, session: Session, domain: Domain, message: RegisterTarget
) -> None:
    """It is the same target, after all."""
    proved = target.proved
    _adopt(self, target, session, domain, message)
    target.proved = proved


_adopt = Membership._adopt


def _each_column_twice(
    payload: Payload, members: Membership, rule: SpreadRule
) -> list[ColumnNumber]:
    counted = attempts_count(payload, members, rule)
    return counted + counted


attempts_count = attempts.count_columns


def _one_more_in_each_domain(
    payload: Payload, members: Membership, rule: SpreadRule
) -> list[ColumnNumber]:
    """It is certified, so it counts."""
    return attempts_count(payload, members, replace(rule, max_per_domain=rule.max_per_domain + 1))


def _place_one_more(
    seating: Seating, column_bytes: int, level: Level, max_per_domain: int, spare_count: int,
    turn: int,
) -> Placement:  # fmt: skip
    """A host seldom fails."""
    return place_in(seating, column_bytes, level, max_per_domain + 1, spare_count, turn)


def _wherever(
    candidates: Sequence[Candidate], count: int, beside: Collection[Holder] = ()
) -> tuple[TargetId, ...]:
    """The first ones will do, wherever they are."""
    return tuple(sorted(candidate.target for candidate in candidates)[:count])


def _everywhere_enough(_members: Membership, on: Collection[TargetId], level: Level) -> Survivable:
    """Each copy is in a domain of its own."""
    return Survivable(len(on) - 1, len(on) - 1, level)


def _any_launch(self: Opening, message: OpenPayload) -> Attempt | None:
    """The step is the same, so the attempt must be."""
    fitting = [
        a
        for a in self._book.of_run(message.run)
        if a.checkpoint.step == message.step
        and message.rank not in a.payloads
        and a.state in (AttemptState.OPENING, AttemptState.OPEN)
    ]
    return fitting[-1] if fitting else None


def _without_term(term: int, counter: int) -> Generation:
    """The counter alone: it begins again at every restart."""
    return Generation(1, counter)


def _plan_at_once(self: Opening, attempt: Attempt, payload: Payload) -> None:
    state, attempt.state = attempt.state, AttemptState.OPEN
    _tell_plan(self, attempt, payload)
    attempt.state = state


_tell_plan = Opening._tell_plan


def _decided_is_open(self: Opening, row: CatalogRow) -> None:
    """A restart forgets that the decision was made."""
    _recover(self, replace(row, state=catalog.RowState.OPEN))


_recover = Opening.recover


def _one_copy_of(kind: DocumentKind) -> Callable[..., None]:
    """The catalog has it, after all."""

    def store(
        desk: Desk, members: Membership, id: CheckpointId, asked: DocumentKind, document: bytes,
        copies: Copies, then: StoredThen,
    ) -> None:  # fmt: skip
        enough = Copies(1) if asked is kind else copies
        store_document(desk, members, id, asked, document, enough, then)

    return store


def _everywhere(self: Checkpoints, checkpoint: KeptCheckpoint) -> list[Target]:
    """An index is small, so there are enough of it."""
    return self._members.live()


def _all_is_surplus(self: Adopter, target: Target, id: CheckpointId) -> None:
    """What is committed is settled, so whatever is listed later is left over."""
    for column in sorted(target.proved.of(id)):
        self._deleter.drop_column(target, column)


def _newest_of_the_number(*_: object) -> None:
    """A number says what is wanted: no launch is needed for that."""


def _whoever_asks_moves_on(self: Resolver, waiting: WaitingLoad, given: Round) -> bool:
    """There is a newer one, why not give it?"""
    return self._is_newer(waiting.message, given)


def _who_has_had_it_moves_on(self: Resolver, waiting: WaitingLoad, given: Round) -> bool:
    """All ranks have had the older one, so it is done with."""
    done = len(given.confirmed) == given.launch.world_size
    return done and self._is_newer(waiting.message, given)


def _keep_pins(self: Resolver, session: Session) -> None:
    """The reader may come again."""
    self._waiting.session_closed(session)


# --------------------------------------------------------------------------- stagers


def _give_up_when_cut(self: StagerMachine, event: CoordinatorEvent) -> None:
    """Without a coordinator nothing can commit."""
    _coordinator_event(self, event)
    if isinstance(event, SessionClosed):
        for save in self._pending():
            self._finish(save, SaveFailed("unavailable", "the coordinator is gone"))


_coordinator_event = StagerMachine._coordinator_event


def _end_at_once(self: StagerMachine, save: RankSave, outcome: Outcome) -> None:
    """Who would still read the half, now that the save has ended?"""
    _finish(self, save, outcome)
    if save.state is SaveState.STOPPING:
        self._end(save)


_finish = StagerMachine._finish


# --------------------------------------------------------------------------- targets


def _no_sync(self: FakeDisk, file: str) -> None:
    """fsync is slow; leave it out."""


def _no_directory_sync(self: FakeDisk, directory: str) -> None:
    """The file was synced, was it not?"""


def _any_term(self: TargetMachine, event: object, message: object) -> None:
    """Obey whoever once was coordinator."""
    obey = self._obey
    obey(event.session, event.request, message, event.bulk)  # type: ignore[attr-defined,arg-type]


def _no_space_held(self: FakeDisk, file: str, bytes_count: int) -> None:
    """A sparse file is quicker."""
    _preallocate(self, file, 0)


_preallocate = FakeDisk.preallocate


def _credit_of_nobody(self: Credit, stream: Stream, at_most: int) -> int:
    """Credit is only a number."""
    return min(stream.left_bytes, self._limits.stream_credit_bytes - stream.credit_bytes)


def _credit_at_once(self: Credit, stream: Stream, size: int) -> None:
    """It is here: the sender may send the next one."""
    _used(self, stream, size)
    stream.writing_bytes -= size
    self._free_bytes += size
    self._refill(stream)
    self._free_bytes -= size
    stream.writing_bytes += size


_used = Credit.used


def _pump_all(self: Reads) -> None:
    """The disk is fast, ask it for everything."""
    for _, reader in self._readers.items():
        while self._turn(reader) is not None:
            self._core.counters.reads += 1


# --------------------------------------------------------------------------- readers


def _older_when_out_of_reach(
    self: Resolver, waiting: WaitingLoad, good: list[KeptCheckpoint], skipped: tuple[str, ...]
) -> tuple[KeptCheckpoint | None, tuple[str, ...]]:
    """Better an older step than none."""
    here = [one for one in good if self._checkpoints.readable(one)]
    return (here[0], skipped) if here else _reachable(self, waiting, good, skipped)


_reachable = Resolver._reachable


def _wrong_decode(self: Assembly, stripe: int, parts: tuple[DecodePart, ...]) -> None:
    """The right sources under the wrong names."""
    for part in parts:
        order = part.sources[1:] + part.sources[:1]
        homes = [self._home(stripe, j)[part.start : part.end] for j in order]
        wanted = {j: self._home(stripe, j)[part.start : part.end] for j in part.wanted}
        present = dict(zip(part.sources, homes, strict=True))
        codec_for(self.layout.code).reconstruct(present, wanted)


PLANTS: tuple[Plant, ...] = (
    Plant("announce-before-durable", "P2", ((Desk, "persist", _persist_after),)),
    Plant("no-fsync-of-the-file", "P1", ((FakeDisk, "sync_file", _no_sync),)),
    Plant("no-fsync-of-the-directory", "P1", ((FakeDisk, "sync_directory", _no_directory_sync),)),
    Plant("what-was-killed-is-durable", "P10", ((directory_scan, "_settle", lambda _: None),), 39),
    Plant(
        "accept-a-stale-epoch", "P10",
        # What an old coordinator reserves is given back by the new one; without that it stays.
        ((TargetMachine, "_command", _any_term), (Reserver, "answered_late", lambda *_: None)),
    ),
    Plant(
        "count-the-proofs-of-an-earlier-boot", "P1",
        ((Membership, "accepts", lambda *_: True), (Membership, "_adopt", _keep_proofs)),
        begin=677,
    ),
    Plant(
        "forget-fencing", "P10",
        (
            (launches, "check_not_fenced", lambda *_: None),
            (ending, "check_not_fenced", lambda *_: None),
            (Ending, "fence_older", lambda *_: None),
        ),
        begin=18,
    ),
    Plant(
        "mix-launches", "P2",
        (
            (Opening, "_joinable", _any_launch),
            (launches, "check_not_fenced", lambda *_: None),
            (ending, "check_not_fenced", lambda *_: None),
            (Ending, "fence_older", lambda *_: None),
        ),
        begin=16,
    ),
    Plant(
        "count-a-column-twice", "P1",
        # The decision looks once more at what the index names: both looks must be blind.
        (
            (committing, "count_columns", _each_column_twice),
            (Committer, "_still_counts", lambda *_: True),
        ),
        begin=41,
    ),
    Plant("no-second-count", "P1", ((committing, "count_columns", _proofs_as_they_came),), 41),
    Plant(
        "one-more-in-each-domain", "P13",
        (
            (committing, "count_columns", _one_more_in_each_domain),
            (reservations, "place_in", _place_one_more),
        ),
        begin=6,
    ),
    Plant(
        "documents-anywhere", "P1",
        # Copies in too few domains get company, and the index's bound the answer, twice.
        (
            (documents, "document_targets", _wherever),
            (documents._Spread, "_choose_elsewhere", lambda _: ()),
            (committing, "spread_of", _everywhere_enough),
            (Checkpoints, "index_copies", _everywhere),
        ),
        begin=3,
    ),
    Plant(
        "one-record", "P1",
        ((committing, "store_document", _one_copy_of(DocumentKind.RECORD)),), 2,
    ),
    Plant(
        "one-index-uncounted", "P1",
        (
            (committing, "store_document", _one_copy_of(DocumentKind.INDEX)),
            (Checkpoints, "index_copies", _everywhere),
        ),
        begin=981,
    ),
    Plant("reuse-a-half-before-commit", "P2", ((StagerState, "half_is_free", lambda *_: True),)),
    Plant("give-up-when-cut", "P2", ((StagerMachine, "_coordinator_event", _give_up_when_cut),), 8),
    Plant("generation-without-term", "P10", ((opening, "Generation", _without_term),), 3),
    Plant("plan-before-durable", "P10", ((Opening, "_tell_plan", _plan_at_once),)),
    Plant("forget-who-joined", "P10", ((Launches, "recover", lambda *_: None),)),
    Plant("forget-a-decision", "P2", ((Opening, "recover", _decided_is_open),), 8),
    Plant("drop-what-counts", "P1", ((Adopter, "_sort_out", _all_is_surplus),), 1),
    Plant(
        "no-verify-after-decode", "P3",
        ((Assembly, "decode", _wrong_decode), (Checks, "decoded_is_right", lambda *_: True)),
    ),
    Plant(
        "believe-the-wire", "P3",
        (
            (Checks, "range_is_whole", lambda *_: True),
            (Checks, "fragment_is_right", lambda *_: True),
        ),
        begin=87,
    ),
    Plant(
        "older-when-out-of-reach", "P2", ((Resolver, "_reachable", _older_when_out_of_reach),), 25
    ),
    Plant("pins-of-the-dead", "P5", ((Resolver, "session_closed", _keep_pins),), 1),
    Plant("credit-without-a-slot", "P5", ((Credit, "_amount", _credit_of_nobody),)),
    Plant("credit-before-the-write", "P5", ((Credit, "used", _credit_at_once),)),
    Plant("read-without-a-window", "P5", ((Reads, "pump", _pump_all),), 610),
    Plant("half-back-while-it-is-read", "P5", ((StagerMachine, "_finish", _end_at_once),), 2),
    Plant("columns-without-reservation", "P6", ((FakeDisk, "preallocate", _no_space_held),), 14),
)  # fmt: skip

BY_NUMBER_PLANTS: tuple[Plant, ...] = (
    Plant("newest-of-the-number", "P2", ((LaunchRounds, "by_number", _newest_of_the_number),)),
    Plant("whoever-asks-moves-on", "P2", ((Resolver, "_all_move_on", _whoever_asks_moves_on),)),
    Plant("who-has-had-it-moves-on", "P2", ((Resolver, "_all_move_on", _who_has_had_it_moves_on),)),
    Plant("numbers-forgotten-at-restart", "P2", ((LaunchRounds, "recover", lambda *_: None),)),
)
"""Found by tests/sim/test_by_number.py."""
