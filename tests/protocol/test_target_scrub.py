"""A target reads all that it keeps: when, how fast, past what, and what it says of it."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.documents.file import document_name
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, DocumentKind, ReadDocument, ReadRanges
from ckpt.format.messages.targets import (
    DropGeneration,
    RegisterTarget,
    RenewLease,
    Rot,
    ScrubReport,
)
from ckpt.format.messages.writing import AbandonColumn
from ckpt.protocol.events import SessionOpened
from ckpt.protocol.target.at_rest.scrub import RETRY_US
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.testing.disk import Fault
from tests.protocol.scrubbing import (
    FIRST_S,
    LIMITS,
    OTHER,
    PERIOD_S,
    S,
    again,
    alarms,
    columns,
    file_of,
    passed,
    reads_of,
    run_for,
    state,
    stored,
)
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    put_document,
    reserve,
    write,
)

# --------------------------------------------------------------------------- when


def test_a_file_rests_is_read_once_within_a_seventh_of_the_period_and_then_in_each() -> None:
    some = columns()
    world = stored(some)
    run_for(world, FIRST_S / 4 - 1)
    assert reads_of(world) == {}
    run_for(world, FIRST_S * 3 / 4)
    whole = reads_of(world)
    record = f"documents/{document_name('record', CHECKPOINT)}"
    assert whole == {
        **{file_of(each): world.disk.file_bytes(file_of(each)) for each in some},
        record: world.disk.file_bytes(record),
    }
    run_for(world, PERIOD_S - 3 * FIRST_S)
    assert reads_of(world) == {}
    run_for(world, 2 * FIRST_S)
    assert reads_of(world) == whole
    assert world.machine.counters["files_scrubbed"] == 8


def test_what_is_dropped_soon_is_never_read() -> None:
    world = stored(columns())
    run_for(world, 5)
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    run_for(world, PERIOD_S)
    assert reads_of(world) == {}


def test_without_a_period_only_who_asks_has_it_read() -> None:
    some = columns()
    world = stored(some, limits=TargetLimits())
    run_for(world, 300)
    assert reads_of(world) == {}
    done = passed(world)
    assert (done.is_running, done.files_left, done.report.period_s) == (False, 0, 0.0)
    assert set(reads_of(world)) >= {file_of(each) for each in some}
    again = passed(world)
    assert again.report.pass_ended_s > done.report.pass_ended_s


def test_who_asks_hears_how_far_it_is_and_a_pass_of_nothing_is_over_at_once() -> None:
    assert not state(TargetWorld(limits=LIMITS), begin=True).is_running
    world = stored(columns())
    begun = state(world, begin=True)
    assert (begun.is_running, begun.is_asked, begun.files_left, begun.files) == (True, True, 4, 4)
    assert begun.bytes == begun.bytes_left == world.machine.bytes_used
    seen = [begun.bytes_left]
    while state(world).is_running:
        world.tick(us=S // 10)
        seen.append(state(world).bytes_left)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0


# --------------------------------------------------------------------------- how


def test_it_takes_a_twentieth_of_the_device_s_time() -> None:
    """The device takes 8 ms for each read."""
    world = stored([Column(payload_bytes=6_000_000)], limits=LIMITS)
    state(world, begin=True)
    spent = 0

    def take(action: object) -> None:
        nonlocal spent
        if isinstance(action, ReadAt) and action.at_rest:
            world.now_us += 8_000
            spent += 8_000

    world.before = take
    begun_us = world.now_us
    run_for(world, 5)
    assert 0 < spent <= (world.now_us - begun_us) * 0.05 + 16_000
    assert spent >= (world.now_us - begun_us) * 0.04


def test_it_goes_aside_while_columns_are_written_or_read() -> None:
    some = columns()
    world = stored(some)
    writing = Column(rank=9)
    reserve(world, writing, reservation=9)
    write(world, writing, request=39, reservation=9, stripes=[0])
    state(world, begin=True)
    run_for(world, 5)
    assert reads_of(world) == {}
    assert state(world).is_aside
    for stripe in range(1, writing.layout.stripe_count):
        message, cell = writing.fragment(stripe)
        world.tell(WRITER, message, cell, request=39)
    world.tell(WRITER, writing.seal, writing.manifest, request=39)
    run_for(world, 1)
    assert reads_of(world) != {}

    world.auto_drain = False
    world.tell(READER, ReadRanges(some[0].id, (ByteRuns(0, 100_000),)), request=5)
    reads_of(world)
    run_for(world, 5)
    assert reads_of(world) == {}, "what was read is not sent yet"


def test_a_part_is_asked_for_when_the_last_one_is_here_and_released() -> None:
    world = stored(columns())
    state(world, begin=True)
    world.held = deque()
    world.released.clear()
    run_for(world, 3)
    held = [each for each in world.held if isinstance(each, ReadAt) and each.at_rest]
    assert len(held) == 1
    world.step(world.held.index(held[0]))
    assert world.released == [held[0].op]


# --------------------------------------------------------------------------- what


def test_damage_is_found_named_told_and_gone_when_its_file_is() -> None:
    some = columns()
    world = stored(some)
    put_document(world, DocumentKind.RECORD, b"of another", checkpoint=OTHER)
    size = world.disk.file_bytes(file_of(some[0]))
    world.disk.rot(file_of(some[0]), size - 1)
    world.disk.rot(file_of(some[1]), FRAGMENTS_OFFSET + 7)
    world.disk.rot(f"documents/{document_name('record', OTHER)}", 2 * PAGE_BYTES)
    found = passed(world)
    assert sorted(alarms(world)) == ["cells", "copy 2", "header 2"]
    places = {(one.rank, one.column, one.damage.region) for one in found.report.rot}
    assert places == {(0, 1, "header 2"), (1, 1, "cells"), (None, None, "copy 2")}
    assert found.report.rot_count == world.machine.counters["rot"] == 3

    assert len(alarms(world)) == 3
    passed(world)
    assert len(alarms(world)) == 3, "what is known gives no alarm again"

    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    assert [one.checkpoint for one in state(world).report.rot] == [OTHER]
    world.tell(COORDINATOR, DropGeneration(1, OTHER))
    assert (state(world).report.rot_count, world.machine.counters["rot"]) == (0, 0)


def test_what_reads_well_again_is_no_finding_any_more() -> None:
    (column,) = columns(1)
    world = stored([column])
    world.disk.faults.append(Fault("read", file="columns/", count=3))
    found = passed(world)
    assert {one.damage.why for one in found.report.rot} == {"EIO"}
    assert passed(world).report.rot == ()


def test_want_of_memory_is_no_rot_and_the_file_is_read_later() -> None:
    (column,) = columns(1)
    world = stored([column], documents=False)
    world.disk.faults.append(Fault("read", "ENOMEM"))
    run_for(world, FIRST_S / 4 + 1)
    assert reads_of(world)[file_of(column)] == PAGE_BYTES
    run_for(world, RETRY_US / S + 1)
    assert reads_of(world)[file_of(column)] == world.disk.file_bytes(file_of(column))
    assert alarms(world) == []


@pytest.mark.parametrize("steps", range(6))
def test_a_drop_while_it_is_read_gives_no_alarm(steps: int) -> None:
    """After so many parts; the next one is asked for before the drop, and read after it."""
    world = stored(columns(1), documents=False)
    state(world, begin=True)
    world.held = deque()
    while world.machine.counters["bytes_scrubbed"] < steps * PAGE_BYTES:
        while not world.held:
            world.tick(us=S // 10)
        world.step()
    while not any(isinstance(each, ReadAt) for each in world.held):
        world.tick(us=S // 10)
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    while len(world.held) > 1:
        world.step(index=1)
    world.step()
    world.held = None
    run_for(world, 5)
    assert alarms(world) == []
    assert not state(world).is_running


def test_labels_that_are_replaced_while_they_are_read_give_no_alarm() -> None:
    for steps in range(8):
        world = stored([], documents=False)
        put_document(world, DocumentKind.LABELS, b"labels")
        world.held = deque()
        put_document(world, DocumentKind.LABELS, b"other labels, and longer")
        for _ in range(steps):
            if world.held:
                world.step()
        waiting, world.held = world.held, None
        state(world, begin=True)
        run_for(world, 2)
        assert alarms(world) == [], f"after step {steps}"
        world.held = waiting
        while world.held:
            world.step()
        world.held = None
        assert not passed(world).is_running
        assert alarms(world) == [], f"after step {steps}"


@pytest.mark.parametrize("where", ["cells", "block table 1", "copy 1"])
def test_what_a_reader_meets_is_looked_at_first_and_once(where: str) -> None:
    """Also by a target that scrubs for nobody else."""
    column = Column(payload_bytes=700_000, rank=8)
    world = stored([*columns(), column], limits=TargetLimits())
    world = again(world, limits=TargetLimits())
    record = f"documents/{document_name('record', CHECKPOINT)}"
    size = len(column.data)
    file, offset = {
        "cells": (file_of(column), FRAGMENTS_OFFSET),
        "block table 1": (file_of(column), FRAGMENTS_OFFSET + size),
        "copy 1": (record, PAGE_BYTES),
    }[where]
    world.disk.rot(file, offset)
    for _ in range(3):
        world.tell(READER, ReadRanges(column.id, (ByteRuns(0, size),)))
        world.tell(READER, ReadDocument(DocumentKind.RECORD, CHECKPOINT))
        run_for(world, 2)
    assert alarms(world) == [where]
    assert not state(world).is_running
    assert reads_of(world) == {file: world.disk.file_bytes(file)}


def test_an_index_that_a_reader_could_not_read_is_looked_at_first() -> None:
    """Not only when its turn comes."""
    index = bytes(range(256)) * 1000
    world = stored(columns())
    put_document(world, DocumentKind.INDEX, index)
    world = again(world, limits=TargetLimits())
    file = f"documents/{document_name('index', CHECKPOINT)}"
    world.disk.truncate_file(file, PAGE_BYTES + len(index) // 2)
    world.tell(READER, ReadDocument(DocumentKind.INDEX, CHECKPOINT))
    run_for(world, 2)
    assert list(reads_of(world)) == [file]
    assert alarms(world) == ["header 2", "copy 1"]


def test_a_period_that_cannot_be_kept_is_reported_once_and_counted() -> None:
    world = stored(columns())
    writing = Column(rank=9)
    reserve(world, writing, reservation=9)
    write(world, writing, request=39, reservation=9, stripes=[0])
    run_for(world, FIRST_S + 5)
    late = [each for each in world.reports if each.text == "scrub is late"]
    assert [dict(each.fields)["why"] for each in late] == ["others use the device"]
    assert world.machine.counters["scrub_late_seconds"] == 5
    assert state(world).report.late_s == 5
    world.tell(WRITER, AbandonColumn(), request=39)
    assert passed(world).report.late_s == world.machine.counters["scrub_late_seconds"] == 0


# --------------------------------------------------------------------------- who hears of it


def test_the_coordinator_hears_it_when_the_target_registers_and_when_it_changes() -> None:
    some = columns(1)
    world = stored(some)
    world.messages(COORDINATOR)
    run_for(world, 3)
    assert set(_told(world)) == {None}, "nothing is new"
    world.disk.rot(file_of(some[0]), 0)
    passed(world, seconds=5)
    told = [one for one in _told(world) if one is not None]
    assert told[-1].rot_count == 1
    assert told[-1].pass_ended_s > 0
    (rot,) = told[-1].rot
    assert rot == Rot(CHECKPOINT, rot.damage, rank=0, column=1)
    run_for(world, 3)
    assert all(one is None for one in _told(world))

    then = TargetWorld(world.disk, boot=12, limits=LIMITS, term=0, now_us=world.now_us)
    then.feed(SessionOpened(then.now_us, COORDINATOR, Role.COORDINATOR, ""))
    (register,) = then.messages(COORDINATOR)
    assert isinstance(register, RegisterTarget)
    assert register.scrub is not None
    assert register.scrub.rot == (rot,)


def _told(world: TargetWorld) -> list[ScrubReport | None]:
    """By each renewal."""
    renewals = [one for one in world.messages(COORDINATOR) if isinstance(one, RenewLease)]
    return [one.scrub if isinstance(one.scrub, ScrubReport) else None for one in renewals]
