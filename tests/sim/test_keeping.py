"""Histories in which people say what stays of two runs, beside names, pins, deletions and faults,
a wall clock that jumps among them: what the rules keep never expires, and what they do not keep
goes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ckpt.format.messages.keeping import Retention
from ckpt.plan.keeping.retention import Verdict, judged
from ckpt.protocol.coordinator.keeping import retaining
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from tests.landing import PLANTED, in_turn
from tests.sim.aimed import catalog_windows, kill_coordinator
from tests.sim.histories import ends_of, run_each
from tests.sim.keep_nodes import LATE_S, KeepWorld, built
from tests.sim.label_nodes import RUNS
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.rank_node import RankNode
from tests.sim.restarts import check_restart
from tests.sim.scenario import settle
from tests.sim.test_labels import FAULTS
from tests.sim.windows import Aim

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 24
"""Of each half: a landing runs one."""
STEPS, LAST_STEPS = (10, 20, 30, 40, 50), (60, 70, 80)
WINDOWS = tuple(catalog_windows("RetentionSaid", "CheckpointTombstoned", "AttemptDecided"))
PASSES_MAX = 6
FOUND_BY = 150
"""One of so many seeds finds a planted bug."""


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each change of rules ended, and `expired` for each step that did)."""
    world = built(seed)
    rng = world.clock.rng
    keep = rng.choice([None, 1, 2])
    world.coordinator.machine_policy = replace(world.coordinator.machine_policy, keep=keep)
    world.rules.clusters = Retention(last=keep)
    world.start()
    world.gap_us = gap_us = rng.choice([30_000, 300_000])
    nodes = _launch(world, STEPS)
    world.say(6)
    world.label(rng.choice([0, 4]))
    _befall(world)
    world.clock.pass_time(8 * gap_us)
    for node in nodes:
        node.crash()
    if seed % 2:
        world.lose_catalog()
    world.clock.pass_time(rng.choice([0, 0, 2_000_000]))
    world.heal()
    nodes = _launch(world, LAST_STEPS)
    world.say(rng.choice([0, 3]))
    settle(world, nodes)
    if not world.clock.run(lambda: not any(k.waits for k in world.keepers), SETTLE_US):
        raise Violation(f"P4: nobody answers {[k.name for k in world.keepers if k.waits]}")
    world.clock.pass_time(int(LATE_S * 1e6))
    world.check_left()
    check_restart(world)
    ends = [end for keeper in world.keepers for end in keeper.ends]
    return world.clock.steps, ends + ["expired"] * world.rules.expired


def _launch(world: KeepWorld, steps: tuple[int, ...]) -> list[RankNode]:
    return [node for run in RUNS for node in world.launch(steps, world.gap_us, 200, run)]


def _befall(world: KeepWorld) -> None:
    rng, within_us = world.clock.rng, 8 * world.gap_us
    for _ in range(rng.choice([0, 1, 2])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, within_us), lambda fault=fault: fault(world))
    if rng.random() < 0.3:
        world.clock.after(rng.randint(0, within_us), world.set_clock)
    if rng.random() < 0.75:
        window, passes = rng.choice(WINDOWS), rng.randint(1, PASSES_MAX)
        world.windows.aim(Aim(window, passes, lambda node: kill_coordinator(world, node)))


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
@pytest.mark.timeout(600)
def test_what_rules_keep_never_expires_and_the_rest_goes(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert {"kept", "lost", "expired"} <= set(ends)


def _judged_early(*asked: Any) -> list[Verdict]:
    committed, rules, now_s = asked
    return judged(committed, rules, now_s + 1.5)


def _judged_at_commits_alone(self: Retaining) -> None:
    """Time alone makes nothing expire."""


def _holds_nothing(one: KeptCheckpoint, is_needed: bool) -> str:
    return ""


PLANTS: Mapping[str, tuple[object, str, object, int]] = {
    "by-age-too-early": (retaining, "judged", _judged_early, 0),
    "by-age-at-commits-alone": (Retaining, "tick", _judged_at_commits_alone, 50),
    "pinned-ones-too": (retaining, "_held_text", _holds_nothing, 4),
}
"""By name: what is replaced, by what, and the first seed that is tried."""


@pytest.mark.parametrize("name", in_turn([*PLANTS], every=PLANTED, first=1))
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, planted, begin = PLANTS[name]
    monkeypatch.setattr(owner, attribute, planted)
    with pytest.raises(Violation):
        run_each(run_seed, FOUND_BY, begin)
