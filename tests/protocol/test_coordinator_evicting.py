"""Eviction: only what is verified in a store goes, and a save without room is told why (P6, P9)."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Step
from ckpt.format.messages.asking import LabelStep
from ckpt.format.messages.drains import DrainNoted, RenewDrain
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.saving import AttemptAborted
from ckpt.protocol.coordinator.looks import FRESH_US, PATIENCE_US, Looks
from tests.protocol.coordinated_target import COLUMN_BYTES
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
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


class LookingWorker(WorkerFake):
    """Of what it is asked for, what is not `gone` stands."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.gone: set[Step] = set()
        self.asked: tuple[CheckpointId, ...] = ()

    def look(self) -> None:
        """As it renews: it is asked, and answers."""
        message = RenewDrain(self.url, self.name, None, looks=True)
        noted = self.say(message)
        assert isinstance(noted, DrainNoted)
        self.asked = noted.look
        stands = tuple(id for id in noted.look if id.step not in self.gone)
        gone = tuple(id for id in noted.look if id.step in self.gone)
        self.say(replace(message, stands=stands, gone=gone))


def seven_drained() -> tuple[Bench, LookingWorker]:
    """Above the high mark; the worker has said that it looks."""
    bench = bench_with_room()
    worker = LookingWorker(bench)
    for step in range(1, 7):
        bench.save(step)
    drain_all(worker)
    worker.look()
    assert worker.asked == (), "nothing is about to go"
    bench.save(7)
    drain_all(worker)
    return bench, worker


def test_a_store_is_asked_for_what_is_about_to_go_and_what_is_gone_there_stays() -> None:
    """Deleted by hand since its worker's last look, it was the only copy that was evicted."""
    bench, worker = seven_drained()
    worker.gone = {Step(1)}
    bench.tick(3)
    assert len(steps(bench)) == 7, "it was not asked yet"
    worker.look()
    assert [id.step for id in worker.asked] == [1, 2]
    bench.tick(3)
    assert steps(bench) == [1, 3, 4, 5, 6, 7]
    bench.save(8)
    drain_all(worker)
    for _ in range(4):
        bench.tick(3)
        worker.look()
    assert steps(bench) == [1, 4, 5, 6, 7, 8], "another one goes instead"
    worker.gone = set()  # It was drained again.
    worker.look()
    bench.save(9)
    drain_all(worker)
    for _ in range(4):
        bench.tick(3)
        worker.look()
    assert steps(bench)[0] > 1


def test_a_store_that_does_not_say_whether_a_step_is_there_holds_it_for_a_while() -> None:
    bench, worker = seven_drained()
    for _ in range(PATIENCE_US // SECOND_US // 5):
        assert len(steps(bench)) == 7
        bench.tick(5)
        worker.say(RenewDrain(URL, worker.name, None, looks=True))
    bench.tick(5)
    assert steps(bench) == [3, 4, 5, 6, 7]


def test_the_word_of_a_store_counts_for_a_while_and_one_whose_worker_left_is_not_waited_for() -> (
    None
):
    looks, now_us = Looks(), 5 * SECOND_US
    (id,) = [Bench().save(1)]
    assert not looks.may_go(id, now_us)
    assert looks.due(now_us) == (id,)
    looks.heard([id], [], now_us)
    assert looks.may_go(id, now_us + FRESH_US - 1)
    assert looks.due(now_us + FRESH_US - 1) == ()
    assert not looks.may_go(id, now_us + FRESH_US)
    assert looks.due(now_us + 2 * FRESH_US) == (), "nobody wants to know any more"
    bench, worker = seven_drained()
    bench.close(worker.session)
    bench.tick(5)
    assert steps(bench) == [3, 4, 5, 6, 7]
