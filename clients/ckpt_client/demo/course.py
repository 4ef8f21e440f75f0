"""What happens in the demo, in order; I kill and measure, and judge nothing."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.demo.cluster import DemoCluster, start_cluster
from ckpt_client.demo.fleet import Fleet, FleetPlan, RankSaid
from ckpt_client.demo.options import DemoOptions
from ckpt_client.demo.screen import Screen
from ckpt_client.demo.strike import AttemptNow, Glimpse, StatusNow, StrikeWatch, choose_victims
from ckpt_client.demo.words import Finished, Resumed, SaveHeld, SaveReturned, StepDone
from ckpt_client.local.processes import find_marked, frozen, kill_processes

VICTIM_COUNT: Final = 2
WATCH_S: Final = 0.003
"""Between two looks at a burst."""
HEAR_S: Final = 0.2
CALM_S: Final = 0.1
"""Counters of the last burst come a moment after it has ended."""
CALM_TIMEOUT_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0
SILENCE_S: Final = 120.0
"""No word from any rank for so long is a failure."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Who is to be killed, and when: known before the moment comes."""

    watch: StrikeWatch
    victims: tuple[str, ...]
    target_pids: tuple[int, ...]
    stager_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StrikeRecord:
    """What was killed, and when."""

    glimpse: Glimpse
    victims: tuple[str, ...]
    attempt_after: AttemptNow | None
    """The save that was under way, as the coordinator knew it when all were dead; None if it had
    ended.
    """
    trainer_count: int
    stager_count: int
    killed_s: float
    """On the monotonic clock: everything is dead."""
    trained_step: int
    newest_committed: int | None


@dataclass(slots=True)
class Said:
    """What the ranks of one launch said."""

    resumed: dict[int, Resumed] = field(default_factory=dict)
    saves: list[SaveReturned] = field(default_factory=list)
    finished: dict[int, Finished] = field(default_factory=dict)
    step: int = 0
    """The last step that every rank has done."""
    first_step_s: float | None = None
    """On the monotonic clock: all ranks had done a step."""
    steps: dict[int, int] = field(default_factory=dict)
    """rank -> the last step that it has done."""
    held: dict[int, int] = field(default_factory=dict)
    """rank -> the step before whose save it waits."""


@dataclass(slots=True)
class CourseOutcome:
    """All that the judge needs."""

    ranks: int
    steps: int
    control: dict[int, Finished] = field(default_factory=dict)
    strike: StrikeRecord | None = None
    before: Said = field(default_factory=Said)
    after: Said = field(default_factory=Said)
    committed_before: list[StepView] = field(default_factory=list)
    """As of the strike; redundancy is that of the commit."""
    committed: list[StepView] = field(default_factory=list)
    """At the end."""
    stopped: bool = False
    """The cluster ended when it was asked to."""


class Course:
    """I run once. Processes that I leave on an error carry the caller's mark."""

    def __init__(self, options: DemoOptions, directory: Path, screen: Screen, mark: str) -> None:
        self._options = options
        self._directory = directory
        self._screen = screen
        self._mark = mark
        self._outcome = CourseOutcome(options.ranks, options.steps)

    def run(self) -> CourseOutcome:
        """Raises CkptError when something that must not fail failed."""
        options, outcome = self._options, self._outcome
        self._screen.begin("control run, without ckpt", options.steps)
        said = Said()
        with Fleet(self._plan("", "control")) as fleet:
            self._listen(fleet, said)
        outcome.control = said.finished

        self._screen.begin("starting the cluster", 0)
        url, cluster = start_cluster(self._directory / "cluster", options.targets, options.code)
        try:
            self._screen.note(f"{options.targets} targets, code {options.code}, restart=never")
            self._screen.begin("disturbed run", options.steps)
            with Fleet(self._plan(url, "first", hold_from=2 * options.save_every)) as fleet:
                outcome.strike = self._disturb(fleet, cluster, outcome.before)
            if outcome.strike is not None:
                self._screen.begin("resumed run", options.steps)
                with Fleet(self._plan(url, "second")) as fleet:
                    self._listen(fleet, outcome.after)
            outcome.committed = cluster.committed()
        finally:
            self._screen.begin("stopping the cluster", 0)
            outcome.stopped = cluster.stop()
        return outcome

    # ----------------------------------------------------------------------- the strike

    def _disturb(self, fleet: Fleet, cluster: DemoCluster, said: Said) -> StrikeRecord | None:
        """Hit a burst, from the second on; None when the training ended before one was hit."""
        self._listen(fleet, said)
        while not fleet.silent:
            aim = self._take_aim(cluster, min(said.held.values()))
            said.held.clear()
            with frozen(aim.target_pids):
                fleet.let_go()
                glimpse = self._watch(fleet, cluster, said, aim.watch)
                if glimpse is not None:
                    return self._strike(fleet, cluster, said, glimpse, aim)
            self._listen(fleet, said)
        return None

    def _take_aim(self, cluster: DemoCluster, step: int) -> Aim:
        """At the targets whose loss hurts the newest checkpoint most, and at all stagers."""
        stored = self._calm(cluster).fragments
        committed = cluster.committed()
        if not committed:
            raise CkptError(f"nothing is committed before step {step}: see `ckpt demo --keep`")
        columns = cluster.show(committed[-1].step).columns
        victims = choose_victims(columns, Code.parse(self._options.code).k, VICTIM_COUNT)
        pids = {each.id: each.pid for each in cluster.status().targets}
        return Aim(
            watch=StrikeWatch(step, stored, stored // len(committed)),
            victims=victims,
            target_pids=tuple(pid for name in victims if (pid := pids[name]) is not None),
            stager_pids=self._stagers(),
        )

    def _calm(self, cluster: DemoCluster) -> StatusNow:
        """The status when no save is under way and all that was stored is counted."""
        deadline_s = time.monotonic() + CALM_TIMEOUT_S
        before, now = None, cluster.status()
        while now.attempts or before is None or before.fragments != now.fragments:
            if time.monotonic() > deadline_s:
                raise CkptError(f"the save before is not committed after {CALM_TIMEOUT_S:g} s")
            time.sleep(CALM_S)
            before, now = now, cluster.status()
        return now

    def _watch(
        self, fleet: Fleet, cluster: DemoCluster, said: Said, watch: StrikeWatch
    ) -> Glimpse | None:
        """The burst, as soon as it can be struck; None when it got away."""
        while not fleet.silent:
            self._hear(fleet, said, WATCH_S)
            status = cluster.status()
            if (glimpse := watch.look(status)) is not None:
                return glimpse
            if watch.is_over(status):
                break
        return None

    def _stagers(self) -> tuple[int, ...]:
        return tuple(one.pid for one in find_marked(self._mark) if one.is_stager)

    def _strike(
        self, fleet: Fleet, cluster: DemoCluster, said: Said, glimpse: Glimpse, aim: Aim
    ) -> StrikeRecord:
        """Kill the targets, and at once everybody who could still finish the save."""
        left = kill_processes(aim.target_pids, signal.SIGKILL, KILL_TIMEOUT_S)
        left |= kill_processes([*aim.stager_pids, *fleet.pids], signal.SIGKILL, KILL_TIMEOUT_S)
        fleet.kill()
        left |= set(self._stagers())
        if left or len(aim.target_pids) != len(aim.victims):
            raise CkptError(f"processes {sorted(left)} do not end, of {', '.join(aim.victims)}")
        killed_s = time.monotonic()
        attempt = cluster.status().attempt(glimpse.step)
        self._listen(fleet, said)
        committed = self._outcome.committed_before = cluster.committed()
        trainers, stagers = len(fleet.pids), len(aim.stager_pids)
        self._screen.note(
            f"step {glimpse.step}: {glimpse.fragments_stored} of {glimpse.fragments_total} "
            f"fragments were stored when SIGKILL hit targets {' and '.join(aim.victims)}"
        )
        self._screen.note(f"then {trainers} trainers and {stagers} stagers, at step {said.step}")
        return StrikeRecord(
            glimpse=glimpse,
            victims=aim.victims,
            attempt_after=attempt,
            trainer_count=trainers,
            stager_count=stagers,
            killed_s=killed_s,
            trained_step=said.step,
            newest_committed=committed[-1].step if committed else None,
        )

    # ----------------------------------------------------------------------- listening

    def _plan(self, url: str, launch: str, hold_from: int = 0) -> FleetPlan:
        options = self._options
        return FleetPlan(
            ranks=options.ranks,
            seed=options.seed,
            steps=options.steps,
            save_every=options.save_every,
            width=options.width,
            url=url,
            launch=launch,
            hold_from=hold_from,
            directory=self._directory,
        )

    def _listen(self, fleet: Fleet, said: Said) -> None:
        """Until the ranks have nothing more to say, or all of them wait before a save."""
        heard_s = time.monotonic()
        while not fleet.silent and len(said.held) < self._options.ranks:
            if self._hear(fleet, said, HEAR_S):
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENCE_S:
                raise CkptError(f"no rank said anything for {SILENCE_S:g} s")

    def _hear(self, fleet: Fleet, said: Said, timeout_s: float) -> list[RankSaid]:
        heard = fleet.hear(timeout_s)
        for one in heard:
            match one.word:
                case StepDone():
                    self._note_step(one.rank, one.word, said)
                case SaveHeld():
                    said.held[one.rank] = one.word.step
                case SaveReturned():
                    said.saves.append(one.word)
                case Resumed():
                    said.resumed[one.rank] = one.word
                    if len(said.resumed) == self._options.ranks:
                        self._note_resumed(said)
                case Finished():
                    said.finished[one.rank] = one.word
        return heard

    def _note_step(self, rank: int, word: StepDone, said: Said) -> None:
        said.steps[rank] = word.step
        if len(said.steps) < self._options.ranks:
            return
        done = min(said.steps.values())
        if said.first_step_s is None:
            said.first_step_s = time.monotonic()
        if done > said.step:
            said.step = done
            self._screen.advance(done, word.loss)

    def _note_resumed(self, said: Said) -> None:
        words = said.resumed.values()
        rebuilt = sum(word.rebuilt_bytes for word in words)
        steps = sorted({word.step for word in words})
        self._screen.note(
            f"resumed from step {', '.join(map(str, steps))}, {rebuilt} bytes rebuilt from parity"
        )
