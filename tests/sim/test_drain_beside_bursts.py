"""P8: a burst beside a drain takes at most half as long again as without it, of a crowd of ranks on
devices that do one thing after another (F19), also when one of them is slow (F3); and the drain
goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.objects.stored_steps import stored_steps
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.stager.events import SaveCommitted
from tests.landing import in_turn
from tests.sim.crowd import RUN, Crowd
from tests.sim.drain_node import DrainNode, Trouble
from tests.sim.drain_reader import Tally, TierReader
from tests.sim.drain_store import Bucket, FakeSink, calm
from tests.sim.drain_world import PayloadSource, header_of, small_items

CODE = Code(4, 2)
RANKS = 48
TARGETS = 8
DEVICE = 40
"""A device of the crowd takes 1 to 16 ms for an operation, so that queues last for seconds."""
STEPS = (10, 20, 30, 40)
"""The first ones are drained while the last is saved."""
GAP_US = 60 * US_PER_S
STORE = StorePolicy("mem://beside")
WORKERS = 4
SLOW = 30
SLOWER = 1.5
"""By so much a drain may slow a burst down."""
SLOW_TARGET = TargetId("t3")
READS_MIN = 200
"""While the burst lasts; each worker reads on."""
END_US = 3600 * US_PER_S


class DrainedCrowd:
    """Steps are saved, and drained while the last is."""

    def __init__(self, slow: int, steps: tuple[int, ...] = STEPS) -> None:
        """`slow`: so many times slower one device is when the drain begins."""
        self.crowd = Crowd(1, RANKS, [DEVICE] * TARGETS, CODE, 6, steps, gap_us=GAP_US)
        self._slow = slow
        self._steps = steps
        self.tally = Tally()
        self.bucket = Bucket(STORE.url, conditional=True)
        self.reads_beside = 0
        """Questions while the last step was saved."""

    @property
    def reads(self) -> int:
        """Questions that workers asked targets."""
        return sum(self.tally.asked.values())

    @property
    def drained(self) -> list[int]:
        return [int(step) for step, _ in stored_steps(FakeSink(self.bucket, calm), RUN)]

    def last_burst(self, workers: int) -> float:
        """How long the last step takes, while so many workers drain."""
        crowd = self.crowd
        crowd.start()
        early = self._steps[:-1]
        self._run_until(lambda: all(set(early) <= n.outcomes.keys() for n in crowd.ranks))
        crowd.clock.pass_time(GAP_US // 2)
        crowd.clock.pass_time(GAP_US // 2 - GAP_US // 8)
        crowd.targets[SLOW_TARGET].disk_slow *= self._slow
        for number in range(workers):
            self._work(number)
        self._run_until(lambda: len(crowd.oracles.opened) == len(self._steps))
        before = self.reads
        self._run_until(lambda: all(len(n.outcomes) == len(self._steps) for n in crowd.ranks))
        self.reads_beside = self.reads - before
        ends = [node.outcomes[self._steps[-1]] for node in crowd.ranks]
        assert all(isinstance(end, SaveCommitted) for end in ends)
        return max(end.info.commit_us for end in ends if isinstance(end, SaveCommitted)) / US_PER_S

    def finish(self) -> None:
        self._run_until(lambda: self.drained == list(STEPS))

    def _run_until(self, condition: Callable[[], bool]) -> None:
        assert self.crowd.clock.run(condition, END_US)

    def _work(self, number: int) -> None:
        crowd = self.crowd
        DrainNode(
            crowd.clock, crowd.network, crowd.coordinator, self.bucket, STORE, f"drain{number}",
            self._tier_reader, self._source, Trouble, lambda: None, RUN,
        ).start()  # fmt: skip

    def _tier_reader(self, node: DrainNode, id: CheckpointId) -> TierReader:
        crowd = self.crowd
        return TierReader(
            crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
            crowd.targets.__getitem__, node, id, self.tally,
        )  # fmt: skip

    def _source(self, reader: TierReader) -> PayloadSource:
        job = self.crowd.job
        return PayloadSource(header_of(reader.id, 1, RANKS), job.payload_bytes, reader.payloads)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


@pytest.mark.parametrize("slow", in_turn([1, SLOW], every=4, first=2))
def test_a_burst_beside_a_drain_is_hardly_slower(slow: int) -> None:
    # Of what was saved long ago nothing is left to do: one step before the last is enough.
    without = DrainedCrowd(slow, STEPS[-2:]).last_burst(0)
    beside = DrainedCrowd(slow)
    assert beside.last_burst(WORKERS) <= SLOWER * without
    assert beside.reads_beside > READS_MIN
    assert beside.tally.asked[SLOW_TARGET] > 0
    assert len(beside.drained) < len(STEPS), "the drain was under way all the time"
    beside.finish()
