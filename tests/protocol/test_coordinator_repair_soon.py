"""Nothing is due yet, but in a moment more may be: who waits for repair waits for that as well."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt.format.messages.asking import ReplaceTarget, TargetReplaced
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.coordinator.cluster.claims import CLAIM_US
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.repairing.respreading import LOOK_US
from ckpt.protocol.coordinator.repairing.tasks import NO_ROOM_REST_US
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import NOTHING, Worker, holders, missing, rot
from tests.protocol.test_coordinator_respreading import having, saved, wipe

LOOK_S = LOOK_US / SECOND_US
LEASE_S = 3.5


def soon(bench: Bench) -> str:
    view: Any = bench.ask("repair")
    return "; ".join(view["soon"])


def emptied(bench: Bench, target: FakeTarget) -> None:
    """Another directory knocks under its name, and somebody says that it is the target."""
    bench.stop(target.id)
    target.incarnation = b"o" * 16
    bench.start(target)
    bench.tick(2 * LOOK_S)
    assert soon(bench) == "", "all is as it was for long"
    bench.stop(target.id)
    bench.tick(2 * LEASE_S)
    assert soon(bench) == "", "it is away, and waited for"
    target.columns.clear()
    target.documents.clear()
    target.reboot()
    target.incarnation, target.place = b"n" * 16, "host/fs/new"
    bench.start(target)
    (answer,) = bench.tell(bench.session(Role.ADMIN), ReplaceTarget(target.id))
    assert isinstance(answer, TargetReplaced)


def test_who_is_replaced_is_about_to_come_until_its_columns_are_due() -> None:
    bench, id = saved()
    lost = holders(bench, id)[1]
    emptied(bench, lost)
    assert f"{lost.id} is about to come" in soon(bench)
    bench.start(lost)
    bench.tick()
    view: Any = bench.ask("repair")
    assert view["columns_due"] or view["soon"], "it has listed nothing, and nobody has looked"
    bench.tick(LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    worker.end()
    bench.tick(2 * LOOK_S)
    assert (missing(bench, id), soon(bench)) == (0, "")


def test_what_found_no_place_is_due_all_the_time() -> None:
    """Once it had rested it was in no queue for some seconds, and `ckpt repair --wait` ended."""
    bench, id = saved()
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "the device is full")
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    for _ in range(round(2 * (NO_ROOM_REST_US / SECOND_US + LOOK_S))):
        assert worker.lease() == NOTHING
        bench.tick(0.5)
        view: Any = bench.ask("repair")
        assert view["payloads_due"] == 1


def test_a_directory_that_does_not_come_is_not_expected_for_long() -> None:
    bench, id = saved()
    emptied(bench, holders(bench, id)[1])
    bench.tick(CLAIM_US / SECOND_US + LOOK_S)
    assert soon(bench) == ""


def test_copies_of_documents_are_made_before_nothing_is_to_come() -> None:
    bench, id = saved()
    lost = having(bench, DocumentKind.RECORD, id)[0]
    bench.tick(LOOK_S)
    wipe(bench, lost)
    assert "copies of indexes and commit records" in soon(bench)
    bench.tick(2 * LOOK_S)
    assert len(having(bench, DocumentKind.RECORD, id)) == 2
    assert soon(bench) == ""


def test_who_has_just_begun_waits_for_all_that_it_knows() -> None:
    bench, _ = saved()
    bench.restart("t0", "t1", "t2", "t3", "t4")
    bench.tick(GATHERING_US / SECOND_US + LOOK_S)
    assert "t5 is about to come" in soon(bench)
    bench.tick(60)
    assert soon(bench) == ""


@pytest.mark.parametrize("restarts", [False, True])
def test_who_does_not_come_after_all_has_columns_that_are_about_to_be_due(restarts: bool) -> None:
    """Time alone ends the wait for a target. For up to 5 s it was not about to come any more, and
    what it had was not due: `ckpt repair --wait` returned, and somebody took the next disk.
    """
    bench, id = saved()
    lost = holders(bench, id)[1]
    bench.tick(2 * LOOK_S)
    bench.stop(lost.id)
    if restarts:
        bench.restart(*(target for target in bench.targets if target != lost.id))
        bench.tick(GATHERING_US / SECOND_US)
    for _ in range(4 * 70):
        bench.tick(0.25)
        view: Any = bench.ask("repair")
        assert view["columns_due"] or view["soon"]
    assert (view["columns_due"], missing(bench, id)) == (1, 1)


def test_damage_that_was_just_found_is_about_to_be_due() -> None:
    """As `ckpt scrub`, then `ckpt repair --wait`."""
    bench, id = saved()
    bench.tick(2 * LOOK_S)
    assert soon(bench) == ""
    holder = holders(bench, id)[1]
    rot(holder, next(iter(holder.columns)))
    bench.tick()
    view: Any = bench.ask("repair")
    assert view["columns_due"] or view["soon"]
    bench.tick(1)
    view = bench.ask("repair")
    assert (view["columns_due"], view["soon"]) == (1, [])


def test_who_is_away_is_named_with_the_time_that_it_is_waited_for() -> None:
    bench, id = saved()
    lost = holders(bench, id)[1]
    bench.stop(lost.id)
    bench.tick(2 * LEASE_S)
    left = []
    for _ in range(2):
        view: Any = bench.ask("repair")
        (awaited,) = view["awaited"]
        assert awaited["target"] == lost.id
        left.append(awaited["left_s"])
        bench.tick(5)
    assert left[0] - left[1] == 5
    bench.tick(left[1])
    view = bench.ask("repair")
    assert view["awaited"] == []
