"""The judge of what is whole (P7) asks no column of targets that have no room for it, and takes
nothing else for a lack of room.
"""

from __future__ import annotations

from ckpt.base.ids import TargetId
from ckpt.base.limits import PAGE_BYTES, RESERVE_FRACTION
from ckpt.testing.disk import FakeDisk
from tests.sim.repair_world import saved
from tests.sim.whole_again import FILE_BYTES_MAX, Disks
from tests.sim.world import World

SEED = 1


def _leaving(world: World) -> TargetId:
    """One with columns of some payload and no copy of a document."""
    return next(
        id
        for id, target in sorted(world.targets.items())
        if target.disk.durable_names("columns") and not target.disk.durable_names("documents")
    )


def _world() -> World:
    """Nothing is reserved any more."""
    world = saved(SEED)
    for target in world.targets.values():
        for file in target.disk.files():
            if file.startswith("staging/"):
                target.disk.remove_file(file)
    return world


def _leave_room(disk: FakeDisk, room_bytes: int) -> None:
    """So much above the reserve of what it has then."""
    used = disk.bytes_total - disk.space().bytes_free
    disk.bytes_total = int((used + room_bytes) / (1 - RESERVE_FRACTION))


def test_a_column_stays_where_nobody_else_has_room_for_it() -> None:
    world = _world()
    leaving = _leaving(world)
    assert "is still on" in Disks(world, [leaving]).lacking()
    for target in world.targets.values():
        _leave_room(target.disk, PAGE_BYTES)
    assert not Disks(world, [leaving]).lacking()


def test_one_target_with_room_is_enough() -> None:
    world = _world()
    leaving = _leaving(world)
    for target in world.targets.values():
        _leave_room(target.disk, PAGE_BYTES)
    found = [_with_room(world, id, leaving) for id in sorted(world.targets.keys() - {leaving})]
    assert any("is still on" in lacking for lacking in found)


def _with_room(world: World, id: TargetId, leaving: TargetId) -> str:
    """What lacks while this one has room, and it alone."""
    disk = world.targets[id].disk
    _leave_room(disk, FILE_BYTES_MAX)
    lacking = Disks(world, [leaving]).lacking()
    _leave_room(disk, PAGE_BYTES)
    return lacking


def test_what_is_reserved_and_not_used_is_room() -> None:
    world = _world()
    leaving = _leaving(world)
    for target in world.targets.values():
        target.disk.preallocate("staging/reservation-1-1", FILE_BYTES_MAX)
        _leave_room(target.disk, 0)
    assert "is still on" in Disks(world, [leaving]).lacking()
