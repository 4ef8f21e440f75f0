"""A large cluster's placement groups: they are durable once anything is kept, stay as targets come
and go, and what is lost is made again inside of them.
"""

from __future__ import annotations

import pytest

from ckpt.base.ids import BootId, CheckpointId, Rank, TargetId
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import Reserve
from ckpt.plan.seating import group_numbers
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.said import TargetsGrouped
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_repairing import Worker, holders, wipe

TARGETS = 50
"""Two groups of 25."""


@pytest.fixture
def bench() -> Bench:
    made = Bench(TARGETS)
    made.tick(1)
    return made


def noted(bench: Bench) -> list[TargetsGrouped]:
    return [entry for entry in bench.durable if isinstance(entry, TargetsGrouped)]


def groups(bench: Bench) -> dict[TargetId, int]:
    return dict(noted(bench)[-1].groups)


def join(bench: Bench, id: str) -> FakeTarget:
    """One more, in the middle of the order in which groups would be dealt out."""
    made = FakeTarget(TargetId(id), f"p/r/h0/{id}", BootId(900))
    bench.targets[made.id] = made
    bench.start(made)
    bench.tick(1)
    return made


def test_before_anything_is_kept_nothing_is_noted_and_then_what_placement_has_dealt_out(
    bench: Bench,
) -> None:
    assert noted(bench) == []
    dealt = group_numbers(bench.policy.code, candidates_of(bench.machine.members))
    id = bench.save(1)
    bench.tick(1)
    assert [entry.groups for entry in noted(bench)] == [dealt]
    assert set(dealt.values()) == {0, 1}
    assert len({dealt[target.id] for target in holders(bench, id)}) == 1
    bench.tick(5)
    assert len(noted(bench)) == 1


def test_a_small_cluster_has_none() -> None:
    small = Bench(8)
    small.save(1)
    small.tick(1)
    assert noted(small) == []


def test_who_comes_parts_nobody_and_who_is_removed_is_forgotten(bench: Bench) -> None:
    bench.save(1)
    bench.tick(1)
    before = groups(bench)
    for number in range(3):
        join(bench, f"t{number}-new")
    after = groups(bench)
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {TargetId(f"t{number}-new") for number in range(3)}


def test_who_comes_while_nothing_is_kept_has_a_group_for_the_next_save(bench: Bench) -> None:
    id = bench.save(1)
    bench.tick(1)
    bench.tell(bench.session(), DeleteStep(id.run, id.step))
    bench.tick(1)
    assert not bench.machine.checkpoints.runs()
    new = join(bench, "t0-new")
    assert new.id in groups(bench)


def test_nobody_s_group_counts_before_it_is_durable(bench: Bench) -> None:
    bench.save(1)
    bench.tick(1)
    bench.persist_at_once = False
    new = join(bench, "t0-new")
    assert new.id not in bench.machine.members.groups
    bench.sync()
    assert new.id in bench.machine.members.groups


def test_a_restart_goes_on_with_them_and_every_target_has_them(bench: Bench) -> None:
    for target in bench.targets.values():
        target.map = b""
        bench.stop(target.id)
        target.reboot()
        bench.start(target)
    bench.save(1)
    bench.tick(1)
    join(bench, "t0-new")
    known = groups(bench)
    bench.tick(5)
    maps = {target.map for target in bench.targets.values() if target.map}
    assert [decode_map(each).groups for each in maps] == [known]
    bench.restart(*bench.targets)
    bench.tick(1)
    assert bench.machine.members.groups == known
    assert len(noted(bench)) == 2


def lost_of(bench: Bench, step: int) -> tuple[CheckpointId, FakeTarget, list[FakeTarget]]:
    """A saved step, one of its holders, and the others."""
    id = bench.save(step)
    victim, *others = holders(bench, id)
    return id, victim, others


def test_what_is_lost_is_made_again_inside_of_its_group(bench: Bench) -> None:
    worker = Worker(bench)
    for step in range(1, 9):
        id, victim, others = lost_of(bench, step)
        bench.tick(1)
        # So that a place has to be found, it cannot come back.
        bench.stop(victim.id)
        bench.tick(310)
        (place,) = lease_of(worker, id)
        known = groups(bench)
        assert {known[place]} == {known[other.id] for other in others}, step
        worker.seal()
        worker.end()
        victim.columns.clear()
        victim.reboot()
        bench.start(victim)
        bench.tick(5)


def lease_of(worker: Worker, id: CheckpointId) -> list[TargetId]:
    leased = worker.lease()
    assert leased.payload is not None
    assert (leased.payload.checkpoint, leased.payload.rank) == (id, Rank(0))
    return worker.places


def test_where_its_group_has_no_room_it_goes_elsewhere(bench: Bench) -> None:
    id, victim, others = lost_of(bench, 1)
    bench.tick(1)
    known = groups(bench)
    group = known[victim.id]
    for target in bench.targets.values():
        if known[target.id] == group:
            target.refuses[Reserve] = Failed("no_space", "full")
    wipe(bench, victim)
    (place,) = lease_of(Worker(bench), id)
    assert known[place] != group
    assert {known[other.id] for other in others} == {group}
