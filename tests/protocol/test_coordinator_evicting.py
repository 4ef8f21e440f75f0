"""Eviction: only what is verified in a store goes, and a save without room is told why (P6, P9)."""

from __future__ import annotations

from ckpt.base.ids import Step
from ckpt.format.messages.asking import LabelStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.saving import AttemptAborted
from tests.protocol.coordinated_target import COLUMN_BYTES
from tests.protocol.coordinating import RUN, Bench, RankFake
from tests.protocol.test_coordinator_draining import URL, WorkerFake, steps
from tests.protocol.test_coordinator_labeling import label

ROOM = 8
"""Columns that a target has room for: the high mark is passed with the seventh."""


def bench_with_room() -> Bench:
    bench = Bench(3)
    for target in bench.targets.values():
        target.capacity_bytes = ROOM * COLUMN_BYTES
    return bench


def drain_all(worker: WorkerFake) -> None:
    id = worker.lease()
    while id is not None:
        worker.end(id)
        id = worker.lease()


def test_what_is_drained_goes_oldest_first_down_to_the_low_mark() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 7):
        bench.save(step)
    drain_all(worker)
    bench.tick(5)
    assert steps(bench) == [1, 2, 3, 4, 5, 6], "three quarters are under the high mark"
    bench.save(7)
    bench.tick(5)
    assert steps(bench) == [3, 4, 5, 6, 7]
    bench.tick(30)
    assert steps(bench) == [3, 4, 5, 6, 7], "it was counted, not done twice"
    assert bench.machine.evictor.evicted_count == 2


def test_what_goes_first_is_the_oldest_step_whatever_clocks_say() -> None:
    """The next coordinator's clock is an hour late."""
    bench = bench_with_room()
    worker = WorkerFake(bench)
    bench.wall_s += 3600
    for step in range(1, 4):
        bench.save(step)
    bench.wall_s -= 3600
    for step in range(4, 8):
        bench.save(step)
    drain_all(worker)
    bench.tick(5)
    assert steps(bench) == [3, 4, 5, 6, 7]


def test_what_has_a_name_or_is_pinned_is_not_evicted() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 8):
        bench.save(step)
    label(bench, 1, add=("best",))
    label(bench, 2, pinned=True)
    drain_all(worker)
    bench.tick(5)
    assert steps(bench) == [1, 2, 5, 6, 7]


def test_nothing_goes_that_a_store_waits_for_or_that_no_store_has() -> None:
    bench = bench_with_room()
    for step in range(1, 8):
        bench.save(step)
    bench.tick(5)
    assert len(steps(bench)) == 7, "there is no store"
    worker = WorkerFake(bench, every=2)
    bench.tick(5)
    assert len(steps(bench)) == 7, "nothing is drained yet"
    drain_all(worker)
    bench.tick(5)
    assert steps(bench) == [2, 4, 5, 6, 7], "the even ones are in no store"


def test_a_second_store_holds_back_what_it_has_not() -> None:
    bench = bench_with_room()
    one = WorkerFake(bench)
    other = WorkerFake(bench, url="file:///archive", runs=("run",))
    for step in range(1, 8):
        bench.save(step)
    drain_all(one)
    bench.tick(5)
    assert len(steps(bench)) == 7
    drain_all(other)
    bench.tick(10)
    assert steps(bench) == [3, 4, 5, 6, 7]


def test_what_has_a_name_or_is_pinned_stays() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 7):
        bench.save(step)
    bench.tell(bench.session(), LabelStep(RUN, Step(1), add=("best",)))
    bench.tell(bench.session(), LabelStep(RUN, Step(2), pinned=True))
    drain_all(worker)
    bench.save(7)
    bench.tick(5)
    assert steps(bench) == [1, 2, 5, 6, 7]


def test_what_is_read_and_the_newest_step_of_each_run_stay() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for run in "abcdefg":
        bench.save(1, run=run)
    drain_all(worker)
    bench.tick(10)
    assert bench.machine.evictor.evicted_count == 0
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 7):
        bench.save(step)
    reader = bench.session()
    (answer,) = bench.tell(reader, Resolve(RUN, Step(1)))
    assert isinstance(answer, Resolved)
    bench.save(7)
    drain_all(worker)
    bench.tick(10)
    assert steps(bench) == [1, 4, 5, 6, 7]


def test_a_save_without_room_is_refused_with_the_reason_and_when_to_come_again() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 4):
        bench.save(step)
    for target in bench.targets.values():
        target.capacity_bytes = 3 * COLUMN_BYTES + 100
    bench.tick(2)
    worker.renew(rate=100.0)
    rank = RankFake(bench, run="other", payload_bytes=20_000)
    (refused,) = rank.open(4)
    assert isinstance(refused, AttemptAborted)
    assert refused.code == "no_space"
    assert f"nothing may go before it is drained: 3 wait for {URL}" in refused.message
    assert refused.retry_after_us is not None
    assert 5_000_000 < refused.retry_after_us <= 60_000_000
    drain_all(worker)
    (refused,) = rank.open(4)
    assert isinstance(refused, AttemptAborted)
    assert "room is being made" in refused.message
    bench.tick(3)
    assert steps(bench) == [3], "a save without room evicts, whatever the marks say"
    rank.open(4)
    assert rank.plan is not None


def test_a_step_that_was_evicted_is_named_with_the_store_that_has_it() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 8):
        bench.save(step)
    drain_all(worker)
    bench.tick(5)
    (answer,) = bench.tell(bench.session(), Resolve(RUN, Step(1)))
    assert isinstance(answer, Failed)
    assert (answer.code, URL in answer.hint) == ("not_found", True)
