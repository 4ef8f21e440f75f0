"""Histories of what the tier loses and an object store has: columns vanish from targets, beyond
repair, and some of them come back, some of these damaged. A checkpoint is `stored` while too few of
its columns are right, and committed again when enough are; a load gets right bytes, from the tier
or from the store; and nothing that a store has is counted as lost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.base.units import US_PER_S
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages import Message
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.objects import names
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.reading.stored import STORED, state_text
from ckpt.protocol.coordinator.repairing import doubting
from ckpt.protocol.events import Send, Session
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import Keep
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim import faults
from tests.sim.drain_world import DrainOracles, DrainWorld, small_items
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.reader_node import ReaderNode
from tests.sim.world import RANK_COUNT, RUN

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 20
"""Of each half: a landing runs one."""
SEEDS_SOAK = 300
PLANTED_SEEDS = 20
STEPS = (10, 20, 30)
URL = "mem://one"
READ_US = 60_000_000
STATE_US = 120_000_000
"""A checkpoint is looked at within 30 s of a new map, one after another."""


class StoreReader(ReaderNode):
    """I can read object stores as well: `stored` says that I was sent there."""

    world: DrainWorld

    def _ask_coordinator(self, session: Session) -> None:
        self._coordinator_session = session
        resolve = Resolve(self._run, self.step, timeout_us=4_000_000, stored=True)
        self._network.send(Send(session, next(self._requests), resolve))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if isinstance(message, Resolved) and message.stored:
            id = message.info.checkpoint
            prefix = names.generation_prefix(RUN, id.step, id.generation)
            self.world.check_whole(self.world.buckets[URL], prefix)
            self._end(STORED)
        else:
            super().received(session, request, message, bulk)


@dataclass(slots=True)
class Vanished:
    """Columns that are not on their targets now, and those that came back damaged."""

    world: DrainWorld
    files: dict[TargetId, list[str]] = field(default_factory=dict)
    rotted: set[str] = field(default_factory=set)
    """Names of columns."""

    def hide(self, id: TargetId) -> None:
        """As when a directory is moved away: the target starts without its columns."""
        node = self.world.targets[id]
        node.crash(Keep.ALL)
        node.disk.make_directory("elsewhere")
        columns = [file for file in node.disk.files() if file.startswith("columns/")]
        self.files[id] = [file.removeprefix("columns/") for file in columns]
        self._move(id, "columns", "elsewhere")
        node.start()

    def bring_back(self, id: TargetId, *, rots: bool) -> None:
        node = self.world.targets[id]
        node.crash(Keep.ALL)
        self._move(id, "elsewhere", "columns")
        for name in self.files.pop(id):
            if rots:
                node.disk.rot(f"columns/{name}", FRAGMENTS_OFFSET)
                self.rotted.add(name)
        node.start()

    def _move(self, id: TargetId, old: str, new: str) -> None:
        disk = self.world.targets[id].disk
        for name in self.files[id]:
            disk.rename_file(f"{old}/{name}", f"{new}/{name}")
        for directory in (old, new):
            disk.sync_directory(directory)

    def is_readable(self, id: CheckpointId) -> bool:
        """By what the disks hold."""
        code = self.world.coordinator.machine_policy.code
        held = {file for node in self.world.targets.values() for file in node.disk.files()}
        for rank in range(RANK_COUNT):
            payload = PayloadId(id, Rank(rank))
            columns = [column_name(ColumnId(payload, ColumnNumber(j))) for j in range(code.n)]
            whole = [c for c in columns if f"columns/{c}" in held and c not in self.rotted]
            if len(whole) < code.k:
                return False
        return True


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, states that were seen); raises Violation when a promise breaks."""
    world = DrainWorld.build(seed)
    assert isinstance(world, DrainWorld)
    assert isinstance(world.oracles, DrainOracles)
    world.oracles.world = world
    rng, policy = world.clock.rng, StorePolicy(URL)
    world.start()
    world.add_store(policy, conditional=True)
    world.start_worker(policy)
    trainers = world.launch(STEPS, 300_000, rng.choice([3_000, 20_000]))
    world.clock.pass_time(4_000_000)
    for node in (*trainers, *world.ranks):
        node.crash()
    world.heal()
    if not world.clock.run(world.is_idle, 2 * SETTLE_US):
        raise Violation(f"P9: never drained: {world.lacking()}")
    vanished, seen = Vanished(world), []
    code = world.coordinator.machine_policy.code
    for id in rng.sample(sorted(world.targets), rng.randint(code.m + 1, len(world.targets))):
        vanished.hide(id)
    seen += _settled(world, vanished)
    while vanished.files:
        for id in rng.sample(sorted(vanished.files), rng.randint(1, len(vanished.files))):
            vanished.bring_back(id, rots=rng.random() < 0.3)
        if rng.random() < 0.5:
            world.clock.after(rng.randint(0, 4_000_000), faults.coordinator_crashed, world)
        seen += _settled(world, vanished)
    return world.clock.steps, seen


def _settled(world: DrainWorld, vanished: Vanished) -> list[str]:
    """The states that all checkpoints have come to, each loaded in both ways."""
    wanted = {
        id: "committed" if vanished.is_readable(id) else STORED for id in sorted(world.committed)
    }
    world.clock.pass_time(5 * US_PER_S)
    world.heal()
    if not world.clock.run(lambda: _states(world) == wanted, STATE_US):
        states = {str(id): (state, wanted.get(id)) for id, state in _states(world).items()}
        raise Violation(f"stored: states, and what they should be: {states}")
    checks = {check.name for check in world.coordinator.machine.views.status().checks}
    if "CHECKPOINT_LOST" in checks:
        raise Violation("stored: what a store has is counted as lost")
    for id, state in wanted.items():
        _load(world, id, state)
    return list(wanted.values())


def _states(world: DrainWorld) -> dict[CheckpointId, str]:
    """As people are told."""
    machine = world.coordinator.machine
    held = machine.checkpoints.of_run(RUN, RowState.COMMITTED, RowState.DAMAGED)
    return {one.id: state_text(machine.drains, one) for one in held}


def _load(world: DrainWorld, id: CheckpointId, state: str) -> None:
    """By one that can read the store, and by one that cannot. What is read is compared."""
    ends = ("read", "read") if state == "committed" else (STORED, "lost")
    for kind, outcome in zip((StoreReader, ReaderNode), ends, strict=True):
        reader = kind(
            world.clock, world.network, world.oracles, world.coordinator,
            world.targets.__getitem__, RUN, len(world.readers),
        )  # fmt: skip
        if isinstance(reader, StoreReader):
            reader.world = world
        reader.step = id.step
        world.readers.append(reader)
        reader.start()
        world.clock.run(lambda reader=reader: reader.outcome is not None, READ_US)
        if reader.outcome != outcome:
            raise Violation(f"stored: a load of {id}, which is {state}, ends with {reader.outcome}")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(3) == run_seed(3)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
@pytest.mark.timeout(600)
def test_what_a_store_has_is_stored_while_the_tier_lacks_it_and_is_never_lost(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert {"committed", STORED} == set(ends)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_more_losses_are_stored() -> None:
    ends_of(run_seed, SEEDS_SOAK)


# ----------------------------------------------------------------------- bugs that must be found


@at_turn(1, every=PLANTED)
def test_a_return_that_is_believed_unread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed again counts, whatever its bytes are."""
    monkeypatch.setattr(doubting, "most_bad", lambda _columns: 0)
    with pytest.raises(Violation, match=r"stored|P\d"):
        run_each(run_seed, PLANTED_SEEDS)
