"""F20 where it begins: all ranks of a launch ask at once what to load and hold it, while another
crowd reserves its next save. Nobody is held more than once, no target promises more than its pool
(memory.py), and nothing is left of it (P5).
"""

from __future__ import annotations

from collections import Counter

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.reading import DocumentData, ManifestData, RangeData
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.events import Send, Session
from ckpt.protocol.stager.events import SaveCommitted
from tests.landing import at_turn
from tests.sim.clockwork import Clockwork
from tests.sim.crowd import CELL, LIMITS, RUN, CountingNetwork, Crowd, Ticks
from tests.sim.load_nodes import LoadingRank, LoadJob
from tests.sim.target_node import TargetNode

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


@at_turn(0, every=2)
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


# --------------------------------------------------------------------------- slow sockets


TAKES_US = 2_000
"""A target's socket is looked at so often."""
STARVED_US = 3 * US_PER_S
"""Longer than a reader is quick."""
STARVED_EACH = 8
LAUNCH = 8
"""Ranks of each launch: it loads what as many have saved."""


class PressedNetwork(CountingNetwork):
    """What was sent to a process has left its sender when the process has taken it."""

    def __init__(self, clock: Clockwork) -> None:
        super().__init__(clock)
        self.untaken: Counter[Session] = Counter()
        """Of each sender's session: frames with bytes that nobody has taken."""

    def send(self, action: Send) -> None:
        if action.bulk and action.session in self._sessions:
            self.untaken[action.session] += 1
        super().send(action)

    def took(self, session: Session) -> None:
        """The process whose session that is has read a frame with bytes."""
        connection = self._sessions.get(session)
        if connection is not None:
            self.untaken[connection.other(session).session] -= 1


class PressedTarget(TargetNode):
    """My frames leave when they are taken, however long that lasts."""

    read_most = 0

    def _drain_soon(self, session: Session) -> None:
        if session not in self._draining:
            self._draining.add(session)
            self._clock.after(TAKES_US, self._look, session, self._boots)

    def _look(self, session: Session, boots: int) -> None:
        assert isinstance(self._network, PressedNetwork)
        self.read_most = max(self.read_most, self.memory.read_bytes)
        if self._network.untaken[session] and session in self._network._sessions:
            self._clock.after(TAKES_US, self._look, session, boots)
        else:
            self._drained(session, boots)


class PressedCrowd(Crowd):
    """The processes' sockets are as full as they leave them."""

    def _made_network(self) -> CountingNetwork:
        return PressedNetwork(self.clock)

    def _made_target(self, number: int, seed: int, ticks: Ticks) -> TargetNode:
        return PressedTarget(
            self.clock, self.network, self.coordinator, number, seed, LIMITS,
            tick_us=ticks.target_us,
        )  # fmt: skip


class TakingRank(LoadingRank):
    """I say when I have read my socket."""

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if bulk and isinstance(message, RangeData | ManifestData | DocumentData):
            assert isinstance(self._network, PressedNetwork)
            self._network.took(session)
        super().received(session, request, message, bulk)


@at_turn(1, every=2)
def test_a_crowd_that_restores_takes_bounded_memory_and_starves_nobody() -> None:
    """Of several targets at once, so that a circle of readers that hold memory of one and wait for
    another would show. Some stand still, for longer than a target waits before it calls them slow:
    the others go on, and give up no column.
    """
    crowd = PressedCrowd(2, LAUNCH, [DEVICE] * TARGETS, CODE, 16)
    crowd.start()
    assert crowd.clock.run(lambda: all(10 in n.outcomes for n in crowd.ranks), END_US)
    readers = [
        TakingRank(
            crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
            crowd.targets.__getitem__,
            LoadJob(RUN, f"again{number // LAUNCH}", LAUNCH), number % LAUNCH,
        )
        for number in range(RANKS)
    ]  # fmt: skip
    for reader in readers:
        crowd.clock.after(crowd.clock.between(0, 2_000), reader.start)
    for reader in readers[::STARVED_EACH]:
        begin_us = crowd.clock.between(0, 400_000)
        crowd.clock.after(begin_us, setattr, reader, "stopped", True)
        crowd.clock.after(begin_us + STARVED_US, setattr, reader, "stopped", False)
    assert crowd.clock.run(lambda: all(reader.outcome for reader in readers), END_US)
    assert {reader.outcome for reader in readers} == {"read"}
    del readers[::STARVED_EACH]
    assert not any(reader.rebuilt_bytes for reader in readers)
    most = max(target.read_most for target in crowd.targets.values())
    limits, trailer = LIMITS, 2 * CELL
    cap = limits.read_pool_bytes + limits.read_crowd_bytes
    assert cap <= most <= cap + limits.read_keep_bytes + trailer
