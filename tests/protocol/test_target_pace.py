"""What a target says of its device, in tables: who is charged for which time, and for how long."""

from __future__ import annotations

from ckpt.base.units import MiB
from ckpt.format.messages.writing import TargetPace
from ckpt.protocol.service_time import MEMORY_US
from ckpt.protocol.target.pace import Pace

MS = 1_000


def told(pace: Pace, now_us: int) -> TargetPace:
    """While somebody waits, so that there is always something to say."""
    found = pace.told(now_us, 1)
    assert found is not None
    return found


def test_a_write_is_charged_from_the_end_of_whatever_ended_before_it() -> None:
    pace = Pace()
    pace.write_began(0)
    pace.disk_answered(5_000 * MS, op=9)
    pace.write_ended(5_200 * MS, MiB)
    assert told(pace, 5_200 * MS).write_us == 200 * MS


def test_what_was_given_before_the_oldest_open_step_of_a_seal_is_not_its_time() -> None:
    """The first step has ended, and the device did what came between them."""
    pace = Pace()
    pace.seal_step_began(0, op=3)
    pace.seal_step_began(0, op=5)
    pace.seal_step_ended(1_000 * MS, op=3)
    pace.disk_answered(4_000 * MS, op=4)
    pace.seal_step_ended(4_100 * MS, op=5)
    assert told(pace, 4_100 * MS).seal_us == (1_000 + 100) * MS // 2


def test_one_thing_alone_is_what_the_device_began_with_nothing_else_to_do() -> None:
    pace = Pace()
    pace.step_began(0, 1, open_count=0)
    pace.step_began(0, 2, open_count=1)
    pace.disk_answered(300 * MS, op=1)
    pace.disk_answered(9_000 * MS, op=2)
    assert told(pace, 9_000 * MS).alone_us == 300 * MS
    pace.step_began(9_000 * MS, 3, open_count=0)
    pace.disk_answered(9_001 * MS, op=4)
    pace.disk_answered(9_700 * MS, op=3)
    assert told(pace, 9_700 * MS).alone_us == 400 * MS, "a quarter of what is new"


def test_time_in_which_a_target_stood_still_is_not_a_seals_nor_one_things() -> None:
    pace = Pace()
    pace.seal_step_began(0, op=3)
    pace.step_began(0, 3, open_count=0)
    pace.excuse(5_000 * MS)
    pace.seal_step_ended(5_200 * MS, op=3)
    pace.disk_answered(5_200 * MS, op=3)
    said = told(pace, 5_200 * MS)
    assert (said.seal_us, said.alone_us) == (200 * MS, 0)


def test_half_is_forgotten_each_second_and_not_more_often() -> None:
    """So that what a device did a while ago does not hide what it does now."""
    begin_us = 10 * MEMORY_US
    for seals in (False, True):
        pace = Pace()
        pace.ticked(begin_us)
        if seals:
            pace.seal_step_began(begin_us, op=3)
            pace.seal_step_ended(begin_us + 50 * MS, op=3)
        else:
            pace.write_began(begin_us)
            pace.write_ended(begin_us + 50 * MS, MiB)
        for now_us in range(begin_us, begin_us + MEMORY_US, 100 * MS):
            pace.ticked(now_us)
        said = told(pace, begin_us + MEMORY_US)
        assert (said.write_us, said.seal_us) == ((0, 50 * MS) if seals else (50 * MS, 0))
        pace.ticked(begin_us + MEMORY_US)
        assert pace.told(begin_us + MEMORY_US, 0) is None, "too little to say"
