"""What a target knows of its scrub after its process has ended, and whose note it is."""

from __future__ import annotations

from ckpt.base.limits import DEVICE_FAILURES_MAX, PAGE_BYTES
from ckpt.base.units import KiB
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.writing import AbandonColumn
from ckpt.protocol.target.at_rest.scrub import NOTE_US
from ckpt.protocol.target.at_rest.scrub_note import (
    SCRUB_FILE,
    ScrubNote,
    decode_scrub_note,
    encode_scrub_note,
    whole_since_of,
)
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.testing.disk import Fault
from tests.protocol.scrubbing import (
    FIRST_S,
    LIMITS,
    PERIOD_S,
    S,
    again,
    alarms,
    columns,
    ended_in,
    file_of,
    passed,
    reads_of,
    run_for,
    state,
    stored,
)
from tests.protocol.target_world import (
    WRITER,
    Column,
    TargetWorld,
    reserve,
    write,
)


def test_another_process_knows_what_was_read_and_found() -> None:
    some = columns()
    world = stored(some)
    world.disk.rot(file_of(some[1]), FRAGMENTS_OFFSET)
    before = passed(world).report
    then = again(world)
    known = state(then).report
    assert (known.rot, known.pass_ended_s) == (before.rot, before.pass_ended_s)
    run_for(then, PERIOD_S - 3 * FIRST_S)
    assert reads_of(then) == {}, "nothing is due"
    assert alarms(then) == []


def test_a_pass_goes_on_where_it_was_also_within_a_file() -> None:
    """Each file was begun once, but for what the last note did not say yet."""
    some = [Column(payload_bytes=6_000_000, cell_bytes=64 * KiB, rank=rank) for rank in range(2)]
    world = stored(some, documents=False)
    world.disk.rot(file_of(some[0]), FRAGMENTS_OFFSET)
    state(world, begin=True)
    whole = sum(world.disk.file_bytes(file_of(each)) for each in some)
    world.before = lambda action: _slowly(world, action)
    run_for(world, NOTE_US / S + 25)
    before = reads_of(world)
    assert 0 < sum(before.values()) < whole / 2, "it is within the first one"
    then = again(world)
    assert (state(then).is_asked, state(then).files_left) == (True, 2)
    assert state(then).report.rot_count == 1
    run_for(then, 60)
    after = reads_of(then)
    assert not state(then).is_running
    ends = 4 * PAGE_BYTES + 2 * 4096
    assert sum(after.values()) < whole - sum(before.values()) * 3 // 4 + 4 * ends
    assert state(then).report.rot_count == 1, "what lies before the cursor was found"


def _slowly(world: TargetWorld, action: object) -> None:
    if isinstance(action, ReadAt) and action.at_rest:
        world.now_us += 200_000


def test_a_directory_of_an_earlier_version_is_read_within_a_period_and_is_not_late() -> None:
    """It has no note: a tier that took a week to fill cannot be read in a day."""
    world = stored(columns(), limits=TargetLimits())
    run_for(world, 5)
    then = again(world)
    writing = Column(rank=9)
    reserve(then, writing, reservation=9)
    write(then, writing, request=39, reservation=9, stripes=[0])
    run_for(then, PERIOD_S - FIRST_S)
    assert (reads_of(then), state(then).report.late_s) == ({}, 0)
    then.tell(WRITER, AbandonColumn(), request=39)
    run_for(then, 5)
    assert len(reads_of(then)) == 4
    assert not [each for each in then.reports if each.text == "scrub is late"]


def test_a_note_that_is_gone_or_damaged_has_all_read_again() -> None:
    some = columns()
    world = stored(some)
    passed(world)
    world.disk.rot(SCRUB_FILE, 40)
    then = again(world)
    run_for(then, 10)
    assert set(reads_of(then)) >= {file_of(each) for each in some}
    assert state(then).report.pass_began_s > 0


def test_a_note_is_read_as_it_was_written_and_any_flipped_bit_shows() -> None:
    world = stored(columns(1))
    world.disk.rot(file_of(columns(1)[0]), 1)
    passed(world)
    data = bytes(world.disk.read_at(SCRUB_FILE, 0, world.disk.file_bytes(SCRUB_FILE)))
    note = decode_scrub_note(data)
    assert note is not None
    assert (len(note.rot), len(note.readings)) == (1, 2 * 12)
    assert encode_scrub_note(note) == data
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1
        assert decode_scrub_note(bytes(harmed)) is None, f"byte {at}"


def test_a_note_that_cannot_be_written_is_written_later() -> None:
    world = stored(columns(1))
    world.disk.faults.append(Fault("sync", file="staging/scrub", count=2))
    assert not passed(world).is_running
    assert not ended_in(world)
    run_for(world, NOTE_US / S + 1)
    assert ended_in(world)


def test_a_device_that_fails_is_neither_read_nor_written_by_it() -> None:
    world = stored(columns())
    for number in range(DEVICE_FAILURES_MAX):
        world.disk.faults.append(Fault("preallocate"))
        reserve(world, Column(rank=9), reservation=90 + number)
    assert world.machine.device.is_failing
    world.disk.faults.append(Fault("write", file="staging/probe", count=1 << 30))
    world.performed.clear()
    assert state(world, begin=True).is_aside
    run_for(world, 20)
    assert not any("scrub" in getattr(each, "file", "") for each in world.performed)
    assert reads_of(world) == {}
    world.disk.faults.clear()
    run_for(world, 60)
    assert ended_in(world)


def test_a_clock_that_was_set_back_costs_a_reading_and_no_more() -> None:
    world = stored(columns(1))
    run_for(world, 20)
    assert passed(world).report.oldest_s > 20
    then = TargetWorld(world.disk, boot=12, limits=LIMITS, now_us=5 * S)
    assert state(then).report.oldest_s == 5
    run_for(then, PERIOD_S)
    assert len(reads_of(then)) == 2


def test_since_when_all_was_read_is_known_while_the_next_pass_is_under_way() -> None:
    world = stored(columns())
    run_for(world, 5)
    assert state(world).report.whole_since_s == 0, "no pass is over"
    first = passed(world).report
    assert first.whole_since_s == first.pass_began_s > 0
    state(world, begin=True)
    world.before = lambda action: _slowly(world, action)
    world.tick(us=S // 10)
    under_way = state(world)
    assert under_way.is_running
    assert under_way.report.pass_began_s > first.pass_began_s
    assert under_way.report.whole_since_s == first.pass_began_s
    world.before = lambda _action: None
    run_for(world, 60)
    assert not state(world).is_running
    assert state(world).report.whole_since_s == under_way.report.pass_began_s


def test_another_process_knows_since_when_all_was_read() -> None:
    world = stored(columns())
    first = passed(world).report
    state(world, begin=True)
    run_for(world, 0.1)
    assert state(again(world)).report.whole_since_s == first.whole_since_s > 0


def test_of_an_earlier_versions_note_a_pass_that_is_over_counts() -> None:
    def whole_since(**told: int | bool) -> int:
        return whole_since_of(ScrubNote(pass_began_s=70, pass_ended_s=80, **told))

    assert whole_since() == 70
    assert whole_since(is_running=True) == 0, "when the one before began is not known"
    assert whole_since(whole_since_s=60, is_running=True) == 60
    assert whole_since_of(ScrubNote(pass_began_s=70)) == 0


def test_a_target_that_did_not_run_when_a_file_was_due_says_so() -> None:
    world = stored(columns())
    run_for(world, FIRST_S)
    assert not [each for each in world.reports if each.text == "scrub is late"]
    then = again(world, later_s=2 * PERIOD_S)
    run_for(then, 1)
    (late,) = [each for each in then.reports if each.text == "scrub is late"]
    assert dict(late.fields)["why"] == "this process did not run when that was due"
