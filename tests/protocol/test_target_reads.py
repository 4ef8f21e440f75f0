"""Readers get exactly the wanted bytes, verified, and damage is named by the block."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from ckpt.aio.disk_actions import perform
from ckpt.base.ids import ColumnNumber
from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.units import KiB
from ckpt.erasure.code import Code
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.combs import Comb, Run
from ckpt.format.layout import Layout
from ckpt.format.messages.hello import CancelRequest, Failed
from ckpt.format.messages.reading import (
    ByteRange,
    ByteRuns,
    ColumnVerified,
    ManifestData,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadManifest,
    ReadRanges,
    VerifyColumn,
)
from ckpt.protocol.events import Session, SessionClosed
from ckpt.protocol.runs.run_sets import spans_of
from ckpt.protocol.target.core import TargetLimits, column_name
from ckpt.protocol.target.disk_events import ReadAt, ReleaseBulk, SessionDrained
from ckpt.protocol.target.reading.pieces import DiskPiece, cut_pieces
from ckpt.testing.disk import FakeDisk, Fault
from tests.protocol.target_world import (
    READER,
    WRITER,
    Column,
    TargetWorld,
    cut_up,
    reserve,
    store,
    write,
)

OTHER = Session(4)


def _stored(column: Column, *, limits: TargetLimits | None = None) -> tuple[TargetWorld, str]:
    """A restarted target, so that nothing is cached, and the column's file."""
    world = TargetWorld()
    store(world, column)
    again = TargetWorld(world.disk, boot=12, limits=limits)
    return again, f"columns/{column_name(column.id)}"


def _column() -> Column:
    return Column(payload_bytes=3_000_000, cell_bytes=512 * KiB, column=0)


def _bytes(world: TargetWorld, session: Session = READER) -> dict[int, bytes]:
    """Start to bytes of all RangeData, each checked against its own checksum."""
    found = {}
    for each in world.sent:
        if each.session == session and isinstance(each.message, RangeData):
            found |= cut_up(each.message, bytes(each.bulk))
    return found


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 1), (5, 100), (BLOCK_BYTES - 1, BLOCK_BYTES + 1), (BLOCK_BYTES, 2 * BLOCK_BYTES),
        (0, 1_500_000), (524288 - 7, 524288 + 9), (1_499_999, 1_500_000),
    ],
)  # fmt: skip
def test_a_range_is_answered_with_exactly_its_bytes(start: int, end: int) -> None:
    column = _column()
    world, _ = _stored(column)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(start, end),)))
    pieces = sorted(_bytes(world).items())
    assert pieces[0][0] == start
    assert b"".join(data for _, data in pieces) == column.data[start:end]
    assert world.messages(READER)[-1] == RangesDone()


def test_many_ranges_share_disk_reads_and_are_all_answered() -> None:
    column = _column()
    world, _ = _stored(column)
    ranges = tuple(ByteRuns(at, at + 100) for at in range(0, 500_000, 1000))
    world.performed.clear()
    world.tell(READER, ReadRanges(column.id, tuple(reversed(ranges))))
    found = _bytes(world)
    assert found == {each.start: column.data[each.start : each.end] for each in ranges}
    assert len([a for a in world.performed if isinstance(a, ReadAt)]) == 2
    # One read of the table, one of bytes; one frame with all of them, and the last word.
    assert len([each for each in world.sent if each.session == READER]) == 2


def test_overlapping_ranges_are_each_answered() -> None:
    column = _column()
    world, _ = _stored(column)
    ranges = (ByteRuns(10, 300_000), ByteRuns(20, 40), ByteRuns(200_000, 400_000))
    world.tell(READER, ReadRanges(column.id, ranges))
    covered = bytearray(400_000)
    for start, data in _bytes(world).items():
        assert data == column.data[start : start + len(data)]
        covered[start : start + len(data)] = b"\1" * len(data)
    assert covered[10:] == b"\1" * (400_000 - 10)


def test_a_flipped_bit_costs_one_block_and_no_other_byte() -> None:
    column = _column()
    world, file = _stored(column)
    world.disk.rot(file, 4096 + BLOCK_BYTES + 77)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(100, 600_000),)))
    damaged = [m for m in world.messages(READER) if isinstance(m, RangeDamaged)]
    assert damaged == [RangeDamaged(BLOCK_BYTES, 2 * BLOCK_BYTES, "checksum")]
    assert world.machine.counters["blocks_damaged"] == 1
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, BLOCK_BYTES),)))
    assert _bytes(world) == {0: column.data[:BLOCK_BYTES]}


def test_only_wanted_bytes_of_a_bad_block_are_named() -> None:
    column = _column()
    world, file = _stored(column)
    world.disk.rot(file, 4096)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(50, 60),)))
    assert world.messages(READER) == [RangeDamaged(50, 60, "checksum"), RangesDone()]


def test_an_unreadable_block_is_found_block_by_block() -> None:
    column = _column()
    world, file = _stored(column)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)))
    world.messages(READER)
    world.disk.faults.append(Fault("read", "EIO", file=file, count=1))
    world.disk.faults.append(Fault("read", "EIO", file=file, skip=1, count=1))
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 3 * BLOCK_BYTES),)))
    damaged = [m for m in world.messages(READER) if isinstance(m, RangeDamaged)]
    assert damaged == [RangeDamaged(BLOCK_BYTES, 2 * BLOCK_BYTES, "EIO")]


def test_a_truncated_file_is_set_aside_and_never_served() -> None:
    column = _column()
    world, file = _stored(column)
    world.disk.truncate_file(file, 500_000)
    again = TargetWorld(world.disk, boot=13)
    again.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)))
    (answer,) = again.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "not_found"
    assert len(again.disk.list_directory("aside")) == 1


@pytest.mark.parametrize("copy", [0, 1])
def test_one_bad_trailer_costs_no_block_and_is_named(copy: int) -> None:
    column = _column()
    world, file = _stored(column)
    size = world.disk.file_bytes(file)
    trailer = (size - 8192 - len(column.data)) // 2
    world.disk.rot(file, 4096 + len(column.data) + copy * trailer + 3)
    world.tell(READER, VerifyColumn(column.id))
    (verified,) = world.messages(READER)
    assert isinstance(verified, ColumnVerified)
    assert verified.damaged == ()
    assert [one.region for one in verified.beside] == [f"block table {copy + 1}"]


def test_a_column_without_a_trailer_is_refused_and_reported_whole_as_damaged() -> None:
    column = _column()
    world, file = _stored(column)
    size = world.disk.file_bytes(file)
    trailer = (size - 8192 - len(column.data)) // 2
    for copy in (0, 1):
        world.disk.rot(file, 4096 + len(column.data) + copy * trailer + 3)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)))
    world.tell(READER, ReadManifest(column.id))
    world.tell(READER, VerifyColumn(column.id))
    first, second, third = world.messages(READER)
    assert isinstance(first, Failed)
    assert isinstance(second, Failed)
    assert (first.code, second.code) == ("corrupt", "corrupt")
    whole = (ByteRange(0, len(column.data)),)
    assert isinstance(third, ColumnVerified)
    assert third.damaged == whole
    assert [one.region for one in third.beside] == ["block table 1", "block table 2"]


def test_verify_finds_every_damaged_block_and_merges_neighbours() -> None:
    column = _column()
    world, file = _stored(column)
    for block in (0, 1, 5):
        world.disk.rot(file, 4096 + block * BLOCK_BYTES + 9)
    world.tell(READER, VerifyColumn(column.id))
    damaged = (ByteRange(0, 2 * BLOCK_BYTES), ByteRange(5 * BLOCK_BYTES, 6 * BLOCK_BYTES))
    expected = ColumnVerified(column.id, False, len(column.data), damaged)
    assert world.messages(READER) == [expected]


def test_a_missing_column_is_not_found_and_verified_as_missing() -> None:
    world, column = TargetWorld(), _column()
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)))
    world.tell(READER, VerifyColumn(column.id))
    failed, verified = world.messages(READER)
    assert isinstance(failed, Failed)
    assert failed.code == "not_found"
    assert verified == ColumnVerified(column.id, True, 0, ())


@pytest.mark.parametrize("bounds", [(-1, 5), (5, 5), (0, 1 << 40), (9, 3), (0, 1 << 63)])
def test_ranges_outside_of_the_column_are_refused(bounds: tuple[int, int]) -> None:
    column = _column()
    world, _ = _stored(column)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(*bounds),)))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"


def test_the_manifest_comes_back_in_parts() -> None:
    column = _column()
    limits = TargetLimits(read_piece_bytes=64)
    world, _ = _stored(column, limits=limits)
    world.tell(READER, ReadManifest(column.id))
    parts = [each for each in world.sent if isinstance(each.message, ManifestData)]
    assert b"".join(bytes(each.bulk) for each in parts) == column.manifest
    assert len(parts) > 1


# --------------------------------------------------------------------------- windows and turns


def test_no_more_is_read_than_the_window_until_the_session_drains() -> None:
    column = _column()
    limits = TargetLimits(read_piece_bytes=128 * KiB, read_window_bytes=256 * KiB)
    world, _ = _stored(column, limits=limits)
    world.auto_drain = False
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1_500_000),)))
    assert sum(len(data) for data in _bytes(world).values()) == 256 * KiB
    assert RangesDone() not in [each.message for each in world.sent]
    world.feed(SessionDrained(world.now_us, READER))
    assert sum(len(data) for data in _bytes(world).values()) == 512 * KiB


def test_sessions_take_turns() -> None:
    column = _column()
    limits = TargetLimits(read_piece_bytes=128 * KiB, read_window_bytes=512 * KiB)
    world, _ = _stored(column, limits=limits)
    for session in (READER, OTHER):
        world.tell(session, ReadRanges(column.id, (ByteRuns(0, 1),)))
    world.sent.clear()
    world.held = deque()
    for session in (READER, OTHER):
        world.tell(session, ReadRanges(column.id, (ByteRuns(0, 1_500_000),)))
    while world.held:
        world.step()
    order = [each.session for each in world.sent if isinstance(each.message, RangeData)]
    third = len(order) // 3
    assert {READER, OTHER} == set(order[: third + 1])
    assert _bytes(world, READER).keys() == _bytes(world, OTHER).keys()


def test_a_buffer_of_an_unsent_frame_is_not_released() -> None:
    column = _column()
    world, _ = _stored(column)
    world.auto_drain = False
    world.released.clear()
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, BLOCK_BYTES),)))
    reads = [a for a in world.performed if isinstance(a, ReadAt) and a.offset == 4096]
    assert reads[-1].op not in world.released
    world.feed(SessionDrained(world.now_us, READER))
    assert reads[-1].op in world.released


def test_a_closed_session_frees_its_buffers_and_its_questions() -> None:
    column = _column()
    world, _ = _stored(column)
    world.auto_drain = False
    world.held = deque()
    for request in range(3):
        world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1_500_000),)), request=request)
    world.step()
    world.feed(SessionClosed(world.now_us, READER))
    while world.held:
        world.step()
    read = sorted(a.op for a in world.performed if isinstance(a, ReadAt))
    assert sorted(world.released) == read
    assert world.machine.operations_open == 0


def test_a_cancelled_question_is_not_answered_and_its_buffers_return() -> None:
    column = _column()
    world, _ = _stored(column)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)))
    world.messages(READER)
    world.held = deque()
    world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1_500_000),)), request=50)
    world.tell(READER, CancelRequest(), request=50)
    while world.held:
        world.step()
    assert world.messages(READER) == []
    world.held = None
    world.tell(READER, ReadRanges(column.id, (ByteRuns(3, 4),)), request=51)
    assert world.messages(READER)[-1] == RangesDone()


def test_too_many_questions_of_one_session_are_refused() -> None:
    column = _column()
    world, _ = _stored(column, limits=TargetLimits(read_jobs_max=2))
    world.held = deque()
    for request in range(3):
        world.tell(READER, ReadRanges(column.id, (ByteRuns(0, 1),)), request=request)
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "busy"


def test_pieces_cover_every_wanted_byte_once_on_block_borders() -> None:
    layout = Layout(Code(3, 2), 5_000_000, 192 * KiB)
    pieces = cut_pieces(layout, [(7, 8), (8, 400_000), (900_001, 900_002)], 512 * KiB)
    assert sum(piece.wanted_bytes for piece in pieces) == 1 + 399_992 + 1
    for piece in pieces:
        assert piece.end - piece.start <= 512 * KiB
        assert all(piece.start <= low < high <= piece.end for low, high in spans_of(piece.wanted))


@given(
    st.lists(st.tuples(st.integers(0, 900_000), st.integers(1, 300_000)), min_size=1, max_size=7),
    st.sampled_from([96 * KiB, 192 * KiB, 512 * KiB, 1024 * KiB]),
)
@example([(93_217, 300_000), (93_218, 1)], 192 * KiB)  # the second lies in the first's first group
def test_many_ranges_are_cut_as_few_are(spans: list[tuple[int, int]], cell_bytes: int) -> None:
    layout = Layout(Code(3, 2), 5_000_000, cell_bytes)
    end = layout.column_bytes
    runs = [(at, min(at + size, end)) for at, size in spans if at < end]
    few, many = (_told(cut_pieces(layout, times * runs, 512 * KiB)) for times in (1, 8))
    assert [each[:3] for each in few] == [each[:3] for each in many]
    for one, other in zip(few, many, strict=True):
        assert sorted(8 * one[3]) == other[3]


def _told(pieces: list[DiskPiece]) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Each with its runs one by one."""
    return [(each.group, each.start, each.end, [*spans_of(each.wanted)]) for each in pieces]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 90_000), st.integers(1, 90_000), st.integers(1, 200_000),
            st.integers(1, 60),
        ),
        min_size=1, max_size=4,
    ),
    st.sampled_from([4 * KiB, 64 * KiB, 132 * KiB, 192 * KiB, 512 * KiB, 1024 * KiB]),
)  # fmt: skip
@example([(0, 128 * KiB, 128 * KiB, 10)], 512 * KiB)  # every other block
@example([(100, 60 * KiB, 68 * KiB, 30)], 192 * KiB)  # a cell's short block lies between teeth
@example([(200_000, 1, 1, 900)], 4 * KiB)
def test_combs_are_cut_as_their_teeth_are(
    wanted: list[tuple[int, int, int, int]], cell_bytes: int
) -> None:
    layout = Layout(Code(3, 2), 5_000_000, cell_bytes)
    runs: list[Run] = []
    at = 0
    for gap, length, apart, teeth in wanted:
        step = length + apart
        teeth = min(teeth, (layout.column_bytes - at - gap - length) // step + 1)
        if teeth > 0:
            runs += Comb(at + gap, at + gap + (teeth + 1) * step, step, length).part(0, teeth)
            at = runs[-1][1]
    found = cut_pieces(layout, runs, 512 * KiB)
    assert _told(found) == _told(cut_pieces(layout, spans_of(tuple(runs)), 512 * KiB))
    assert [each.wanted_bytes for each in found] == [
        sum(end - start for start, end in one[3]) for one in _told(found)
    ]


def test_narrow_columns_of_a_tensor_stay_one_run_in_each_piece() -> None:
    layout = Layout(Code(2, 1), 64 << 20, 1024 * KiB)
    (comb,) = Comb(5 * 4096 + 1024, 32 << 20, 4096, 1024).part(0, 8000)
    pieces = cut_pieces(layout, [comb], 2048 * KiB)
    assert len(pieces) == 16
    assert all(len(piece.wanted) == 1 for piece in pieces)


def test_runs_at_one_distance_are_asked_and_answered_by_one_name() -> None:
    column = _column()
    world, _ = _stored(column)
    question = ReadRanges(column.id, (ByteRuns(1000, 2000, 366, 4096),))
    world.tell(READER, question)
    # A piece is 2 MiB by default: one disk read, one frame.
    assert _bytes(world) == {at: column.data[at : at + 1000] for at in range(1000, 1_500_000, 4096)}
    (answer,) = [m for m in world.messages(READER) if isinstance(m, RangeData)]
    assert answer.ranges == question.ranges


def test_a_block_that_rots_costs_the_runs_in_it() -> None:
    column = _column()
    world, file = _stored(column)
    world.disk.rot(file, FRAGMENTS_OFFSET + BLOCK_BYTES + 77)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(1000, 2000, 366, 4096),)))
    every = range(1000, 1_500_000, 4096)
    bad = [at for at in every if BLOCK_BYTES <= at < 2 * BLOCK_BYTES]
    assert _bytes(world) == {at: column.data[at : at + 1000] for at in every if at not in bad}
    damaged = [m for m in world.messages(READER) if isinstance(m, RangeDamaged)]
    assert damaged == [RangeDamaged(at, at + 1000, "checksum") for at in bad]


def test_a_block_that_cannot_be_read_costs_the_runs_in_it() -> None:
    column = _column()
    world, file = _stored(column)
    world.tell(READER, ReadRanges(column.id, (ByteRuns(1_400_000, 1_400_001),)))
    world.sent.clear()
    world.disk.faults.append(Fault("read", "EIO", file=file, count=2))
    world.tell(READER, ReadRanges(column.id, (ByteRuns(1000, 2000, 100, 4096),)))
    every = {at: column.data[at : at + 1000] for at in range(1000, 1000 + 100 * 4096, 4096)}
    assert _bytes(world) == {at: data for at, data in every.items() if at >= BLOCK_BYTES}
    damaged = [m for m in world.messages(READER) if isinstance(m, RangeDamaged)]
    assert [m.start for m in damaged] == [at for at in every if at < BLOCK_BYTES]
    said = [report.text for report in world.reports]
    assert said.count("damaged bytes") == 1, "a dead disk would fill the log, run by run"


@pytest.mark.parametrize(
    "ranges",
    [
        (ByteRuns(0, 1000, 100, 4096), ByteRuns(2000, 2001)),
        (ByteRuns(0, 1000, 100, 4096), ByteRuns(2000, 3000, 100, 4096)),
        2 * (ByteRuns(0, 800_000),),
        (ByteRuns(0, 1, 1 << 60, 2),),
    ],
)
def test_questions_that_no_reader_asks_are_refused(ranges: tuple[ByteRuns, ...]) -> None:
    column = _column()
    world, _ = _stored(column)
    world.performed.clear()
    world.tell(READER, ReadRanges(column.id, ranges))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert not any(isinstance(each, ReadAt) for each in world.performed)


def test_a_column_number_that_is_not_here_is_not_confused_with_one_that_is() -> None:
    column = _column()
    world, _ = _stored(column)
    other = structs.replace(column.id, column=ColumnNumber(1))
    world.tell(READER, ReadRanges(other, (ByteRuns(0, 1),)))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "not_found"


def test_a_misdirected_write_is_found_at_read() -> None:
    column = _column()
    world = TargetWorld(FakeDisk(seed=9))
    reserve(world, column)
    world.disk.misdirect_next_write = True
    write(world, column)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.tell(READER, VerifyColumn(column.id))
    (verified,) = world.messages(READER)
    assert isinstance(verified, ColumnVerified)
    assert verified.damaged


def test_many_questions_for_manifests_load_one_trailer_at_a_time() -> None:
    column = _column()
    world, _ = _stored(column)
    world.held, world.auto_drain = deque(), False
    for request in range(20, 25):
        world.tell(READER, ReadManifest(column.id), request=request)
    for request in range(20, 25):
        (read,) = world.held
        assert isinstance(read, ReadAt)
        world.step()
        (sent,) = [each for each in world.sent if each.session == READER]
        assert (sent.request, bytes(sent.bulk)) == (request, column.manifest)
        world.messages(READER)
    assert not world.held


def test_a_damaged_trailer_has_left_its_buffer_when_the_other_is_read() -> None:
    column = _column()
    world, file = _stored(column)
    world.disk.rot(file, FRAGMENTS_OFFSET + column.layout.column_bytes)
    world.held = deque()
    world.tell(READER, ReadManifest(column.id))
    (first,) = world.held
    actions = world.machine.handle(perform(world.disk, first, world.now_us))
    kinds = [type(action) for action in actions]
    assert kinds.index(ReleaseBulk) < kinds.index(ReadAt)
