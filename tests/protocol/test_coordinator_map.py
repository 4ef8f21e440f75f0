"""The cluster's map lies on every target that can keep one, as far as it is durable."""

from __future__ import annotations

import pytest

from ckpt.base.ids import BootId, TargetId
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.messages.asking import ChangeTarget, TargetChanged
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.targets import KeepMap
from ckpt.protocol.coordinator.cluster.map_keeping import (
    PATIENCE_US,
    REST_US,
    TARGETS_A_TICK,
    WAIT_US,
)
from ckpt.protocol.events import Send
from tests.protocol.coordinated_target import CLUSTER, FakeTarget
from tests.protocol.coordinating import SECOND_US, Bench


@pytest.fixture
def bench() -> Bench:
    made = Bench(6, targets_live=False)
    for target in made.targets.values():
        target.map = b""
        made.start(target)
    made.tick(2)
    return made


def stands(target: FakeTarget) -> dict[str, str]:
    """How each target stands, says the map that it keeps."""
    assert target.map
    found = decode_map(target.map)
    assert found.cluster == CLUSTER
    return {entry.target: entry.standing for entry in found.targets}


def drain(bench: Bench, id: str) -> list[object]:
    return list(bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId(id), "draining")))


def sent(bench: Bench) -> int:
    return sum(isinstance(a, Send) and isinstance(a.message, KeepMap) for a in bench.log)


def test_every_target_has_it_and_again_when_one_stands_otherwise(bench: Bench) -> None:
    everybody = dict.fromkeys(bench.targets, "in")
    assert [stands(target) for target in bench.targets.values()] == [everybody] * 6
    (answer,) = drain(bench, "t2")
    assert isinstance(answer, TargetChanged)
    bench.tick(2)
    for target in bench.targets.values():
        assert stands(target) == {**everybody, "t2": "draining"}


def test_it_says_nothing_that_is_not_durable(bench: Bench) -> None:
    bench.persist_at_once = False
    assert drain(bench, "t2") == []
    bench.tick(3)
    assert stands(bench.targets[TargetId("t0")])["t2"] == "in"
    bench.sync()
    bench.tick(2)
    assert stands(bench.targets[TargetId("t0")])["t2"] == "draining"


def test_who_has_it_is_sent_nothing_by_the_next_coordinator_and_others_are(bench: Bench) -> None:
    bench.stop("t5")
    drain(bench, "t2")
    bench.tick(2)
    before = sent(bench)
    bench.restart(*bench.targets)
    bench.tick(2)
    assert sent(bench) - before == 1
    assert stands(bench.targets[TargetId("t5")])["t2"] == "draining"
    terms = [decode_map(target.map or b"").version.term for target in bench.targets.values()]
    assert terms == [1, 1, 1, 1, 1, 2]


def test_a_target_of_an_earlier_version_is_sent_none() -> None:
    bench = Bench()
    bench.tick(2)
    assert sent(bench) == 0


def test_who_could_not_store_it_and_who_was_silent_are_sent_it_again(bench: Bench) -> None:
    refusing, silent = bench.targets[TargetId("t0")], bench.targets[TargetId("t1")]
    refusing.refuses[KeepMap] = Failed("unavailable", "its device fails")
    silent.silent.add(KeepMap)
    drain(bench, "t2")
    bench.tick(2)
    assert [stands(each)["t2"] for each in (refusing, silent)] == ["in", "in"]
    before = sent(bench)
    bench.tick(REST_US / SECOND_US / 2)
    assert sent(bench) == before, "nobody is asked at every tick"
    refusing.refuses.clear()
    silent.silent.clear()
    bench.tick((PATIENCE_US + REST_US) / SECOND_US + 1)
    assert [stands(each)["t2"] for each in (refusing, silent)] == ["draining", "draining"]


def test_it_goes_to_so_many_targets_in_each_tick() -> None:
    bench = Bench(2 * TARGETS_A_TICK + 3, targets_live=False)
    for target in bench.targets.values():
        target.map = b""
        target.boot = BootId(target.boot + 100)
        bench.start(target)
    counts = []
    for _ in range(5):
        before = sent(bench)
        bench.tick()
        counts.append(sent(bench) - before)
    assert max(counts) == TARGETS_A_TICK
    assert sum(counts) == len(bench.targets)


def remove(bench: Bench, id: str) -> list[object]:
    return list(bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId(id), "removed")))


def test_a_removal_is_answered_when_enough_targets_have_the_map_that_says_it(bench: Bench) -> None:
    """Code 2+1: where a payload can be read, two of its three targets are left."""
    bench.stop("t5")
    for id in ("t0", "t1", "t2", "t3"):
        bench.targets[TargetId(id)].silent.add(KeepMap)
    assert remove(bench, "t5") == []
    assert stands(bench.targets[TargetId("t4")])["t5"] == "removed"
    mark = bench.mark()
    bench.let_answer("t1")
    (answer,) = bench.sent(TargetChanged, mark)
    assert answer.standing == "removed"


def test_a_removal_waits_for_no_more_targets_than_can_keep_a_map() -> None:
    """Of those that are here one alone is not of an earlier version."""
    bench = Bench(4, targets_live=False)
    bench.targets[TargetId("t0")].map = b""
    for target in bench.targets.values():
        bench.start(target)
    bench.tick(2)
    bench.stop("t3")
    (answer,) = bench.tell(
        bench.session(Role.ADMIN), ChangeTarget(TargetId("t3"), "removed", force=True)
    )
    assert isinstance(answer, TargetChanged)
    assert stands(bench.targets[TargetId("t0")])["t3"] == "removed"


def test_a_removal_waits_for_a_bounded_time(bench: Bench) -> None:
    bench.stop("t5")
    for target in bench.targets.values():
        target.refuses[KeepMap] = Failed("failed", "EIO")
    mark = bench.mark()
    assert remove(bench, "t5") == []
    bench.tick(WAIT_US / SECOND_US - 1)
    assert bench.sent(TargetChanged, mark) == []
    bench.tick(1)
    assert len(bench.sent(TargetChanged, mark)) == 1


def test_a_removal_is_not_answered_before_it_is_durable(bench: Bench) -> None:
    bench.stop("t5")
    bench.persist_at_once = False
    assert remove(bench, "t5") == []
    bench.tick(2)
    assert stands(bench.targets[TargetId("t0")])["t5"] == "in"
    mark = bench.mark()
    bench.persist_at_once = True
    bench.sync()
    assert len(bench.sent(TargetChanged, mark)) == 1
    assert stands(bench.targets[TargetId("t0")])["t5"] == "removed"
