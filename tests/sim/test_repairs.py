"""Histories in which one disk after the other is emptied, more than any code survives at once, and
workers, targets and the coordinator die: what is lost is made again, and all of it stays whole (P1,
P3, P7, P13).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from ckpt.base.ids import ColumnId, PayloadId
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.repairing.lacking import Lacking
from ckpt.protocol.coordinator.repairing.places import RepairPlaces
from ckpt.protocol.coordinator.repairing.respreading import Respreader
from ckpt.protocol.coordinator.repairing.task import RepairTask
from ckpt.protocol.coordinator.repairing.tasks import Repairs
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from tests.landing import PLANTED, in_turn
from tests.sim import faults
from tests.sim.histories import ends_of, run_each
from tests.sim.oracles import Violation
from tests.sim.planted_moves import named_before_it_is_durable
from tests.sim.repair_world import (
    FAULTS,
    ROUND_US,
    Disturbance,
    check_disks,
    empty,
    lacks,
    list_again,
    read_all,
    revive,
    saved,
    worker,
)
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 4
"""Of each half: a landing runs one."""
SEEDS_SOAK = 2_000
PLANTED_SEEDS = 60


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `whole` for each round and each fault that struck while a payload was made
    again); raises Violation when a promise breaks.
    """
    world = saved(seed)
    rng = world.clock.rng
    workers = [worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    disturbance = Disturbance(world, workers)
    rotted = rng.choice([None, None, None, "F7 rot", "F8 misplaced"])
    if rotted is not None:
        faults.FAULTS[rotted](world)
    rounds = rng.choice([2, 3, 4])
    for _ in range(rounds):
        span_us = rng.choice([1_000_000, 5_000_000, 20_000_000])
        _empty_some(world, disturbance, span_us)
        disturbance.begin(span_us)
        world.clock.pass_time(span_us + 1)
        disturbance.end()
        world.heal()
        revive(world, workers)
        world.clock.run(lambda: lacks(world) == "", ROUND_US)
        if lacks(world):
            raise Violation(f"P7: not whole again after {ROUND_US // 1_000_000} s: {lacks(world)}")
    for each in workers:
        each.crash()
    list_again(world)
    check_disks(world)
    read_all(world)
    return world.clock.steps, ["whole"] * rounds + sorted(disturbance.hits)


def _empty_some(world: World, disturbance: Disturbance, within_us: int) -> None:
    """As many disks as the weakest checkpoint survives now, beside a column that has rotted; a
    second one while the first one's columns are made again.
    """
    rng = world.clock.rng
    kept = [world.coordinator.machine.checkpoints.get(id) for id in world.oracles.kept(RUN)]
    now = [world.coordinator.machine.checkpoints.redundancy(one) for one in kept if one]
    count = min((one.targets for one in now), default=0)
    if any(one is None for one in kept):
        count = 0
    count = max(0, count - len(world.rotted))
    victims = rng.sample(sorted(world.targets), min(count, rng.choice([1, 1, 2])))
    first, *others = [partial(empty, world, world.targets[id]) for id in victims] or [None]
    if first is not None:
        world.clock.after(rng.randint(0, 900_000), first)
        disturbance.hits.update(("F21 emptied", *(["F7 rot"] if world.rotted else [])))
    for another in others:
        disturbance.aim("F23 second", another, within_us)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6))
def test_what_is_lost_is_made_again_and_nothing_is_lost_meanwhile(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("whole") >= 2 * SEEDS
    rare = {"F12 at write", "F15 cut", "F22 host"}
    missed = {"F21 emptied", "F23 second", "F7 rot", *FAULTS} - rare - set(ends)
    assert not missed, "each strikes while a payload is made again"


def taken_for_done(self: Repairs, task: RepairTask, why: str, then: Callable[[int], None]) -> None:
    """What a worker had in hand when it left is there."""
    checkpoint = self._checkpoints.get(task.payload.checkpoint)
    assert checkpoint is not None
    assert checkpoint.placement is not None
    digest = checkpoint.placement[task.payload.rank].manifest_digest
    said = [
        ColumnProof(ColumnId(task.payload, j), at.target, at.boot, "", 0, 0, digest, b"")
        for j, at in task.places.items()
    ]
    self._reserver.release(task.allotment)
    self._close(task, said, why)
    then(len(said))


def kept_for_ever(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """What is too much stays."""


def dropped_at_once(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """What nobody has named goes, whoever lacks it."""
    for column, holders in sorted(checkpoint.surplus.items()):
        for id in sorted(holders):
            self._deleter.drop_column(self._members.targets[id], column)
    checkpoint.surplus.clear()


def nobody_asked(self: Repairs, task: RepairTask, why: str, then: Callable[[int], None]) -> None:
    """The word of a worker counts: its targets are not asked."""
    self._close(task, [], why)
    then(len(task.lost))


def silence_is_no_end(self: Repairs) -> None:
    """A worker that nobody hears keeps what it has in hand."""
    self.documents.tick()


def copies_are_forgotten(self: Respreader) -> None:
    """Nobody makes documents again."""


def whole_while_here(self: Lacking, *_: object) -> bool:
    """Nothing is due of a target that is here, or comes back."""
    return False


def who_has_what_is_forgotten(
    self: RepairPlaces, checkpoint: KeptCheckpoint, payload: PayloadId
) -> Allotment:
    """A place for a column is looked for as if no target had another one of its payload."""
    assert checkpoint.placement is not None
    return self._reserver.empty_allotment(checkpoint.placement[payload.rank].layout)


_look = Repairs._look


def looked_once(self: Repairs) -> None:
    """What is lost later is not seen."""
    if self._looked[0] < 0:
        _look(self)


def records_are_forgotten(self: Respreader, checkpoint: KeptCheckpoint) -> None:
    """Only indexes are made again."""
    self._spread_index(checkpoint.id)


_register = Membership._adopt


def still_counted(self: Membership, target: Target, *rest: object) -> None:
    """What a target had before it was emptied counts on."""
    proved = target.proved
    _register(self, target, *rest)  # type: ignore[arg-type]
    target.proved = proved


BEGIN = {
    records_are_forgotten: 2, taken_for_done: 8, kept_for_ever: 21, silence_is_no_end: 12,
    copies_are_forgotten: 2,
}  # fmt: skip
"""The first seed that shows it, where it is not 0."""


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    in_turn(
        [
            (RepairPlaces, "allotment", who_has_what_is_forgotten),
            (Repairs, "_look", looked_once),
            (Respreader, "_spread_record", records_are_forgotten),
            (Membership, "_adopt", still_counted),
            (Adopter, "_adopt", named_before_it_is_durable),
            (Repairs, "_end", taken_for_done),
            (Adopter, "_drop_surplus", kept_for_ever),
            (Adopter, "_settle", dropped_at_once),
            (Repairs, "_end", nobody_asked),
            (Repairs, "tick", silence_is_no_end),
            (Respreader, "tick", copies_are_forgotten),
            (Lacking, "_is_due", whole_while_here),
        ],
        every=PLANTED,
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS, BEGIN.get(bug, 0))


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
