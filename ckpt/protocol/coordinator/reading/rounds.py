"""What the ranks of one launch resolved together, and when that can no longer change.

    CHOSEN --a rank has loaded it, and nobody is loading--> SETTLING --row durable--> SETTLED
      |  ^                                                                               |
      +--+ its damage is proved, or it is gone: all ranks walk back           never changes again

A rank may return what it loaded only when its round is settled. A rank that finishes while others
are still loading waits for them, so that damage which one of them meets makes all walk back. It
never waits for a rank that is not loading: one rank may load alone and pass on what it got. When
damage is proved after a round is settled, ranks that come later get an error that names both steps;
two steps never meet silently in one launch. A wait that is too long only settles the round earlier.

Rounds of "newest" are numbered by turns: what a rank loads before its own first save is turn 0;
after it, the n-th resolution of each rank meets the n-th of every other. Where all ranks start
again under their launch's key, they go on after the last turn that any rank of the start before has
had: it may have ended between two ranks' loads.

A step that is asked for by its number has one round at a time (decision 0017): all ranks get it,
whatever is committed meanwhile. It makes way for a newer generation when the launch itself has
committed the step again, or when all its ranks ask for it at once, each for its n-th load: then
none can be left with the older one. Files bind a launch only for ROUND_HELD_US: each rank reads
what it likes of them, when it likes. What some ranks have by the number, and others as the newest,
is one generation.

What is lost here and whole in an object store is read from there by all ranks of the launch: no
reason to walk back.

Invariants: no confirmation is sent before the round is durable; a settled round keeps its
checkpoint, also across a restart.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import CheckpointId, LaunchNumber, Rank, RunName, Step
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, LoadConfirmed
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CheckpointCommitted, RunForgotten
from ckpt.protocol.coordinator.image import LaunchRow, forget_old_turns
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.reading.launch_round import NOT_SERVED, LoadedRank, Round, Served
from ckpt.protocol.events import Session

ROUND_HELD_US = 300_000_000
"""So long a resolution is held for ranks of its launch that have not come for it yet."""
STEPS_KEPT = 256
"""Steps of each launch whose resolution by number is kept, the latest."""


Turns = dict[int, Round]
LaunchKey = tuple[RunName, LaunchNumber]
Seat = tuple[RunName, LaunchNumber, Step | None, int, Rank]


class LaunchRounds:
    """I keep every launch's rounds and the pins that hold them for late ranks."""

    def __init__(
        self,
        desk: Desk,
        checkpoints: Checkpoints,
        new_pin: Callable[[], int],
        unpinned: Callable[[KeptCheckpoint], None],
    ) -> None:
        self._desk = desk
        self._checkpoints = checkpoints
        self._new_pin = new_pin
        self._unpinned = unpinned
        #: Of each launch the rounds of "newest" by turn, under the step None; under a step's number
        #: its only one, as turn 0. They go with the launch.
        self._rounds: dict[LaunchKey, dict[Step | None, Turns]] = {}
        #: Rounds that hold their pin, for ranks that have not come for them.
        self._held: list[Round] = []
        #: Rounds with ranks that wait for a confirmation.
        self._asked: list[Round] = []
        #: Of each launch what each rank has taken of "newest".
        self._served: dict[LaunchKey, dict[Rank, Served]] = {}
        #: What is read over which session, to hear of readers that go away.
        self._loading: dict[Session, dict[Seat, None]] = {}

    def recover(self, run: RunName, launch: Launch, row: LaunchRow) -> None:
        """Restore what was settled before this coordinator started."""
        for turn, id in row.resolved.items():
            self._turns(run, launch, None)[turn] = self._recovered(launch, turn, id)
        for step, id in row.by_number.items():
            found = self._turns(run, launch, step)[0] = self._recovered(launch, 0, id)
            found.by_number = True
            if found.is_readable:
                self._hold(found)  # The next commit of the step would be its end.

    def _recovered(self, launch: Launch, turn: int, id: CheckpointId) -> Round:
        chosen = self._checkpoints.get(id)
        return Round(launch, turn, id, chosen, settling=True, settled=True, recovered=True)

    def run_forgotten(self, fact: RunForgotten) -> None:
        """Note that all launches of a run are gone."""
        for number in fact.launches:
            self.launch_forgotten(fact.run, number)

    def launch_forgotten(self, run: RunName, number: LaunchNumber) -> None:
        """Its processes are gone: what it has resolved goes as well."""
        self._served.pop((run, number), None)
        for turns in self._rounds.pop((run, number), {}).values():
            for one in turns.values():
                self._let_go(one)

    def _turns(self, run: RunName, launch: Launch, step: Step | None) -> Turns:
        return self._rounds.setdefault((run, launch.number), {}).setdefault(step, {})

    def _known(self, run: RunName, number: LaunchNumber, step: Step | None) -> Turns:
        return self._rounds.get((run, number), {}).get(step, {})

    def get(self, run: RunName, launch: Launch, step: Step | None, turn: int) -> Round | None:
        return self._known(run, launch.number, step).get(turn)

    def next_turn(self, run: RunName, launch: Launch, rank: Rank) -> int:
        """The turn of this rank's next resolution."""
        if not launch.has_saved(rank):
            return 0
        served = self._served.get((run, launch.number), {})
        mine = served.get(rank, NOT_SERVED)
        if mine.process == launch.process(rank) or not launch.starts_again(rank):
            return mine.next_turn
        taken = [
            one.turn_of_process(launch.process(other))
            if launch.is_beside(other, rank)
            else one.next_turn
            for other, one in served.items()
        ]
        return max(taken, default=1)

    def by_number(self, run: RunName, launch: Launch, step: Step) -> Round | None:
        """What the launch's ranks get that ask for a step by its number, if some have asked."""
        one = self.get(run, launch, step, 0)
        return None if one is None or self._is_left(one) else one

    def as_newest(self, run: RunName, launch: Launch, step: Step) -> Round | None:
        """What some of them have had as the newest, when it is of this step."""
        turns = self._known(run, launch.number, None)
        of_step = [one for _, one in sorted(turns.items()) if one.id.step == step and one.stands]
        return None if not of_step or self._is_left(of_step[-1]) else of_step[-1]

    def _is_left(self, one: Round) -> bool:
        """Who asks for its step now means a later one: all ranks of the launch have saved the step
        again since; or it is of files, and a while ago."""
        held = self._checkpoints.of_step(one.id.run, one.id.step, *RowState)
        own = [c for c in held if c.info.launch == one.launch.number]
        if any(c.id.generation > one.id.generation for c in own):
            return True
        return self._is_past(one)

    def _is_past(self, one: Round) -> bool:
        """Files bind for a while only, where they are asked for by number."""
        return one.by_number and one.is_of_files and self._until_us(one) <= self._desk.now_us

    def committed(self, fact: CheckpointCommitted) -> None:
        """Note that ranks of these launches have committed files: their next loads get this, or
        newer.
        """
        id = fact.checkpoint
        for number in fact.written_by:
            turns = self._known(id.run, number, id.step)
            if 0 in turns and turns[0].id.generation < id.generation:
                self._forget_step(turns[0])

    def take(
        self,
        launch: Launch,
        turn: int,
        rank: Rank,
        chosen: KeptCheckpoint,
        skipped: tuple[str, ...],
        *,
        by_number: bool,
    ) -> None:
        """A rank had this checkpoint as its answer for that turn; by number, `turn` counts its
        loads of the step.
        """
        run = chosen.id.run
        one = self.get(run, launch, *((chosen.id.step, 0) if by_number else (None, turn)))
        is_other = one is not None and one.chosen is not chosen
        if one is None or self._is_past(one) or (is_other and (by_number or not one.settling)):
            fresh = Round(launch, 0 if by_number else turn, chosen.id, chosen, by_number, skipped)
            one = self._choose(fresh, one)
        if by_number:
            one.tell(rank, turn)
        # What some have from the tier and others from a store is the same generation.
        one.from_store = chosen.state is RowState.DAMAGED
        one.ranks.add(rank)
        if turn and not by_number:
            served = self._served.setdefault((run, launch.number), {})
            before = served.get(rank, NOT_SERVED)
            served[rank] = before.taken(turn, launch.process(rank))
        if one.is_complete:
            self._let_go(one)

    def _choose(self, one: Round, before: Round | None) -> Round:
        """Put it in the place of what stood there before."""
        run = one.id.run
        if one.chosen is not None:
            self._hold(one)
        turns = self._turns(run, one.launch, one.step)
        turns[one.turn] = one
        forget_old_turns(turns, one.turn)
        self._forget_old_steps(run, one.launch)
        if before is not None:
            self._let_go(before)
            one.loading.update(before.loading)  # They will hear, and load this one.
            self._overrule(before, f"the launch resolves to {one.id} now")
        return one

    def _forget_old_steps(self, run: RunName, launch: Launch) -> None:
        """All but the last numbers that were asked for."""
        by_step = self._rounds[run, launch.number]
        mine = [turns[0] for step, turns in by_step.items() if step is not None]
        for one in mine[: max(0, len(mine) - STEPS_KEPT)]:
            self._forget_step(one)

    def _forget_step(self, one: Round) -> None:
        """What was asked for by this number binds nobody any more."""
        self._let_go(one)
        del self._rounds[one.id.run, one.launch.number][one.step]
        forgotten = catalog.StepForgotten(one.id.run, one.launch.number, one.id.step)
        self._desk.persist((forgotten,), lambda: None)

    # ----------------------------------------------------------------------- loads

    def began(self, session: Session, launch: Launch, message: LoadBegan) -> None:
        """Note that a rank reads; ranks that finish before wait for it."""
        turn = message.turn if message.step is None else 0
        one = self.get(message.run, launch, message.step, turn)
        if one is not None:
            one.loading[message.rank] = session
            seat = (message.run, launch.number, message.step, turn, message.rank)
            self._loading.setdefault(session, {})[seat] = None

    def confirm(self, session: Session, request: int, launch: Launch, message: ConfirmLoad) -> None:
        """A rank has loaded this checkpoint, whole and verified: may it return it?"""
        one = self._confirming(launch, message)
        if one is None or one.id != message.checkpoint or not one.stands:
            now = f"{message.checkpoint} is deleted" if one is None else _instead(one, message)
            self._desk.send(session, request, LoadConfirmed(now))
            return
        one.loading.pop(message.rank, None)
        until_us = self._desk.now_us + message.timeout_us
        each = LoadedRank(session, request, message.rank, message.turn, until_us)
        one.due_us = min(one.due_us, until_us) if one.confirming else until_us
        one.confirming.append(each)
        if one not in self._asked:
            self._asked.append(one)
        self._settle(one)

    def _confirming(self, launch: Launch, message: ConfirmLoad) -> Round | None:
        """What a rank has loaded, or what stands in its place."""
        run, step = message.run, message.step
        turn = message.turn if step is None else 0
        known = self.get(run, launch, step, turn)
        if known is not None and (known.id == message.checkpoint or not self._is_left(known)):
            return known
        other = None if step is None else self.as_newest(run, launch, step)
        if other is not None and other.id != message.checkpoint:
            return other
        # A restart lost what was chosen and not settled: the first that comes names it.
        chosen = self._checkpoints.get(message.checkpoint)
        if chosen is None or chosen.state is RowState.TOMBSTONED:
            if not message.stored:
                return None
            chosen = None
        one = Round(launch, turn, message.checkpoint, chosen, step is not None)
        one.from_store = message.stored
        return self._choose(one, known)

    def _settle(self, one: Round) -> None:
        """Answer those who wait, as soon as nobody's load can change the answer."""
        now = self._desk.now_us
        if one.settled:
            self._confirm_all(one)
        elif one.settling:
            self._refuse_late(one, now)
        elif not one.confirming:
            return
        elif not one.is_readable:
            self._overrule(one, one.why_not)
        elif not one.loading or one.is_due(now):
            self._make_durable(one)

    def _refuse_late(self, one: Round, now_us: int) -> None:
        """Who has waited for as long as it wants to, for a catalog that has no room, hears that.
        The round stays as it is: the rank may load it again.
        """
        if self._desk.full is None:
            return
        late = [each for each in one.confirming if each.until_us <= now_us]
        for each in late:
            self._desk.fail(each.session, each.request, self._desk.full)
        one.confirming = [each for each in one.confirming if each not in late]

    def _make_durable(self, one: Round) -> None:
        one.settling = True

        def durable() -> None:
            one.settled = True
            self._confirm_all(one)

        self._desk.persist((_entry(one),), durable)

    def _confirm_all(self, one: Round) -> None:
        for each in one.confirming:
            one.confirm(each.rank, each.turn)
            self._desk.send(each.session, each.request, LoadConfirmed())
        self._forget_asked(one)

    def _overrule(self, one: Round, reason: str) -> None:
        for each in one.confirming:
            self._desk.send(each.session, each.request, LoadConfirmed(reason))
        self._forget_asked(one)

    def _forget_asked(self, one: Round) -> None:
        one.confirming.clear()
        if one in self._asked:
            self._asked.remove(one)

    # ----------------------------------------------------------------------- time and sessions

    def tick(self) -> None:
        for one in [one for one in self._held if self._until_us(one) <= self._desk.now_us]:
            self._let_go(one)
        for one in list(self._asked):
            self._settle(one)

    def released(self, session: Session) -> None:
        """Note that a reader is done: it has given up what it has not confirmed."""
        for run, number, step, turn, rank in self._loading.pop(session, ()):
            one = self._known(run, number, step).get(turn)
            if one is not None and one.loading.get(rank) == session:
                del one.loading[rank]

    def session_closed(self, session: Session) -> None:
        self.released(session)
        for one in self._asked:
            one.confirming = [each for each in one.confirming if each.session != session]
        for one in [one for one in self._held if one.is_abandoned]:
            self._let_go(one)

    def _until_us(self, one: Round) -> int:
        """Until when it is held; at a restart nobody knows the time yet."""
        one.until_us = one.until_us or self._desk.now_us + ROUND_HELD_US
        return one.until_us

    def _hold(self, one: Round) -> None:
        assert one.chosen is not None
        one.pin = self._new_pin()
        one.chosen.pins.add(one.pin)
        self._held.append(one)

    def _let_go(self, one: Round) -> None:
        if one in self._held and one.chosen is not None:
            self._held.remove(one)
            one.chosen.pins.discard(one.pin)
            self._unpinned(one.chosen)


def _entry(one: Round) -> catalog.LaunchResolved:
    return catalog.LaunchResolved(
        one.id.run, one.launch.number, one.turn, one.id, by_number=one.by_number
    )


def _instead(one: Round, message: ConfirmLoad) -> str:
    if one.id != message.checkpoint:
        return f"the launch resolves to {one.id} now"
    return one.why_not
