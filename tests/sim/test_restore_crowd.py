"""F20 where it begins: all ranks of a launch ask at once what to load and hold it, while another
crowd reserves its next save. Nobody is held more than once, no target promises more than its pool
(memory.py), and nothing is left of it (P5).
"""

from __future__ import annotations

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.stager.events import SaveCommitted
from tests.sim.crowd import RUN, Crowd
from tests.sim.load_nodes import LoadingRank, LoadJob

CODE = Code(4, 2)
RANKS = 96
TARGETS = 12
DEVICE = 10
"""Operations of a device take up to 4 ms, one after another."""
STEPS = (10, 20)
GAP_US = 60 * US_PER_S
END_US = 600 * US_PER_S
LOOK_US = 200
DIES_EACH = 3
"""One in so many readers dies when it knows what to load."""
ANSWERS_MAX = 2
"""To each rank's one question; a tie or two are asked again."""


class Restore:
    """A launch that loads the first step while the other one saves the second."""

    def __init__(self) -> None:
        self.crowd = crowd = Crowd(1, RANKS, [DEVICE] * TARGETS, CODE, 4, STEPS, gap_us=GAP_US)
        self.pins_most = 0
        self.readers = [
            LoadingRank(
                crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
                crowd.targets.__getitem__, LoadJob(RUN, "again", RANKS), rank,
            )
            for rank in range(RANKS)
        ]  # fmt: skip

    @property
    def pins(self) -> int:
        """Held by anybody."""
        checkpoints = self.crowd.coordinator.machine.checkpoints
        return sum(len(checkpoint.pins) for checkpoint in checkpoints.all())

    def run(self) -> None:
        """Until everybody has what he wanted."""
        crowd = self.crowd
        crowd.start()
        assert crowd.clock.run(lambda: all(10 in n.outcomes for n in crowd.ranks), END_US)
        # The first of them comes for its second save: all do, in the same moment.
        assert crowd.clock.run(lambda: len(crowd.oracles.opened) == len(STEPS), END_US)
        for reader in self.readers:
            crowd.clock.after(crowd.clock.between(0, 2_000), reader.start)
        self._look()
        ended = lambda: all(reader.outcome for reader in self.readers)  # noqa: E731
        assert crowd.clock.run(ended, END_US)
        assert crowd.clock.run(
            lambda: all(len(n.outcomes) == len(STEPS) for n in crowd.ranks), END_US
        )
        crowd.clock.pass_time(GAP_US)

    def _look(self) -> None:
        self.pins_most = max(self.pins_most, self.pins)
        for reader in self.readers[::DIES_EACH]:
            if reader.reading:
                reader.crash()
        if not all(reader.outcome for reader in self.readers):
            self.crowd.clock.after(LOOK_US, self._look)


def test_a_crowd_that_restores_and_reserves_at_once_is_held_within_bounds() -> None:
    restore = Restore()
    restore.run()
    crowd, sent = restore.crowd, restore.crowd.network.sent
    ends = [reader.outcome for reader in restore.readers]
    assert set(ends) == {"read", "crashed"}
    assert ends.count("crashed") == RANKS // DIES_EACH, "they died while they were held"
    assert {str(reader.loaded.step) for reader in restore.readers if reader.loaded} == {"10"}
    assert RANKS // 2 < restore.pins_most <= RANKS + 1, "one for each rank, one for all"
    assert sent[Resolved] <= ANSWERS_MAX * RANKS
    assert sent[Reserve] <= ANSWERS_MAX * len(STEPS) * RANKS * CODE.n
    saves = [end for node in crowd.ranks for end in node.outcomes.values()]
    assert all(isinstance(end, SaveCommitted) and not end.info.columns_missing for end in saves)
    assert restore.pins == 0
    assert not any(target.memory.held_bytes for target in crowd.targets.values())
