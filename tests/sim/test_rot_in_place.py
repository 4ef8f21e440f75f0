"""Histories in which columns rot, and no target is left that might take another copy: each takes
the right bytes under its own name, whoever is struck down meanwhile (P1, P3, P7).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from ckpt.format.column import ColumnHeader
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.repairing.places import RepairPlaces
from ckpt.protocol.target import columns
from ckpt.protocol.target.columns import Columns
from ckpt.protocol.target.core import Step
from ckpt.protocol.target.disk_events import DiskFailed, RemoveFile, SyncFile
from ckpt.protocol.target.stream import Stream, seal_steps
from ckpt.testing.disk import Fault
from tests.landing import PLANTED, in_turn
from tests.sim.histories import ends_of, run_each
from tests.sim.oracles import Violation
from tests.sim.repair_world import (
    FAULTS,
    ROUND_US,
    Disturbance,
    check_disks,
    lacks,
    list_again,
    read_all,
    revive,
    saved,
    worker,
)
from tests.sim.test_scrub import truth
from tests.sim.world import CODES, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 8
"""Of each half: a landing runs one."""
SEEDS_SOAK = 1_000
PLANTED_SEEDS = 40
SCRUB_US = 2_000_000


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `mended` for each round and each fault that struck while a column was mended);
    raises Violation when a promise breaks.
    """
    code = CODES[seed % len(CODES)]
    world = saved(seed, target_count=code.n, scrub_us=SCRUB_US)
    rng = world.clock.rng
    workers = [worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    disturbance = Disturbance(world, workers)
    rounds = rng.choice([2, 3])
    for _ in range(rounds):
        span_us = rng.choice([1_000_000, 5_000_000, 20_000_000])
        _rot_some(world, code.m)
        if rng.random() < 0.2:
            world.clock.after(rng.randint(0, span_us), world.delete_one)
        if rng.random() < 0.5:
            operation = rng.choice(["write", "sync", "rename", "sync_directory"])
            disturbance.aim(f"refused {operation}", partial(_refuse, world, operation), span_us)
        disturbance.begin(span_us)
        world.clock.pass_time(span_us + 1)
        disturbance.end()
        world.heal()
        revive(world, workers)
        world.clock.run(lambda: _damaged(world) == "", ROUND_US)
        if _damaged(world):
            raise Violation(f"P7: after {ROUND_US // 1_000_000} s: {_damaged(world)}")
    for each in workers:
        each.crash()
    list_again(world)
    check_disks(world)
    for target in world.targets.values():
        if found := truth(target):
            raise Violation(f"P3: {target.id} has {found}")
    read_all(world)
    return world.clock.steps, ["mended"] * rounds + sorted(disturbance.hits)


def _rot_some(world: World, targets_max: int) -> None:
    """On so many targets at most, each of which has one column of a payload."""
    rng = world.clock.rng
    for id in rng.sample(sorted(world.targets), rng.randint(1, targets_max)):
        disk = world.targets[id].disk
        files = [f"columns/{name}" for name in disk.durable_names("columns")]
        for file in rng.sample(files, min(len(files), rng.choice([1, 1, 2, 4]))):
            disk.rot(file, rng.randrange(disk.file_bytes(file)), rng.randrange(8))
            world.rotted.append(f"{id}/{file}")


def _refuse(world: World, operation: str) -> None:
    """A step of the next file that is made on each device."""
    file = "columns" if operation == "sync_directory" else "reservation"
    for target in world.targets.values():
        target.disk.faults.append(Fault(operation, file=file, skip=world.clock.rng.choice([0, 1])))


def _damaged(world: World) -> str:
    """What is not whole, or is not known to be."""
    if lacking := lacks(world):
        return lacking
    there = {f"{id}/{f}" for id, target in world.targets.items() for f in target.disk.files()}
    if rotted := there.intersection(world.rotted):
        return f"{sorted(rotted)} have rotted"
    known = [str(column) for target in world.known_targets for column in rotten_columns(target)]
    return f"{known} are said to be damaged" if known else ""


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
def test_each_column_is_mended_where_it_lies_and_never_gone(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("mended") >= 2 * SEEDS
    struck = {*ends} - {"mended"}
    assert len({*FAULTS} & struck) > len(FAULTS) // 2, "they strike while a column is mended"
    assert len(struck - {*FAULTS}) == 4, "and the disk refuses any of its steps"


# --------------------------------------------------------------------------- planted bugs


def nowhere(self: RepairPlaces, *_: object) -> None:
    """Damage stays where no other target has room."""


_sealed = Columns._sealed


def removed_with_its_name(
    self: Columns, stream: Stream, header: ColumnHeader, failure: DiskFailed | None
) -> None:
    """A file that could not be put in its place is cleared away under the name that it was to
    have."""
    if failure is not None and stream.column in self._core.columns:
        file = f"columns/{self._core.columns[stream.column].name}"
        self._core.out.append(RemoveFile(self._core.expect(lambda _: None), file))
    _sealed(self, stream, header, failure)


def not_synced(stream: Stream, header: ColumnHeader, name: str) -> Sequence[Step]:
    """The file has its name before its bytes are durable."""
    steps = seal_steps(stream, header, name)
    return [step for step in steps if not (isinstance(step, partial) and step.func is SyncFile)]


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    in_turn(
        [
            (RepairPlaces, "_damaged_at", nowhere),
            (Columns, "_sealed", removed_with_its_name),
            (columns, "seal_steps", not_synced),
        ],
        every=PLANTED,
        first=2,
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS)


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
