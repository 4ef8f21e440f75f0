"""Which generation to read: one answer for all ranks of a launch, pinned while it is read.

What the ranks of a launch share, and when it can change no longer, is in rounds.py. What they were
given stays until each has come for it (for a bounded time), so that no retention puts two steps
into one job.

Walking back happens only past proved damage, and not past what an object store holds: a reader that
can read stores is sent there, for the same generation. What is merely out of reach makes the reader
wait; after that, one that can read stores is also sent there: the same generation is the same
bytes, whichever rank reads them where. Others fail with Unavailable; `fallback` accepts an older
readable step.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from ckpt.base.errors import CkptError, Lost, Unavailable
from ckpt.base.ids import Generation
from ckpt.base.limits import RESOLVE_WAIT_US, STAGER_AWAY_US
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import (
    AskMoves,
    ConfirmLoad,
    LoadBegan,
    MovesFound,
    Resolve,
    Resolved,
)
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CheckpointDoubted, CheckpointReleased, LoadUnconfirmed
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.pins import Pins
from ckpt.protocol.coordinator.reading.candidates import Candidates
from ckpt.protocol.coordinator.reading.launch_round import Round, check_load, check_loaded
from ckpt.protocol.coordinator.reading.moves import moved, moves_of_page
from ckpt.protocol.coordinator.reading.rounds import LaunchRounds
from ckpt.protocol.coordinator.reading.waiting import WaitingLoad, WaitingLoads, load_of
from ckpt.protocol.coordinator.saving.attempts import ENDED, Attempt, AttemptBook
from ckpt.protocol.events import Session


class Resolver:
    """I answer Resolve, at once or later, and hold the pins."""

    def __init__(
        self,
        desk: Desk,
        checkpoints: Checkpoints,
        launches: Launches,
        book: AttemptBook,
        drains: DrainQueue,
    ) -> None:
        self._desk = desk
        self._checkpoints = checkpoints
        self._launches = launches
        self._book = book
        self._drains = drains
        self._candidates = Candidates(checkpoints, drains)
        #: Questions without an answer yet.
        self._waiting = WaitingLoads(self._alike)
        self.pins = Pins()
        self.rounds = LaunchRounds(
            desk, checkpoints, self.pins.new_number, self._release_if_unpinned
        )

    def resolve(self, session: Session, request: int, message: Resolve) -> None:
        """A new question; answered now if it can be. Raises Refused as `check_load`."""
        check_load(self._launch_of(message), message.rank, message.turn)
        now_us = self._desk.now_us
        waiting = WaitingLoad(session, request, message, now_us)
        if self._try(waiting):
            self._waiting.answered(message, now_us)
        else:
            self._waiting.add(waiting, now_us)

    def resolve_unconfirmed(self, fact: LoadUnconfirmed) -> None:
        """Another coordinator may be in force, and know a newer one. So only a reader that accepts
        an older step (and gets `problem` as a reason), or reads an object store instead, is
        answered. Raises why not.
        """
        message, problem = fact.message, fact.problem
        at_once = replace(message, timeout_us=0, away=True)
        waiting = WaitingLoad(fact.session, fact.request, at_once, self._desk.now_us)
        try:
            found, skipped = self._choose(waiting)
        except Unavailable:
            raise  # It names what is away.
        except CkptError:
            raise problem from None
        if found is None:
            raise problem
        if not self._candidates.stores_to_read(found, at_once):
            if not message.fallback:
                raise problem
            skipped = (*skipped, problem.message)
        self._answer(waiting, found, skipped)
        self._note(at_once, found, skipped)

    def refuse_all(self, problem: CkptError) -> None:
        """Answer all who wait: nobody is served any more."""
        for each in self._waiting.clear():
            self._desk.fail(each.session, each.request, problem)

    def release(self, session: Session, pin: int) -> None:
        """Release a reader's pin."""
        if self.pins.is_of(session, pin):
            self.rounds.released(session)
            self._unpin(pin)

    def load_began(self, session: Session, message: LoadBegan) -> None:
        """Of a rank that its launch does not have, nothing: nobody would wait for it in vain."""
        launch = self._launches.get(message.run, message.launch)
        if launch is not None and 0 <= message.rank < launch.world_size:
            self.rounds.began(session, launch, message)

    def confirm(self, session: Session, request: int, message: ConfirmLoad) -> None:
        """A rank has loaded what its launch resolved. Raises Unavailable or Refused for an unknown
        launch, Refused as `check_load` and `check_loaded`."""
        launch = self._launches.joined(message.run, message.launch)
        check_load(launch, message.rank, message.turn)
        check_loaded(message)
        self.rounds.confirm(session, request, launch, message)

    def session_closed(self, session: Session) -> None:
        self._waiting.session_closed(session)
        for pin in self.pins.of_session(session):
            self._unpin(pin)
        self.rounds.session_closed(session)

    def tick(self) -> None:
        """Try open questions again: something may have changed."""
        self.rounds.tick()
        self._waiting.retry(self._desk.now_us, self._try)

    # ----------------------------------------------------------------------- inside

    def _try(self, waiting: WaitingLoad) -> bool:
        try:
            found, skipped = self._choose(waiting)
        except CkptError as error:
            self._desk.send(
                waiting.session,
                waiting.request,
                Failed(error.code, error.message, error.hint),
            )
            return True
        if found is None:
            return False
        self._answer(waiting, found, skipped)
        self._note(waiting.message, found, skipped)
        return True

    def _choose(self, waiting: WaitingLoad) -> tuple[KeptCheckpoint | None, tuple[str, ...]]:
        """The checkpoint to read, or None to wait longer; raises what to tell the reader."""
        message = waiting.message
        if message.only is not None:
            return self._the_same(waiting, message.only)
        given = self._given(message)
        self._check_not_past(message, given)
        if self._should_wait_for_its_own(waiting, given) or self._should_meet(waiting, given):
            return None, ()
        if given is not None and not self._all_move_on(waiting, given):
            return self._of_round(waiting, given)
        if self._should_wait_for_attempts(waiting):
            return None, ()
        good, skipped = self._candidates.of(message)
        if not good:
            raise self._candidates.nothing(message)
        other = self._met(message, good[0]) if given is None else None
        if other is not None:
            return self._of_round(waiting, other)
        return self._reachable(waiting, good, skipped)

    def _the_same(
        self, waiting: WaitingLoad, only: Generation
    ) -> tuple[KeptCheckpoint | None, tuple[str, ...]]:
        """For who goes on reading it."""
        message = waiting.message
        good, _ = self._candidates.of(message)
        same = [one for one in good if one.id.generation == only]
        if same:
            return self._reachable(waiting, same, ())
        if not good:
            raise self._candidates.nothing(message)
        raise Lost(
            f"{message.run}@{message.step}#{only} is deleted or lost, {good[0].id} is another",
            hint="load again",
        )

    def _of_round(
        self, waiting: WaitingLoad, given: Round
    ) -> tuple[KeptCheckpoint | None, tuple[str, ...]]:
        """What other ranks of the launch have, or why this one cannot have it."""
        message = waiting.message
        if given.chosen is not None and self._candidates.is_to_be_had(given.chosen, message):
            return self._reachable(waiting, [given.chosen], given.skipped)
        self._candidates.check_reads_stores(given, message)
        good, _ = self._candidates.of(message)
        if not good and (given.chosen is None or message.step is not None):
            raise self._candidates.nothing(message)  # A store may have it; confirmed as well.
        raise given.mix(good[0].id if good else None)

    def _reachable(
        self, waiting: WaitingLoad, good: list[KeptCheckpoint], skipped: tuple[str, ...]
    ) -> tuple[KeptCheckpoint | None, tuple[str, ...]]:
        if good[0].state is RowState.DAMAGED or self._is_readable(good[0], waiting.message):
            return good[0], skipped
        self._desk.tell(CheckpointDoubted(good[0].id))
        if self._desk.now_us < waiting.deadline_us:
            return None, skipped
        if waiting.message.stored and self._drains.holding(good[0].id):
            return good[0], skipped
        reason = f"{good[0].id} is out of reach: {self._away(good[0])}"
        if waiting.message.fallback:
            for older in good[1:]:
                if self._checkpoints.readable(older):
                    return older, (*skipped, reason)
        raise Unavailable(reason, hint="start them (ckpt status), or load with fallback=True")

    def _is_readable(self, checkpoint: KeptCheckpoint, message: Resolve) -> bool:
        """A payload is made again though others, or homes of others, are lost."""
        if message.for_repair:
            return bool(self._checkpoints.index_copies(checkpoint))
        return self._checkpoints.readable(checkpoint)

    def _should_wait_for_attempts(self, waiting: WaitingLoad) -> bool:
        """Attempts that every rank has handed over are about to commit: wait, within bounds."""
        message = waiting.message
        limit = min(waiting.deadline_us, waiting.asked_us + RESOLVE_WAIT_US)
        if self._desk.now_us >= limit:
            return False
        return any(
            attempt.handed_over and attempt.state not in ENDED and self._is_hopeful(attempt)
            for attempt in self._book.of_run(message.run)
            if message.step is None or attempt.checkpoint.step == message.step
        )

    def _is_hopeful(self, attempt: Attempt) -> bool:
        """Each payload is certified, or its stager is here or has been away for a moment only."""
        return all(
            payload.certified
            or payload.away_since_us is None
            or self._desk.now_us - payload.away_since_us < STAGER_AWAY_US
            for payload in attempt.left.values()
        )

    # ----------------------------------------------------------------------- launches

    def _launch_of(self, message: Resolve) -> Launch | None:
        if message.launch is None or message.rank is None:
            return None
        return self._launches.get(message.run, message.launch)

    def _should_wait_for_its_own(self, waiting: WaitingLoad, given: Round | None) -> bool:
        """A rank that has handed this step over loads what it saved; what is there now would be
        another generation than its peers get after the commit.

        Raises Unavailable when that does not come in time.
        """
        message, launch = waiting.message, self._launch_of(waiting.message)
        if launch is None or message.step is None or self._is_repeated(message, given):
            return False
        own = self._own(message)
        if own is None:
            return False
        if self._desk.now_us < waiting.deadline_us:
            return True
        good, _ = self._candidates.of(message)
        if not good:
            raise self._candidates.nothing(message)
        raise Unavailable(
            f"{own.checkpoint}, which this rank has saved, is not committed yet, {good[0].id} is: "
            "its launch would load both",
            hint="wait() for the save on all ranks, then load",
        )

    def _own(self, message: Resolve) -> Attempt | None:
        """In which this rank saves the step that it asks for."""
        if message.launch is None:
            return None
        for attempt in self._book.of_run(message.run):
            id, is_its = attempt.checkpoint, attempt.launch == message.launch
            if id.step == message.step and is_its and message.rank in attempt.payloads:
                return attempt
        return None

    def _alike(self, waiting: WaitingLoad) -> Hashable:
        """What of its rank decides how long it waits."""
        message = waiting.message
        own, given = self._own(message), self._given(message)
        return own is not None, self._is_repeated(message, given)

    def _given(self, message: Resolve) -> Round | None:
        """What this rank's launch has resolved already, as long as that stands."""
        launch = self._launch_of(message)
        if launch is None:
            return None
        if message.step is None:
            known = self.rounds.get(message.run, launch, None, message.turn)
        else:
            known = self.rounds.by_number(message.run, launch, message.step)
        return known if known is not None and known.stands else None

    def _is_repeated(self, message: Resolve, given: Round | None) -> bool:
        """The rank has had this answer already for this load."""
        if given is None or message.rank is None:
            return False
        return given.told.get(message.rank) == message.turn

    def _check_not_past(self, message: Resolve, given: Round | None) -> None:
        """Raises Lost for what was the newest once, when its launch has moved on by the number."""
        launch = self._launch_of(message)
        if given is None or launch is None or message.step is not None:
            return
        other = self.rounds.by_number(message.run, launch, given.id.step)
        if other is not None and other.id != given.id and other.stands:
            raise Lost(
                f"this launch had {given.id} as the newest, and has loaded {other.id} by its "
                "number since: two generations would meet in one job",
                hint="load the step by its number on all ranks",
            )

    def _all_move_on(self, waiting: WaitingLoad, given: Round) -> bool:
        """Every rank asks for the step by its number, for the same of its loads, and there is a
        newer generation: no rank can be left with the older one."""
        return self._is_newer(waiting.message, given) and not self._lacks_any(waiting, given)

    def _should_meet(self, waiting: WaitingLoad, given: Round | None) -> bool:
        """There is a newer one, and all other ranks may be about to ask for it as well."""
        message, before = waiting.message, waiting.message.turn - 1
        limit = min(waiting.deadline_us, waiting.asked_us + RESOLVE_WAIT_US)
        if given is None or self._desk.now_us >= limit or not self._is_newer(message, given):
            return False
        if given.is_of_files or (given.recovered and not before):
            return False  # Somebody has had it, who will not ask for its first load again.
        asking = self._waiting.asking(load_of(message))
        come = all(rank == message.rank or rank in asking for rank in given.not_at(before))
        return come and self._lacks_any(waiting, given)

    def _lacks_any(self, waiting: WaitingLoad, given: Round) -> bool:
        """Whether ranks of its launch do not ask for the same of their loads. Of who asks some may
        be no ranks of it: only when so many ask that they may be all, each is looked at.
        """
        mine, size = waiting.message, given.launch.world_size
        asking = self._waiting.asking(load_of(mine))
        if len(asking) + 1 < size:
            return True
        return bool(set(range(size)) - asking - {mine.rank})

    def _is_newer(self, message: Resolve, given: Round) -> bool:
        if message.step is None or self._is_repeated(message, given):
            return False
        good, _ = self._candidates.of(message)
        return bool(good) and good[0].id.generation > given.id.generation

    def _met(self, message: Resolve, chosen: KeptCheckpoint) -> Round | None:
        """Another generation of the step, which other ranks of the launch have in another way: by
        its number, while this one asks for the newest, or the other way round."""
        launch, step = self._launch_of(message), chosen.id.step
        if launch is None:
            return None
        of_others = self.rounds.by_number if message.step is None else self.rounds.as_newest
        other = of_others(message.run, launch, step)
        is_another = other is not None and other.id != chosen.id and other.stands
        return other if is_another else None

    def _note(self, message: Resolve, chosen: KeptCheckpoint, skipped: tuple[str, ...]) -> None:
        launch = self._launch_of(message)
        if launch is not None and message.rank is not None and message.only is None:
            by_number = message.step is not None
            self.rounds.take(
                launch, message.turn, message.rank, chosen, skipped, by_number=by_number
            )

    # ----------------------------------------------------------------------- pins

    def tell_moves(self, session: Session, request: int, message: AskMoves) -> None:
        """Raises NotFound."""
        page = moves_of_page(self._checkpoints, message.checkpoint, message.page)
        self._desk.send(session, request, MovesFound(), page)

    def _answer(
        self, waiting: WaitingLoad, chosen: KeptCheckpoint, skipped: tuple[str, ...]
    ) -> None:
        pin = self.pins.hold(waiting.session, chosen, self._desk.now_us)
        info = self._checkpoints.info_now(chosen)
        stored = self._candidates.stores_to_read(chosen, waiting.message)
        is_away = stored and chosen.state is not RowState.DAMAGED
        answer = Resolved(
            info, pin, self._checkpoints.addresses(chosen), skipped,
            sharing=True, stored=stored, away=self._away(chosen) if is_away else "",
            homes=tuple(home.record_bytes for home in self._checkpoints.homes_of(chosen)),
            moved=moved(self._checkpoints, chosen),
        )  # fmt: skip
        self._desk.send(waiting.session, waiting.request, answer, chosen.record_bytes)
        if stored:
            self._desk.report(
                "warning", "read from an object store", chosen=str(chosen.id), store=stored[0]
            )
        if skipped:
            self._desk.report(
                "warning",
                "resolution walked back",
                chosen=str(chosen.id),
                skipped="; ".join(skipped),
            )

    def _away(self, checkpoint: KeptCheckpoint) -> str:
        away = ", ".join(self._checkpoints.unreachable(checkpoint))
        if away:
            return f"targets {away} do not answer"
        if checkpoint.placement is None:
            return checkpoint.unread or "its index is not read yet"
        return "the reader does not reach its targets"

    def _unpin(self, pin: int) -> None:
        self._release_if_unpinned(self.pins.let_go(pin))

    def _release_if_unpinned(self, checkpoint: KeptCheckpoint) -> None:
        if not checkpoint.pins:
            self._desk.tell(CheckpointReleased(checkpoint.id))
