"""A device without one free byte: its target still takes the term of the next coordinator, since a
coordinator whose term no target can note serves nobody, also not those that only read.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest

from ckpt.aio.directory_scan import scan
from ckpt.base.ids import Epoch
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import TargetRegistered
from ckpt.protocol.events import SessionClosed, SessionOpened
from ckpt.protocol.target.disk_events import SyncFile, WriteAt
from ckpt.protocol.target.term import (
    COORDINATOR_FILE,
    TERM_FILE,
    encode_coordinator,
    encode_term,
    noted_term,
)
from ckpt.testing.disk import Fault, Keep
from tests.protocol.target_world import COORDINATOR, TargetWorld

ONE, OTHER = b"one coordinator.", b"another of them."


def _full(term: int = 5) -> TargetWorld:
    """It has obeyed ONE, and nothing more fits."""
    world = TargetWorld(term=0)
    _come(world, term, ONE)
    assert world.machine.registered
    disk = world.disk
    disk.bytes_total -= disk.space().bytes_free
    assert disk.space().bytes_free == 0
    return world


def _come(world: TargetWorld, term: int, process: bytes) -> None:
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    world.tell(COORDINATOR, TargetRegistered(term, Epoch(term), 3_000_000, process))


def test_the_next_coordinator_is_obeyed_and_known_after_a_restart() -> None:
    world = _full()
    _come(world, 6, OTHER)
    assert (world.machine.term, world.machine.registered) == (6, True)
    found = scan(world.disk, 0)
    assert (found.term, found.coordinator) == (6, OTHER)
    assert world.disk.list_directory("staging") == []


@pytest.mark.parametrize("keep", Keep)
def test_at_each_moment_a_crash_leaves_the_old_term_or_the_new_one(keep: Keep) -> None:
    for steps in count():
        world = _full()
        world.held = deque()
        _come(world, 6, OTHER)
        for _ in range(steps):
            if world.held:
                world.step()
        ended, acknowledged = not world.held, world.machine.term
        world.disk.crash(keep)
        found = scan(world.disk, 0)
        assert found.term in (acknowledged, 6)
        assert found.coordinator in (b"", {5: ONE, 6: OTHER}[found.term])
        if ended:
            assert acknowledged == found.term == 6
            return


def test_the_term_that_the_next_process_reads_stays_wherever_the_one_before_was_killed() -> None:
    """The kill leaves all that was written; the power is lost later."""
    for steps in count():
        world = _full()
        world.held = deque()
        _come(world, 6, OTHER)
        for _ in range(steps):
            if world.held:
                world.step()
        ended = not world.held
        read = scan(world.disk, 0)
        world.disk.crash(Keep.NOTHING)
        found = scan(world.disk, 0)
        assert (found.term, found.coordinator) == (read.term, read.coordinator)
        if ended:
            return


def test_what_is_written_over_is_synced_before_the_other_is_touched() -> None:
    """A crash may tear whatever is not synced."""
    world = _full()
    world.held = deque()
    _come(world, 6, OTHER)
    done = []
    while world.held:
        action = world.held[0]
        if isinstance(action, WriteAt | SyncFile) and action.file in (COORDINATOR_FILE, TERM_FILE):
            done.append((type(action), action.file))
        world.step()
    order = (COORDINATOR_FILE, TERM_FILE)
    assert done == [(kind, file) for file in order for kind in (WriteAt, SyncFile)]


def test_a_term_file_that_is_torn_is_known_by_who_was_noted_before_it() -> None:
    whole, torn = encode_term(6), encode_term(6)[:9]
    assert noted_term(whole, b"") == 6
    assert noted_term(torn, encode_coordinator(6, OTHER)) == 6
    assert noted_term(torn, encode_coordinator(6, OTHER)[:-1]) == 0
    assert noted_term(b"", encode_coordinator(6, OTHER)) == 0, "it was never acknowledged"


@pytest.mark.parametrize("file", [COORDINATOR_FILE, TERM_FILE])
def test_what_cannot_be_written_over_either_holds_it_out_until_it_can(file: str) -> None:
    world = _full()
    world.disk.faults.append(Fault("write", file=file))
    _come(world, 6, OTHER)
    assert not world.machine.registered
    assert scan(world.disk, 0).term in (5, 6)
    world.tick(us=200_000)
    assert (world.machine.term, world.machine.registered) == (6, True)
    assert scan(world.disk, 0).term == 6


def test_without_a_file_to_write_over_it_is_held_out() -> None:
    world = TargetWorld(term=0)
    world.disk.bytes_total -= world.disk.space().bytes_free
    _come(world, 6, ONE)
    assert not world.machine.registered
    world.disk.bytes_total += 1 << 20
    world.tick(us=200_000)
    assert world.machine.registered
