"""A reader of the same host is lent a column's file; nobody else is, and the target knows of it."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.units import KiB
from ckpt.format.column import FRAGMENTS_OFFSET, trailer_offset
from ckpt.format.messages.hello import CancelRequest, Failed, Role
from ckpt.format.messages.lending import ColumnLent, LendColumn, ReturnColumn
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone, ReadRanges
from ckpt.format.messages.scrubbing import AskScrub
from ckpt.native.sums import sums_of
from ckpt.protocol.events import Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.protocol.target.reading import loans
from tests.protocol.target_world import READER, Column, TargetWorld, store

NEAR, WORKER = Session(50), Session(51)


def opened(
    role: Role = Role.READER, session: Session = NEAR, limits: TargetLimits | None = None
) -> tuple[TargetWorld, Column]:
    """A target with a column of several blocks a cell, and a peer of its host."""
    world, column = TargetWorld(limits=limits), Column(900_000, cell_bytes=192 * KiB)
    store(world, column)
    world.feed(SessionOpened(world.now_us, session, role, "near", lends=True))
    return world, column


def lend(world: TargetWorld, column: Column, request: int = 9, session: Session = NEAR) -> None:
    world.tell(session, LendColumn(column.id), request=request)


def test_the_file_goes_along_with_the_checksums_of_its_blocks() -> None:
    world, column = opened()
    lend(world, column)
    (lent,) = world.lent
    assert (lent.session, lent.request, lent.message) == (NEAR, 9, ColumnLent(FRAGMENTS_OFFSET))
    content = bytes(world.disk.read_at(lent.file, FRAGMENTS_OFFSET, len(column.data)))
    assert content == column.data
    blocks: list[int] = []
    for stripe in range(column.layout.stripe_count):
        blocks += sums_of(column.cell(stripe)).blocks
    assert np.frombuffer(lent.bulk, "<u4").tolist() == blocks
    assert len(blocks) > len(column.data) // BLOCK_BYTES, "cells end in blocks that are not whole"
    assert world.machine.counters["reads"] == 1


def test_each_that_asks_is_answered_also_where_the_table_is_known() -> None:
    world, column = opened()
    lend(world, column)
    lend(world, column, request=10)
    assert [each.request for each in world.lent] == [9, 10]


def test_a_peer_of_another_host_is_refused() -> None:
    world, column = opened()
    lend(world, column, session=READER)
    (refusal,) = world.messages(READER)
    assert isinstance(refusal, Failed)
    assert refusal.code == "refused"
    assert not world.lent


def test_a_worker_is_refused_since_its_pace_is_kept_here() -> None:
    world, column = opened(Role.DRAIN, WORKER)
    lend(world, column, session=WORKER)
    assert isinstance(world.messages(WORKER)[0], Failed)
    assert not world.lent


def test_a_column_that_is_not_here_is_not_found() -> None:
    world, _ = opened()
    lend(world, Column(column=2))
    (refusal,) = world.messages(NEAR)
    assert isinstance(refusal, Failed)
    assert refusal.code == "not_found"


@pytest.mark.parametrize(("copies", "gives"), [(1, True), (2, False)])
def test_one_trailer_will_do_and_none_is_damage(copies: int, gives: bool) -> None:
    world, column = opened()
    lend(world, column)
    stored = world.machine._core.columns[column.id]
    for copy in range(copies):
        world.disk.write_at(stored.file, trailer_offset(stored.header, copy) + 40, b"rot")
    world.machine._tables.forget(column.id)
    lend(world, column, request=10)
    assert len(world.lent) == 1 + gives
    assert [type(each) for each in world.messages(NEAR)] == ([] if gives else [Failed])


def test_while_a_column_is_lent_its_device_is_in_use() -> None:
    world, column = opened()
    reads = world.machine._reads
    assert reads.is_idle
    lend(world, column)
    lend(world, column, request=10)
    assert not reads.is_idle
    world.tell(NEAR, ReturnColumn(1000), request=9)
    assert not reads.is_idle
    world.tell(NEAR, ReturnColumn(234), request=10)
    assert reads.is_idle
    counters = world.machine.counters
    assert counters["bytes_read"] == counters["bytes_given"] == 1234
    assert counters["columns_lent"] == 2


def test_the_end_of_a_session_returns_all() -> None:
    world, column = opened()
    lend(world, column)
    world.feed(SessionClosed(world.now_us, NEAR))
    assert world.machine._reads.is_idle


def test_a_return_of_what_is_not_lent_means_nothing() -> None:
    world, column = opened()
    lend(world, column)
    for request, said in ((10, 5000), (9, -5000), (9, 5000)):
        world.tell(NEAR, ReturnColumn(said), request=request)
    world.tell(READER, ReturnColumn(7), request=9)
    assert world.machine.counters["bytes_read"] == 0
    assert world.machine._reads.is_idle


def test_who_returns_it_before_it_came_gets_nothing() -> None:
    world, column = opened()
    world.machine._tables.forget(column.id)
    world.held = deque()
    lend(world, column)
    world.tell(NEAR, ReturnColumn(0), request=9)
    while world.held:
        world.step()
    assert not world.lent
    assert world.machine._reads.is_idle


def test_one_peer_is_lent_so_many_columns_and_no_more() -> None:
    most = 4
    world, column = opened(limits=TargetLimits(read_jobs_max=most))
    for request in range(most + 1):
        lend(world, column, request=100 + request)
    assert len(world.lent) == most
    (refusal,) = world.messages(NEAR)
    assert isinstance(refusal, Failed)
    assert refusal.code == "busy"
    world.tell(NEAR, ReturnColumn(0), request=100)
    lend(world, column, request=200)
    assert world.lent[-1].request == 200


def test_a_column_whose_checksums_fit_no_frame_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loans, "TABLE_BYTES_MAX", 16)
    world, column = opened()
    lend(world, column)
    (refusal,) = world.messages(NEAR)
    assert isinstance(refusal, Failed)
    assert refusal.code == "refused"
    assert not world.lent
    assert world.machine._reads.is_idle


def test_it_may_ask_for_ranges_meanwhile() -> None:
    world, column = opened()
    lend(world, column)
    world.tell(NEAR, ReadRanges(column.id, (ByteRuns(0, 1000),)), request=11)
    assert [type(each) for each in world.messages(NEAR)] == [RangeData, RangesDone]
    world.tell(NEAR, CancelRequest(), request=9)
    assert not world.machine._reads.is_idle, "a column is returned by its own word"


@pytest.mark.parametrize("returned", [False, True])
def test_a_scrub_stands_aside_while_a_column_is_lent(returned: bool) -> None:
    world, column = opened()
    lend(world, column)
    if returned:
        world.tell(NEAR, ReturnColumn(0), request=9)
    world.tell(READER, AskScrub(begin=True))
    for _ in range(40):
        world.tick()
    reads = [each for each in world.performed if isinstance(each, ReadAt) and each.at_rest]
    assert bool(reads) == returned
