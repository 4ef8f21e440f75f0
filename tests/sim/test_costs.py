"""What one rank costs a machine is the same in a crowd of any size: lines that run, never time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import pytest

from ckpt.base.ids import BootId, CheckpointId, Generation, Step, TargetId
from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.saving import OpenPayload
from ckpt.format.messages.targets import DropColumn, DropGeneration, Dropped, RenewLease
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.repairing.respreading import LOOK_US
from ckpt.protocol.coordinator.repairing.tasks import LOOK_US as QUEUE_LOOK_US
from ckpt.protocol.events import Received, Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import Core, TargetIdentity, TargetLimits
from ckpt.protocol.target.disk_events import SpaceMeasured
from ckpt.protocol.target.space import Space
from tests.protocol.coordinating import RUN as RUN_OF_BENCH
from tests.protocol.coordinating import Bench
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    WRITER,
    Column,
    TargetWorld,
    reserve,
    store,
)
from tests.protocol.test_coordinator_repairing import Worker
from tests.sim.crowd import RUN, Crowd
from tests.sim.load_nodes import LoadingRank, LoadJob

CODE = Code(2, 1)
IDENTITY = TargetIdentity("cluster-1", TargetId("t1"), BootId(1), "p/r/h/d")
DEVICE = 10
FEW, MANY = 16, 64
NOISE = 1.25
"""What a queue, or a heap, may cost more where it is longer."""
END_US = 600 * US_PER_S

Wanted = Callable[[object], bool]


class Machine(Protocol):
    """One that is counted."""

    def handle(self, event: object) -> object: ...


class Lines:
    """I count the lines of ckpt that run in machines while they handle some events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: Wanted) -> None:
        self.lines = 0
        self.events = 0
        self._monkeypatch, self._wanted = monkeypatch, wanted

    def watch(self, machine: Machine) -> None:
        """From now on."""
        handle = machine.handle

        def counted(event: object) -> object:
            return self.count(lambda: handle(event)) if self._wanted(event) else handle(event)

        self._monkeypatch.setattr(machine, "handle", counted)

    def count(self, work: Callable[[], object]) -> object:
        """What it answers."""
        self.events += 1
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _called(self, _frame: FrameType, _event: str, _argument: object) -> object:
        return self._ran

    def _ran(self, _frame: FrameType, event: str, _argument: object) -> object:
        self.lines += event == "line"
        return self._ran

    @property
    def each(self) -> float:
        """Lines for each event."""
        assert self.events
        return self.lines / self.events


def crowd_of(
    ranks: int, targets: int = 8, steps: tuple[int, ...] = (10,), device: int = DEVICE
) -> Crowd:
    return Crowd(1, ranks, [device] * targets, CODE, 2, steps, gap_us=US_PER_S // 5)


def restored(monkeypatch: pytest.MonkeyPatch, ranks: int, targets: int, wanted: Wanted) -> Lines:
    """A launch that has saved ends, and another one loads what it has saved."""
    crowd, lines = crowd_of(ranks, targets), Lines(monkeypatch, wanted)
    crowd.burst()
    for node in crowd.ranks:
        node.crash()
    crowd.clock.pass_time(US_PER_S)
    readers = [
        LoadingRank(
            crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
            crowd.targets.__getitem__, LoadJob(RUN, "again", ranks), rank,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    lines.watch(crowd.coordinator.machine)
    for reader in readers:
        crowd.clock.after(crowd.clock.between(0, 2_000), reader.start)
    assert crowd.clock.run(lambda: all(reader.outcome for reader in readers), END_US)
    assert {reader.outcome for reader in readers} == {"read"}
    crowd.clock.pass_time(US_PER_S)
    return lines


def _is_heard(event: object) -> bool:
    return isinstance(event, Received | SessionClosed)


def _is_end(event: object) -> bool:
    return isinstance(event, SessionClosed)


def test_a_rank_that_loads_costs_the_coordinator_the_same_in_any_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (restored(monkeypatch, ranks, 8, _is_heard).each for ranks in (FEW, MANY))
    assert many <= NOISE * few


def test_where_to_read_a_checkpoint_costs_a_look_at_each_target_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank that loads asks it."""
    found = []
    for targets in (8, 64):
        crowd, lines = crowd_of(targets, targets), Lines(monkeypatch, _is_end)
        crowd.burst()
        (kept,) = (checkpoints := crowd.coordinator.machine.checkpoints).all()
        assert len(checkpoints.addresses(kept)) > 0.9 * targets
        lines.count(lambda: checkpoints.addresses(kept))  # noqa: B023
        found.append(lines.each)
    assert found[1] <= NOISE * 8 * found[0]


def test_a_look_at_copies_of_documents_costs_each_checkpoint_the_same_beside_many_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for targets in (8, 64):
        bench, lines = Bench(targets), Lines(monkeypatch, _is_end)
        bench.tick(GATHERING_US / US_PER_S)
        for step in range(1, 21):
            bench.save(step)
        bench.tick(LOOK_US / US_PER_S)
        respreader = bench.machine.repairs.documents
        bench.now_us += 2 * LOOK_US
        bench.machine._desk.now_us = bench.now_us
        lines.count(respreader.tick)
        found.append(lines.each)
    assert found[1] <= 2 * found[0]


def _is_received(event: object) -> bool:
    return isinstance(event, Received)


def lost(columns: int) -> Bench:
    """Four targets, of which one comes back without so many columns."""
    bench = Bench(4)
    bench.tick(GATHERING_US / US_PER_S)
    victim, step = next(iter(bench.targets.values())), 0
    while len(victim.columns) < columns:
        step += 1
        bench.save(step)
    bench.stop(victim.id)
    victim.columns.clear()
    victim.reboot()
    bench.start(victim)
    bench.now_us += 2 * QUEUE_LOOK_US
    bench.machine._desk.now_us = bench.now_us
    return bench


def test_a_lost_column_is_queued_at_the_same_cost_among_any_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that is due is looked at at once, and only now and then."""
    found = []
    for columns in (10, 100):
        bench, lines = lost(columns), Lines(monkeypatch, _is_received)
        repairs = bench.machine.repairs
        lines.count(repairs.waiting)
        assert sum(len(one.columns) for one in repairs.waiting()) == columns
        found.append(lines.lines / columns)
    assert found[1] <= NOISE * found[0]


def test_a_lost_column_is_handed_out_and_named_at_the_same_cost_among_any_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for columns in (10, 100):
        bench, lines = lost(columns), Lines(monkeypatch, _is_received)
        worker = Worker(bench)
        bench.machine.repairs.waiting()
        lines.watch(bench.machine)
        for _ in range(8):
            assert worker.lease().payload is not None
            worker.seal()
            worker.end()
        assert bench.machine.repairs.counts.columns == 8
        found.append(lines.lines)
    assert found[1] <= NOISE * found[0]


def test_a_column_that_moves_costs_the_same_among_any_ranks_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the page of what has moved, which is written whole."""
    found = []
    for ranks in (4, 32):
        bench, lines = Bench(5), Lines(monkeypatch, _is_received)
        bench.tick(GATHERING_US / US_PER_S)
        bench.save(1, world_size=ranks)
        victim = next(iter(bench.targets.values()))
        assert victim.columns
        bench.stop(victim.id)
        bench.tick(310)
        worker = Worker(bench)
        bench.machine.repairs.waiting()
        worker.lease()
        worker.seal()
        lines.watch(bench.machine)
        worker.end()
        assert worker.leased.payload is not None
        kept = bench.machine.checkpoints.get(worker.leased.payload.checkpoint)
        assert kept is not None
        assert kept.moved
        found.append(lines.lines)
    assert found[1] <= NOISE * found[0]


def test_a_renewal_of_a_worker_costs_the_same_beside_any_number_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for others in (2, 32):
        bench, lines = lost(40), Lines(monkeypatch, _is_received)
        workers = [Worker(bench, f"w{number}") for number in range(1 + others)]
        for worker in workers:
            assert worker.lease().payload is not None
        lines.watch(bench.machine)
        workers[0].renew()
        found.append(lines.lines)
    assert found[1] <= NOISE * found[0]


def left(monkeypatch: pytest.MonkeyPatch, ranks: int) -> Lines:
    """A launch ends in the middle of its save."""
    crowd, lines = crowd_of(ranks, device=40 * DEVICE), Lines(monkeypatch, _is_end)
    crowd.start()
    crowd.clock.pass_time(US_PER_S // 5)
    assert not any(node.outcomes for node in crowd.ranks)
    lines.watch(crowd.coordinator.machine)
    for node in crowd.ranks:
        node.crash()
    crowd.clock.pass_time(US_PER_S)
    return lines


def test_a_rank_that_leaves_in_a_save_costs_the_coordinator_the_same_in_any_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (left(monkeypatch, ranks).each for ranks in (FEW, MANY))
    assert many <= NOISE * few


def test_a_rank_that_leaves_a_target_costs_it_the_same_beside_any_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for ranks in (6, 96):
        world, lines = TargetWorld(), Lines(monkeypatch, _is_end)
        for number in range(ranks):
            column, session = Column(8192, cell_bytes=4096, rank=number), Session(100 + number)
            reserve(world, column, number + 1)
            world.feed(SessionOpened(world.now_us, session, Role.STAGER, "w"))
            world.tell(session, column.begin(number + 1))
        lines.watch(world.machine)
        world.feed(SessionClosed(world.now_us, session))
        found.append(lines.each)
    assert found[1] <= NOISE * found[0]


def test_a_rank_that_saves_costs_the_same_after_many_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for count in (2, 60):

        def is_last(event: object, last: int = 9 + count) -> bool:
            match event:
                case Received(message=OpenPayload(step=step)):
                    return step == last
            return False

        crowd = crowd_of(4, steps=tuple(range(10, 10 + count)))
        lines = Lines(monkeypatch, is_last)
        crowd.begin()
        lines.watch(crowd.coordinator.machine)
        crowd.finish()
        found.append(lines.each)
    assert found[1] <= NOISE * found[0]


def _is_renewal(event: object) -> bool:
    return isinstance(event, Received) and isinstance(event.message, RenewLease)


def _is_question(event: object) -> bool:
    return isinstance(event, Received) and isinstance(event.message, Resolve)


@pytest.mark.parametrize("wanted", [_is_renewal, _is_question])
def test_what_happens_costs_the_same_beside_any_crowd_that_waits_to_load(
    monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    """For targets that are away."""
    found = []
    for readers in (FEW, MANY):
        bench, lines = Bench(5), Lines(monkeypatch, wanted)
        placed = bench.machine.checkpoints.get(bench.save(1))
        assert placed is not None
        assert placed.placement is not None
        columns = next(iter(placed.placement.values())).columns
        holders = sorted(id for id in columns if id is not None)
        bench.tick(GATHERING_US / US_PER_S)
        bench.stop(*holders[:2])
        question = Resolve(RUN_OF_BENCH, None, timeout_us=END_US)
        for _ in range(readers):
            bench.tell(bench.session(), question)
        lines.watch(bench.machine)
        bench.tell(bench.session(), question)
        bench.tick(1)
        assert not bench.sent(Resolved)
        found.append(lines.each)
        for id in holders[:2]:
            bench.start(id)
        assert len(bench.sent(Resolved)) == readers + 1
    assert found[1] <= NOISE * found[0]


def _is_drop(event: object) -> bool:
    return isinstance(event, Received) and isinstance(event.message, DropGeneration | DropColumn)


@pytest.mark.parametrize("whole", [True, False])
def test_a_drop_costs_a_target_the_same_beside_any_columns_and_streams(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    found = []
    for others in (FEW, MANY):
        world, lines = TargetWorld(), Lines(monkeypatch, _is_drop)
        dropped = Column(8192, cell_bytes=4096)
        store(world, dropped)
        for number in range(others):
            id = CheckpointId(CHECKPOINT.run, Step(number), Generation(1, 100 + number))
            kept, begun = (Column(8192, cell_bytes=4096, rank=r, checkpoint=id) for r in (0, 1))
            store(world, kept, reservation=2 * number + 2)
            reserve(world, begun, 2 * number + 3)
            world.tell(WRITER, begun.begin(2 * number + 3), request=1000 + number)
        lines.watch(world.machine)
        message = DropGeneration(1, CHECKPOINT) if whole else DropColumn(1, dropped.id)
        world.tell(COORDINATOR, message)
        assert isinstance(world.messages(COORDINATOR)[-1], Dropped)
        assert world.machine.column_count == others
        found.append(lines.each)
    assert found[1] <= NOISE * found[0]


class CountedBytes(int):
    """I count how often I am added to a sum."""

    added = 0

    def __radd__(self, other: int) -> int:
        type(self).added += 1
        return other + int(self)


def test_a_question_of_space_looks_at_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(Core(IDENTITY, b"s" * 32, TargetLimits(capacity_bytes=1 << 40)))
    space.measured(SpaceMeasured(0, 1 << 40, 1 << 40))
    for number in range(MANY):
        assert space.promise(f"file-{number}", CountedBytes(4096))
    monkeypatch.setattr(CountedBytes, "added", 0)
    before = space.available
    assert space.held_bytes == MANY * 4096
    assert CountedBytes.added == 0
    space.settle("file-0")
    space.measured(SpaceMeasured(0, 1 << 40, (1 << 40) - 4096))
    assert space.device_available == before, "it is measured now, and promised no more"
    for number in range(MANY):
        space.forget(f"file-{number}")
    assert (space.held_bytes, space.available) == (0, before + (MANY - 1) * 4096)
