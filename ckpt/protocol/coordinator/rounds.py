"""What the ranks of one launch resolved together, and when that can no longer change.

    CHOSEN --a rank has loaded it, and nobody is loading--> SETTLING --row durable--> SETTLED
      |  ^                                                                               |
      +--+ its damage is proved, or it is gone: all ranks walk back           never changes again

A rank may return what it loaded only when its round is settled. A rank that finishes while others
are still loading waits for them, so that damage which one of them meets makes all walk back. It
never waits for a rank that is not loading: one rank may load alone and pass on what it got. Damage
that is proved once a round is settled is an error for the ranks that come later, which names both
steps; two steps never meet silently in one launch. A wait that is too long only settles the round
earlier.

Rounds of a launch are numbered by turns: what a rank loads before its own first save is turn 0;
after it, the n-th resolution of each rank meets the n-th of every other.

What is lost here and whole in an object store is read from there by all ranks of the launch: no
reason to walk back.

Invariants: nobody is told of a confirmation before the round is durable; a settled round keeps its
checkpoint, also across a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ckpt.base.errors import CkptError, Lost
from ckpt.base.ids import CheckpointId, LaunchNumber, Rank, RunName
from ckpt.format.messages import ConfirmLoad, LoadBegan, LoadConfirmed
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.launches import Launch
from ckpt.protocol.events import Session

ROUND_HELD_US = 300_000_000
"""So long a resolution is held for ranks of its launch that have not come for it yet."""
RANKS_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class _Confirming:
    """A rank that has loaded and waits to be told that it may return it."""

    session: Session
    request: int
    rank: Rank
    until_us: int


@dataclass(slots=True, eq=False)
class Round:
    """One resolution that all ranks of a launch share."""

    launch: Launch
    turn: int
    id: CheckpointId
    chosen: Checkpoint | None
    """None for what was settled before a restart and is deleted."""
    skipped: tuple[str, ...] = ()
    """Told to every rank, not only to the one that found the damage."""
    pin: int = 0
    """For the ranks that are still to come."""
    until_us: int = 0
    ranks: set[Rank] = field(default_factory=set)
    #: Who has taken it.
    loading: dict[Rank, Session] = field(default_factory=dict)
    #: Who is reading it and has not said how that ended.
    confirming: list[_Confirming] = field(default_factory=list)
    confirmed: set[Rank] = field(default_factory=set)
    #: Who was told, as far as this coordinator knows.
    from_store: bool = False
    """The ranks read it from an object store: its damage here ends nothing."""
    settling: bool = False
    settled: bool = False

    @property
    def stands(self) -> bool:
        """It can be read, or can no longer be changed."""
        return self.settling or self.is_readable

    @property
    def is_readable(self) -> bool:
        if self.chosen is None:
            return False
        is_lost = self.chosen.state is RowState.DAMAGED
        return self.chosen.state is RowState.COMMITTED or (is_lost and self.from_store)

    @property
    def is_complete(self) -> bool:
        return len(self.ranks) >= self.launch.world_size

    @property
    def is_abandoned(self) -> bool:
        return not self.launch.live

    @property
    def why_not(self) -> str:
        """Why it cannot be read any more."""
        if self.chosen is None or self.chosen.state is RowState.TOMBSTONED:
            return f"{self.id} is deleted"
        return f"{self.id} is lost ({self.chosen.reason})"

    def mix(self, older: CheckpointId | None) -> CkptError:
        """What a rank is told that can have neither this step nor, without a mix, another."""
        known = sorted(self.confirmed)
        named = ", ".join(map(str, known[:RANKS_NAMED_MAX]))
        more = ", ..." if len(known) > RANKS_NAMED_MAX else ""
        whose = f"ranks {named}{more} of this launch have" if known else "this launch has"
        other = "no older step" if older is None else str(older)
        return Lost(
            f"{self.why_not}, and {whose} loaded it already: with {other} on the others, two steps "
            "would meet in one job",
            hint=f"end all ranks and start them again: a new launch resolves to {other}",
        )


Rounds = dict[tuple[RunName, LaunchNumber], dict[int, Round]]


class LaunchRounds:
    """I keep every launch's rounds and the pins that hold them for late ranks."""

    def __init__(
        self,
        desk: Desk,
        checkpoints: Checkpoints,
        new_pin: Callable[[], int],
        unpinned: Callable[[Checkpoint], None],
    ) -> None:
        self._desk = desk
        self._checkpoints = checkpoints
        self._new_pin = new_pin
        self._unpinned = unpinned
        self._rounds: Rounds = {}
        self._held: list[Round] = []
        #: Rounds that some rank has not come for.
        self._asked: list[Round] = []
        #: Rounds with ranks that wait for a confirmation.
        self._served: dict[tuple[RunName, LaunchNumber, Rank], int] = {}
        #: The turn after the last one that a rank has taken.
        self._loading: dict[Session, list[tuple[RunName, Launch, int, Rank]]] = {}
        #: What is read over which session, to hear of readers that go away.

    def recover(self, run: RunName, launch: Launch, resolved: dict[int, CheckpointId]) -> None:
        """What was settled before this coordinator started."""
        for turn, id in resolved.items():
            chosen = self._checkpoints.get(id)
            found = Round(launch, turn, id, chosen, settling=True, settled=True)
            self._rounds.setdefault((run, launch.number), {})[turn] = found

    def get(self, run: RunName, launch: Launch, turn: int) -> Round | None:
        return self._rounds.get((run, launch.number), {}).get(turn)

    def next_turn(self, run: RunName, launch: Launch, rank: Rank) -> int:
        """The turn of this rank's next resolution."""
        if not launch.has_saved(rank):
            return 0
        return max(1, self._served.get((run, launch.number, rank), 1))

    def take(
        self, launch: Launch, turn: int, rank: Rank, chosen: Checkpoint, skipped: tuple[str, ...]
    ) -> None:
        """A rank was told this checkpoint for that turn."""
        run = chosen.id.run
        one = self.get(run, launch, turn)
        if one is None or (one.chosen is not chosen and not one.settling):
            one = self._choose(launch, turn, chosen, skipped, one)
        # What some have from the tier and others from a store is the same generation.
        one.from_store = chosen.state is RowState.DAMAGED
        one.ranks.add(rank)
        key = (run, launch.number, rank)
        if turn:
            self._served[key] = max(self._served.get(key, 1), turn + 1)
        if one.is_complete:
            self._let_go(one)

    def _choose(
        self,
        launch: Launch,
        turn: int,
        chosen: Checkpoint,
        skipped: tuple[str, ...],
        before: Round | None,
    ) -> Round:
        until_us = self._desk.now_us + ROUND_HELD_US
        one = Round(launch, turn, chosen.id, chosen, skipped, self._new_pin(), until_us)
        chosen.pins.add(one.pin)
        self._held.append(one)
        turns = self._rounds.setdefault((chosen.id.run, launch.number), {})
        turns[turn] = one
        catalog.forget_old_turns(turns, turn)
        if before is not None:
            self._let_go(before)
            one.loading.update(before.loading)  # They will hear, and load this one.
            self._overrule(before, f"the launch resolves to {one.id} now")
        return one

    # ----------------------------------------------------------------------- loads

    def began(self, session: Session, launch: Launch, message: LoadBegan) -> None:
        """A rank reads; who finishes before it waits for it."""
        one = self.get(message.run, launch, message.turn)
        if one is not None:
            one.loading[message.rank] = session
            seat = (message.run, launch, message.turn, message.rank)
            self._loading.setdefault(session, []).append(seat)

    def confirm(self, session: Session, request: int, launch: Launch, message: ConfirmLoad) -> None:
        """A rank has loaded this checkpoint, whole and verified: may it return it?"""
        one = self.get(message.run, launch, message.turn) or self._adopted(launch, message)
        if one is None or one.id != message.checkpoint or not one.stands:
            now = f"{message.checkpoint} is deleted" if one is None else _instead(one, message)
            self._desk.send(session, request, LoadConfirmed(now))
            return
        one.loading.pop(message.rank, None)
        until_us = self._desk.now_us + message.timeout_us
        one.confirming.append(_Confirming(session, request, message.rank, until_us))
        if one not in self._asked:
            self._asked.append(one)
        self._settle(one)

    def _adopted(self, launch: Launch, message: ConfirmLoad) -> Round | None:
        """A restart lost what was chosen and not settled: the first that comes names it."""
        chosen = self._checkpoints.get(message.checkpoint)
        if chosen is None or chosen.state is RowState.TOMBSTONED:
            return None
        return self._choose(launch, message.turn, chosen, (), None)

    def _settle(self, one: Round) -> None:
        """Answer those who wait, as soon as nobody's load can change the answer."""
        now = self._desk.now_us
        if one.settled:
            self._confirm_all(one)
        elif one.settling or not one.confirming:
            return
        elif not one.is_readable:
            self._overrule(one, one.why_not)
        elif not one.loading or any(each.until_us <= now for each in one.confirming):
            self._make_durable(one)

    def _make_durable(self, one: Round) -> None:
        one.settling = True

        def durable() -> None:
            one.settled = True
            self._confirm_all(one)

        number = one.launch.number
        entry = catalog.LaunchResolved(one.id.run, number, one.turn, one.id)
        self._desk.persist((entry,), durable)

    def _confirm_all(self, one: Round) -> None:
        for each in one.confirming:
            one.confirmed.add(each.rank)
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
        for one in [one for one in self._held if one.until_us <= self._desk.now_us]:
            self._let_go(one)
        for one in list(self._asked):
            self._settle(one)

    def released(self, session: Session) -> None:
        """A reader is done: what it has not confirmed it has given up."""
        for run, launch, turn, rank in self._loading.pop(session, ()):
            one = self.get(run, launch, turn)
            if one is not None and one.loading.get(rank) == session:
                del one.loading[rank]

    def session_closed(self, session: Session) -> None:
        self.released(session)
        for one in self._asked:
            one.confirming = [each for each in one.confirming if each.session != session]
        for one in [one for one in self._held if one.is_abandoned]:
            self._let_go(one)

    def _let_go(self, one: Round) -> None:
        if one in self._held and one.chosen is not None:
            self._held.remove(one)
            one.chosen.pins.discard(one.pin)
            self._unpinned(one.chosen)


def _instead(one: Round, message: ConfirmLoad) -> str:
    if one.id != message.checkpoint:
        return f"the launch resolves to {one.id} now"
    return one.why_not
