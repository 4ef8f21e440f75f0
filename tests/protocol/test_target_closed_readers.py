"""P5: what was asked of a slow device for a reader that is gone takes memory until it comes."""

from __future__ import annotations

from collections import deque

from ckpt.base.units import KiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone, ReadRanges
from ckpt.protocol.events import Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt
from tests.protocol.target_world import READER, Column, TargetWorld, cut_up, store

PIECE_BYTES = 128 * KiB
LIMITS = TargetLimits(
    read_piece_bytes=PIECE_BYTES, read_window_bytes=2 * PIECE_BYTES, read_pool_bytes=4 * PIECE_BYTES
)
VISITS = 20


def stored(column: Column) -> TargetWorld:
    """A restarted target that has the column's table; its device stands still from now on."""
    world = TargetWorld()
    store(world, column)
    again = TargetWorld(world.disk, boot=12, limits=LIMITS)
    again.tell(READER, ReadRanges(column.id, (ByteRuns(1_400_000, 1_500_000),)))
    again.sent.clear()
    again.held = deque()
    return again


def reading_bytes(world: TargetWorld) -> int:
    assert world.held is not None
    return sum(action.length for action in world.held if isinstance(action, ReadAt))


def test_readers_that_come_and_go_before_a_slow_device_share_the_pool() -> None:
    """As each that finds the target slow does: asks, waits, cuts the connection, comes again."""
    column = Column(payload_bytes=3_000_000, cell_bytes=512 * KiB, column=0)
    world = stored(column)
    for number in range(VISITS):
        visitor = Session(100 + number)
        world.feed(SessionOpened(world.now_us, visitor, Role.READER, "again"))
        # Each wants other blocks, so that none waits for another's read.
        start = number * PIECE_BYTES // 2
        world.tell(visitor, ReadRanges(column.id, (ByteRuns(start, start + 1000),)))
        world.feed(SessionClosed(world.now_us, visitor))
    assert 0 < reading_bytes(world) <= LIMITS.read_pool_bytes
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1_500_000),)))
    while world.held:
        world.step()
        assert reading_bytes(world) <= LIMITS.read_pool_bytes
    found: dict[int, bytes] = {}
    for each in world.sent:
        if isinstance(each.message, RangeData):
            found |= cut_up(each.message, bytes(each.bulk))
    whole = b"".join(found[start] for start in sorted(found))
    assert whole == column.data[:1_500_000], "nobody waits for ever"
    assert world.messages(READER)[-1] == RangesDone()
    assert world.machine.operations_open == 0
