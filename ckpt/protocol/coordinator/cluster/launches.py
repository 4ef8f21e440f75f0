"""Which start of a run a rank belongs to, and which launches may still save.

A launch is joined by reading or saving ranks and *begins* with its first save; from then on older
launches are fenced. Which number a key stands for, and which processes hold a launch without a key,
is durable before a rank gets its number: otherwise a coordinator that restarts while ranks still
join would split the launch in two. Which launch has begun is read from the attempts that it opened.
A process that joins again says itself since when it is here and what it saved last.

A catalog that was made from the targets knows no launch's key. Ranks that had joined before say it
again, and their old number; one that joins for the first time may have come before them, and have
begun a launch of a new number. One key is one launch: they get that one's number, and `get` finds
it under either.

Invariants: ranks of one launch share one world size; a rank has one live process; `begun` only
grows; no two launches of a run have one key.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.errors import Busy, Fenced, Refused, Unavailable
from ckpt.base.ids import LaunchNumber, RunName, check_run_name
from ckpt.base.limits import WORLD_SIZE_MAX
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.launches import Departure, JoinLaunch, TrainerLeft
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry
from ckpt.protocol.coordinator.cluster.launch import Former, Launch, LaunchedRank, Run, Saved
from ckpt.protocol.coordinator.image import CatalogRow, LaunchRow
from ckpt.protocol.events import Session

LAUNCHES_KEPT = 256
"""Launches of each run that are kept; older ones without a live process are forgotten."""
UNSAVED_RUNS_MAX = 1024
"""Runs of which no save is known, and in which nobody is at work, that are kept."""
UNSAVED_RUNS_BATCH = 64
"""How many more gather before they are forgotten together."""


class Launches:
    """I number launches and say who is fenced. I know nothing of attempts."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._counter = 0
        self.runs: dict[RunName, Run] = {}
        """Those that saved go with their last trace (`forget_run`), of others the newest stay."""
        #: Of how many runs are looked at next.
        self._crowded = 0
        self._by_session: dict[Session, list[LaunchedRank]] = {}
        self._reading: dict[Session, list[Launch]] = {}

    def join(
        self, session: Session, message: JoinLaunch, now_us: int, *, from_stager: bool
    ) -> tuple[Launch, tuple[CatalogEntry, ...]]:
        """The launch of this process, and what must be durable before the answer.

        Raises Refused (bad numbers, other world size) or Busy (two live processes).
        """
        check_run_name(message.run)
        if not 0 < message.world_size <= WORLD_SIZE_MAX:
            raise Refused(f"world size {message.world_size}: 1 to {WORLD_SIZE_MAX} are allowed")
        if not 0 <= message.rank < message.world_size:
            raise Refused(f"rank {message.rank} does not fit world size {message.world_size}")
        run = self.runs.setdefault(message.run, Run())
        entries: list[CatalogEntry] = []
        found = self._find(run, message, entries)
        launch = found or self._new(run, message)
        if launch.world_size != message.world_size:
            raise Refused(
                f"launch {launch.key!r} of run {message.run!r} has world size {launch.world_size}, "
                f"rank {message.rank} says {message.world_size}",
                hint="give every start of the run its own launch key",
            )
        if message.reads and launch.key is not None:
            # A helper of the rank, perhaps: the seat is its trainer's, also while that is away.
            if session not in launch.readers:
                self._reading.setdefault(session, []).append(launch)
            launch.readers.add(session)
            entered = False
        else:
            entered = self._enter(launch, session, message, now_us, from_stager)
        if found is None or self._learns_key(launch, message):
            entries.append(
                catalog.LaunchNumbered(message.run, launch.number, launch.key, launch.world_size)
            )
        if found is None:
            entries += self._forget_oldest(message.run, run)
            entries += self._forget_unsaved()
        if entered and launch.key is None and not launch.closed:
            entries.append(
                catalog.LaunchEntered(message.run, launch.number, message.rank, message.process)
            )
        return launch, tuple(entries)

    def recover(self, run: RunName, number: LaunchNumber, row: LaunchRow) -> Launch:
        """A launch that was joined before this coordinator started."""
        launch = Launch(number, row.key, row.world_size)
        for rank, process in sorted(row.processes.items()):
            launch.members[rank] = LaunchedRank(process)
        self.runs.setdefault(run, Run()).launches[number] = launch
        return launch

    def recover_begun(self, row: CatalogRow) -> None:
        """A launch that has opened an attempt before this coordinator started; files have none."""
        if row.launch == NO_LAUNCH:
            return
        known, number = self.runs.setdefault(row.checkpoint.run, Run()), row.launch
        fresh = Launch(number, row.launch_key, row.world_size, closed=True, numbered=False)
        launch = known.launches.setdefault(number, fresh)
        launch.all_saved = launch.all_saved or row.record != b""
        known.begun = max(known.begun, number)

    def begin(self, run: RunName, number: LaunchNumber) -> bool:
        """Note the launch's first save; True when it is the first.

        Raises Fenced when a newer one has begun.
        """
        known = self.runs[run]
        check_not_fenced(run, number, known.begun)
        if number == known.begun:
            return False
        known.begun = number
        return True

    def is_open(self, run: RunName) -> bool:
        """Whether a process of the newest launch that has saved has a store open."""
        known = self.runs.get(run)
        newest = None if known is None else known.launches.get(known.begun)
        return newest is not None and any(member.live for member in newest.members.values())

    def begun(self, run: RunName) -> LaunchNumber:
        """The newest launch that has saved; 0 before the first."""
        known = self.runs.get(run)
        return known.begun if known is not None else LaunchNumber(0)

    def get(self, run: RunName, number: LaunchNumber) -> Launch | None:
        """By its number, or by another one that it had before its catalog was lost."""
        known = self.runs.get(run)
        if known is None:
            return None
        return known.launches.get(known.renumbered.get(number, number))

    def joined(self, run: RunName, number: LaunchNumber) -> Launch:
        """The launch that somebody says to have joined. Raises Refused, but for one of an earlier
        term Unavailable: its ranks may be about to come back to a catalog that does not know them.
        """
        launch = self.get(run, number)
        if launch is not None:
            return launch
        if 0 < number >> 32 < self._term:
            raise Unavailable(f"launch {number} of run {run!r} has not come back yet")
        raise Refused(f"launch {number} of run {run!r} was never joined")

    def trainer_left(self, session: Session, message: TrainerLeft, now_us: int) -> bool:
        """Note how a process left; True when the rank's current one has ended. That also ends the
        other ranks that it joined as, but for those with a stager, which reports their end.
        """
        launch = self.get(message.run, message.launch)
        if launch is None:
            return False
        member = launch.members.get(message.rank)
        if member is None or member.process != message.process or session not in member.sessions:
            return False
        if message.how is not Departure.ENDED:
            member.store_closed(session, unwatched=message.how is Departure.UNWATCHED)
            return False
        for other in launch.members.values():
            is_its = other is member or (other.process == member.process and not other.stagers)
            if is_its and not other.left:
                other.left_us = now_us
        return True

    def session_closed(self, session: Session, now_us: int) -> None:
        for member in self._by_session.pop(session, ()):
            member.session_ended(session, now_us)
        for launch in self._reading.pop(session, ()):
            launch.readers.discard(session)

    # ----------------------------------------------------------------------- inside

    def _find(self, run: Run, message: JoinLaunch, entries: list[CatalogEntry]) -> Launch | None:
        if message.launch is not None:
            return self._returned(run, message, message.launch, entries)
        if message.key is not None:
            return _of_key(run, message.key)
        newest_first = sorted(run.launches.values(), key=lambda launch: -launch.number)
        keyless = next(
            (
                one
                for one in newest_first
                if one.key is None and not one.closed and one.world_size == message.world_size
            ),
            None,
        )
        if keyless is None:
            return None
        member = keyless.members.get(message.rank)
        return keyless if member is None or member.process == message.process else None

    def _returned(
        self, run: Run, message: JoinLaunch, said: LaunchNumber, entries: list[CatalogEntry]
    ) -> Launch:
        """The launch of a rank that has joined before, under the number `said`."""
        number = run.renumbered.get(said, said)
        known = run.launches.get(number)
        if known is None and not 0 < number < self._term << 32:
            raise Refused(f"launch {number} was never given out by this coordinator")
        keyless = known is None or not known.numbered
        same = _of_key(run, message.key) if keyless and message.key is not None else None
        if same is None or same is known:
            return known or self._adopted(run, message, number)
        if same.world_size != message.world_size:
            return same  # Which refuses it.
        if known is not None and run.begun == number > same.number:
            # It has saved; the other's number is older, and only a reader still said that one.
            entries.append(catalog.LaunchForgotten(message.run, same.number))
            return self._merge(run, known, same)
        return self._merge(run, same, known or Launch(number, None, message.world_size))

    def _merge(self, run: Run, kept: Launch, gone: Launch) -> Launch:
        """One start that was known as two launches: all of its ranks get `kept`'s number."""
        run.launches.pop(gone.number, None)
        for old, now in run.renumbered.items():
            if now == gone.number:
                run.renumbered[old] = kept.number
        run.renumbered[gone.number] = kept.number
        kept.key = kept.key or gone.key
        kept.members = gone.members | kept.members
        kept.saved = gone.saved | kept.saved
        kept.all_saved |= gone.all_saved
        kept.guards.absorb(gone.guards)
        kept.counted = None
        for session in gone.readers:
            kept.readers.add(session)
            self._reading[session].append(kept)
        return kept

    def _adopted(self, run: Run, message: JoinLaunch, number: LaunchNumber) -> Launch:
        launch = Launch(number, message.key, message.world_size, closed=True, numbered=False)
        run.launches[launch.number] = launch
        return launch

    def _learns_key(self, launch: Launch, message: JoinLaunch) -> bool:
        """A rank that comes back says what the catalog lost. Another rank of this start whose
        stager is new knows the key alone: without it, it would begin a launch that fences the rest.
        """
        if launch.numbered or message.launch is None or message.key is None:
            return False
        launch.key = message.key
        launch.numbered = True
        return True

    def _new(self, run: Run, message: JoinLaunch) -> Launch:
        self._counter += 1
        number = LaunchNumber(self._term << 32 | self._counter)
        launch = Launch(number, message.key, message.world_size, counted=set())
        run.launches[number] = launch
        return launch

    def _forget_oldest(self, name: RunName, run: Run) -> list[CatalogEntry]:
        """Evaluation jobs join too, as often as they look: what is old and empty goes."""
        surplus = max(0, len(run.launches) - LAUNCHES_KEPT)
        empty = [n for n in sorted(run.launches) if n != run.begun and not run.launches[n].live]
        for number in empty[:surplus]:
            del run.launches[number]
        run.renumbered = {old: now for old, now in run.renumbered.items() if now in run.launches}
        return [catalog.LaunchForgotten(name, number) for number in empty[:surplus]]

    def _forget_unsaved(self) -> list[CatalogEntry]:
        """Whoever asks for a run that never was joins one: of these the newest stay."""
        if len(self.runs) <= max(UNSAVED_RUNS_MAX, self._crowded) + UNSAVED_RUNS_BATCH:
            return []
        idle = [name for name, run in self.runs.items() if not run.begun and run.is_idle]
        idle.sort(key=lambda name: max(self.runs[name].launches, default=0))
        gone = [(name, self._forget(name)) for name in idle[: max(0, len(idle) - UNSAVED_RUNS_MAX)]]
        self._crowded = len(self.runs)
        return [catalog.LaunchForgotten(name, one) for name, numbers in gone for one in numbers]

    def forget_run(self, name: RunName) -> tuple[LaunchNumber, ...] | None:
        """Nothing else of it is known any more: which launches are forgotten. None while somebody
        is at work there, for whom it matters which one has begun.
        """
        run = self.runs.get(name)
        if run is not None and not run.is_idle:
            return None
        return self._forget(name)

    def _forget(self, name: RunName) -> tuple[LaunchNumber, ...]:
        run = self.runs.pop(name, None)
        return () if run is None else tuple(run.launches)

    def _enter(
        self,
        launch: Launch,
        session: Session,
        message: JoinLaunch,
        now_us: int,
        from_stager: bool,
    ) -> bool:
        """Note the process; True when it was not known to hold this rank."""
        former: Former | None = None
        member = launch.members.get(message.rank)
        if member is not None and member.process != message.process:
            if member.live:
                raise Busy(
                    f"rank {message.rank} of launch {launch.key!r} of run {message.run!r} "
                    f"is already held by the live process {member.process}",
                    hint="two processes must not share (run, launch, rank): end that one; if its "
                    "host has died, try again in 30 s",
                )
            former, member = member.as_former(now_us), None
        entered = member is None
        if member is None:
            member = launch.members[message.rank] = LaunchedRank(message.process, former)
        if entered or message.came_ago_us is not None:
            member.came(now_us - max(0, message.came_ago_us or 0))
        if message.saved_step is not None:
            at_us = now_us - max(0, message.saved_ago_us)
            saved = Saved(message.process, message.saved_step, at_us)
            launch.told_saved(message.rank, saved)
        if session not in member.sessions:
            self._by_session.setdefault(session, []).append(member)
        member.joined(session, from_stager=from_stager)
        return entered


def _of_key(run: Run, key: str) -> Launch | None:
    return next((launch for launch in run.launches.values() if launch.key == key), None)


OLDER_HINT: Final = (
    "this process belongs to an older start of the run: end it; two jobs need two run names"
)


def check_not_fenced(run: RunName, number: LaunchNumber, begun: LaunchNumber) -> None:
    """Raises Fenced when a newer launch of the run has begun."""
    if number < begun:
        raise Fenced(
            f"a newer launch of run {run!r} has begun; launch {number} can save no more",
            hint=OLDER_HINT,
        )
