"""Targets that scrub all the time, in whole histories: what they find is what was harmed.

Every target reads all it keeps each few seconds of virtual time, beside saves, loads, deletions,
crashes and restarts. A finding that nobody harmed is a false alarm; harm that is still there at the
end, and is not found, was missed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from ckpt.aio.disk_actions import perform
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.scrubbing import AskScrub, ScrubState
from ckpt.protocol.events import Received, Send, Session
from ckpt.protocol.target.at_rest.file_check import FileCheck
from ckpt.protocol.target.at_rest.scrub import Scrub
from ckpt.protocol.target.core import Core, Entry, SealedColumn
from ckpt.protocol.target.disk_events import DiskDone, ReadAt
from tests.landing import PLANTED, at_turn, in_turn, turn_of
from tests.sim.scenario import run_history, world_of
from tests.sim.target_node import TargetNode
from tests.sim.world import World

SEEDS = int(os.environ.get("CKPT_SIM_SCRUB_SEEDS", "20"))
SEEDS_SOAK = 600
PLANTED_SEEDS = 60
PERIOD_US = 3_000_000
SETTLE_US = 30_000_000
NOBODY = Session(1 << 40)


def scrubbed_history(seed: int) -> World:
    """To its end; then a file rots on every other target, and all have a whole pass."""
    world = world_of(seed)
    for target in world.targets.values():
        target.scrub_each(PERIOD_US)
    run_history(world)
    for target in _up(world):
        if world.clock.rng.random() < 0.5:
            _rot_one(world, target)
        _asked(world, target, begin=True)
    world.clock.pass_time(SETTLE_US)
    return world


def _rot_one(world: World, target: TargetNode) -> None:
    """One bit of any file."""
    core, rng = target.machine._core, world.clock.rng
    files = [entry.file for entry in (*core.columns.values(), *core.documents.values())]
    if files:
        file = rng.choice(sorted(files))
        target.disk.rot(file, rng.randrange(target.disk.file_bytes(file)), rng.randrange(8))
        world.rotted.append(f"{target.id}/{file}")


def _up(world: World) -> list[TargetNode]:
    return [target for target in world.targets.values() if target.up]


def _asked(world: World, target: TargetNode, *, begin: bool = False) -> ScrubState:
    """By somebody beside the network."""
    event = Received(world.clock.now_us, NOBODY, 1, AskScrub(begin))
    (answer,) = target.machine.handle(event)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ScrubState)
    return answer.message


def _found(state: ScrubState) -> set[str]:
    """Whose file, as far as a finding says."""
    return {f"{one.checkpoint} {one.rank} {one.damage.kind}" for one in state.report.rot}


def truth(target: TargetNode) -> set[str]:
    """The same, of each file that it keeps, read here and now."""
    core = target.machine._core
    found = set()
    for entry in (*core.columns.values(), *core.documents.values()):
        check = FileCheck(entry, 1 << 20)
        while check.wanted is not None:
            done = perform(target.disk, ReadAt(0, check.file, *check.wanted), 0)
            assert isinstance(done, DiskDone)
            check.took(done.data)
        for damage in check.found:
            is_column = isinstance(entry, SealedColumn)
            checkpoint = (entry.header.column.payload if is_column else entry.header).checkpoint
            rank = int(entry.header.column.payload.rank) if is_column else None
            found.add(f"{checkpoint} {rank} {damage.kind}")
    return found


def check_scrubbed(world: World, seen: Counter[str]) -> None:
    """No alarm was false, and what is harmed is known."""
    harmed = {*world.rotted, world.document_rotted}
    for target in world.targets.values():
        seen["alarms"] += len(target.alarms)
        for alarm in target.alarms:
            file, _, why = alarm.partition(" ")
            assert f"{target.id}/{file}" in harmed, f"{target.id}: {file}: {why}"
    for target in _up(world):
        state, harm = _asked(world, target), truth(target)
        assert not state.is_asked, f"{target.id}: {state.files_left} files are not read"
        assert _found(state) == harm, target.id
        seen["damaged"] += len(harm)
        seen["read"] += target.machine.counters["files_scrubbed"]


def check_histories(first: int, count: int) -> None:
    seen: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    for seed in range(first, first + count):
        try:
            check_scrubbed(scrubbed_history(seed), seen)
        except Exception as error:
            failures.append((seed, f"{type(error).__name__}: {error}"))
    assert not failures, f"{len(failures)} of {count} seeds: {failures[:5]}"
    assert seen["read"] > 10 * count
    assert min(seen["alarms"], seen["damaged"]) > count, seen


@at_turn(1, every=4)
def test_what_is_found_is_what_was_harmed_in_any_history() -> None:
    check_histories(turn_of(SEEDS, SEEDS_SOAK, every=4), SEEDS)


_find = Scrub._find


def cells_alone(self: Scrub, entry: Entry, damages: list[Damage], *, is_whole: bool) -> None:
    """Who would read headers, trailers and second copies?"""
    found = [one for one in damages if one.region == "cells"]
    _find(self, entry, found, is_whole=is_whole)


def read_on(self: Scrub, entry: Entry) -> None:
    """What is dropped is read to its end."""
    self._times.remove(entry)
    self._rot.pop(entry.file, None)


def here_still(self: Core, entry: Entry) -> bool:
    """What was here when it was asked for."""
    return True


@pytest.mark.parametrize(
    "bugs",
    in_turn(
        [
            (((Scrub, "_find", cells_alone),),),
            (((Scrub, "_gone", read_on), (Core, "holds", here_still)),),
        ],
        every=PLANTED,
    ),
    ids=["cells-alone", "alarmed-by-drops"],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, bugs: tuple[tuple[type, str, Callable[..., object]], ...]
) -> None:
    for owner, name, bug in bugs:
        monkeypatch.setattr(owner, name, bug)
    assert not all(map(_is_right, range(PLANTED_SEEDS))), "one history shows it"


def _is_right(seed: int) -> bool:
    try:
        check_scrubbed(scrubbed_history(seed), Counter())
    except AssertionError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_so_it_is_in_many_more() -> None:
    check_histories(0, SEEDS_SOAK)
