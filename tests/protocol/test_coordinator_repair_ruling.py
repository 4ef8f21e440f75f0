"""What people say of repair: paused, resumed, its limits. It is durable before it counts."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.repairs import (
    RepairLeased,
    RepairLimits,
    RepairNoted,
    RepairRules,
    RepairSet,
    SetRepair,
    decode_repair_rules,
)
from ckpt.format.messages.targets import Attest, LeaseRenewed, ReleaseReservation, Reserve
from ckpt.protocol.coordinator.repairing.pacing import URGENT
from ckpt.protocol.coordinator.repairing.rate import ENOUGH_S, HALF_S, RepairRate
from ckpt.protocol.coordinator.repairing.tasks import LOOK_US
from ckpt.protocol.coordinator.room import RoomSeen
from ckpt.protocol.coordinator.said import RepairSaid
from tests.protocol.coordinating import SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_repair_pace import LIMITS, leased, pace, paced_bench
from tests.protocol.test_coordinator_repairing import Worker, holders, missing, wipe

NOTHING = RepairLeased()
SIX = RepairLimits(3, 6)


def said(bench: Bench, message: SetRepair) -> RepairRules:
    (answer,) = bench.tell(bench.session(Role.ADMIN), message)
    assert isinstance(answer, RepairSet)
    return answer.rules


def harmed(bench: Bench) -> CheckpointId:
    """A column of it is due."""
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    return id


def view(bench: Bench) -> dict[str, object]:
    found = bench.ask("repair")
    assert isinstance(found, dict)
    return found


def test_while_it_is_paused_nothing_is_handed_out() -> None:
    bench = paced_bench()
    harmed(bench)
    assert said(bench, SetRepair(paused=True)).paused_at_s is not None
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    said(bench, SetRepair(paused=False))
    assert worker.lease().payload is not None


def test_a_pause_ends_what_is_in_hand_and_what_is_sealed_counts() -> None:
    bench = paced_bench()
    id = harmed(bench)
    worker = leased(bench)
    worker.seal()
    said(bench, SetRepair(paused=True))
    late = worker.renew()
    assert isinstance(late, Failed)
    assert late.code == "fenced"
    assert missing(bench, id) == 0
    assert bench.machine.repairs.counts.columns == 1


def test_what_a_pause_has_ended_is_no_failure_and_goes_on_at_once() -> None:
    bench = paced_bench()
    harmed(bench)
    (lost,) = leased(bench).leased.lost
    mark = bench.mark()
    said(bench, SetRepair(paused=True))
    released = [each.reservation for each in bench.sent(ReleaseReservation, mark)]
    assert released == [lost.place.reservation]
    said(bench, SetRepair(paused=False))
    bench.tick(LOOK_US / SECOND_US)
    assert leased(bench, "again").leased.payload is not None
    counts = bench.machine.repairs.counts
    assert (counts.failed, counts.problems) == (0, {})


def test_a_lease_whose_space_is_asked_for_as_a_pause_comes_ends_too() -> None:
    bench = paced_bench()
    harmed(bench)
    for target in bench.targets.values():
        target.silent.add(Reserve)
    worker = Worker(bench)
    assert bench.tell(worker.session, worker.question) == []
    said(bench, SetRepair(paused=True))
    for id in bench.targets:
        bench.let_answer(id)
    assert bench.machine.repairs.tasks == {}
    assert [type(each) for each in bench.to(worker.session)] == [RepairLeased]


def test_limits_take_the_place_of_the_options_each_by_itself() -> None:
    bench = paced_bench()
    harmed(bench)
    worker = leased(bench)
    RankFake(bench, key="next").open(2)
    assert pace(worker).bytes_per_s == 2 * LIMITS.floor_bytes
    assert said(bench, SetRepair(floor_bytes=3)) == RepairRules(floor_bytes=3)
    assert pace(worker).bytes_per_s == 6
    assert said(bench, SetRepair(cap_bytes=6)) == RepairRules(3, 6)
    assert bench.machine.repairs.ruling.limits == SIX
    assert said(bench, SetRepair(as_configured=True)) == RepairRules()
    assert pace(worker).bytes_per_s == 2 * LIMITS.floor_bytes


def test_targets_hear_what_repair_may_take_at_most_beside_others() -> None:
    bench = paced_bench()
    assert bench.sent(LeaseRenewed)[-1].repair_bytes == URGENT * LIMITS.floor_bytes
    said(bench, SetRepair(floor_bytes=3, cap_bytes=10))
    bench.tick(2)
    assert bench.sent(LeaseRenewed)[-1].repair_bytes == 10


def test_a_cap_below_the_floor_is_refused_whoever_said_the_floor() -> None:
    bench = paced_bench()
    (refused,) = bench.tell(bench.session(Role.ADMIN), SetRepair(cap_bytes=LIMITS.floor_bytes - 1))
    assert isinstance(refused, Failed)
    assert refused.code == "refused"
    assert bench.machine.repairs.ruling.limits == LIMITS


def test_nothing_counts_and_nobody_is_answered_before_it_is_durable() -> None:
    bench = paced_bench()
    harmed(bench)
    bench.persist_at_once = False
    admin = bench.session(Role.ADMIN)
    assert bench.tell(admin, SetRepair(paused=True)) == []
    assert bench.tell(admin, SetRepair(floor_bytes=3, cap_bytes=6)) == []
    assert not bench.machine.repairs.ruling.is_paused
    bench.sync(1)
    bench.sync(1)
    first, second = bench.to(admin)
    assert isinstance(first, RepairSet)
    assert isinstance(second, RepairSet)
    assert second.rules == RepairRules(3, 6, first.rules.paused_at_s), "both are in it"


def test_a_restart_finds_it_as_it_was_said() -> None:
    bench = paced_bench()
    harmed(bench)
    rules = said(bench, SetRepair(paused=True, floor_bytes=3, cap_bytes=6))
    assert bench.durable.count(RepairSaid(rules)) == 1
    bench.restart(*bench.targets)
    bench.tick(20)
    assert bench.machine.repairs.ruling.said == rules
    assert Worker(bench).lease() == NOTHING


def test_a_pause_that_is_said_again_has_stood_since_the_first() -> None:
    bench = paced_bench()
    first = said(bench, SetRepair(paused=True))
    bench.tick(30)
    assert said(bench, SetRepair(paused=True)) == first


def test_a_coordinator_that_targets_do_not_obey_changes_nothing() -> None:
    bench = paced_bench()
    for target in bench.targets.values():
        target.silent.add(Attest)
    assert bench.tell(bench.session(Role.ADMIN), SetRepair(paused=True)) == []
    assert not bench.machine.repairs.ruling.is_paused


def test_a_full_catalog_takes_no_rule() -> None:
    bench = paced_bench()
    bench.feed(RoomSeen(bench.now_us, "full", "make room"))
    (refused,) = bench.tell(bench.session(Role.ADMIN), SetRepair(paused=True))
    assert isinstance(refused, Failed)
    assert refused.code == "no_space"


@pytest.mark.parametrize("document", [b"", b"{", b'{"floor_bytes": "later"}', b"[]"])
def test_rules_that_cannot_be_read_count_as_not_said(document: bytes) -> None:
    assert decode_repair_rules(document) == RepairRules()


def test_the_check_stands_while_it_is_paused_and_says_what_is_due() -> None:
    """Also while nothing is: who paused it may have forgotten."""
    bench = paced_bench()

    def checks() -> list[str]:
        status = bench.ask("status")
        assert isinstance(status, dict)
        found = [each for each in status["checks"] if each["name"] == "REPAIR_PAUSED"]
        return [each["message"] for each in found]

    assert checks() == []
    said(bench, SetRepair(paused=True))
    assert checks() == ["repair is paused, and nothing is to be made again now"]
    harmed(bench)
    (message,) = checks()
    assert message.startswith("repair is paused, and 1 column is to be made again: ")
    said(bench, SetRepair(paused=False))
    assert checks() == []


# --------------------------------------------------------------------------- rate


def test_what_is_left_and_when_it_is_done() -> None:
    bench = paced_bench()
    said(bench, SetRepair(cap_bytes=0))
    assert (view(bench)["bytes_left"], view(bench)["left_s"]) == (0, None)
    harmed(bench)
    found = view(bench)
    column_bytes = found["bytes_left"]
    assert isinstance(column_bytes, int)
    assert column_bytes > 0
    assert found["left_s"] is None, "nothing was made yet"
    worker = leased(bench)
    assert view(bench)["bytes_left"] == column_bytes
    worker.read_bytes = column_bytes  # Of the payload: with k = 2 half of it is made.
    for _ in range(10):
        bench.tick(1)
        assert isinstance(worker.renew(), RepairNoted)
    found = view(bench)
    assert found["bytes_left"] == column_bytes // 2
    rate, left_s = found["bytes_per_s"], found["left_s"]
    assert isinstance(rate, float)
    assert left_s == pytest.approx(column_bytes / 2 / rate)
    assert left_s == pytest.approx(10, rel=0.2)


def test_a_cap_is_heard_before_the_rate_has_come_down_to_it() -> None:
    """A worker reads a window at once, however slowly it goes on: at 1 B/s 3 s were left."""
    bench = paced_bench()
    said(bench, SetRepair(cap_bytes=0))
    harmed(bench)
    worker, column_bytes = leased(bench), view(bench)["bytes_left"]
    assert isinstance(column_bytes, int)
    worker.read_bytes = column_bytes  # Of the payload: with k = 2 half of it is made.
    for _ in range(3):
        bench.tick(1)
        assert isinstance(worker.renew(), RepairNoted)
    assert view(bench)["left_s"] == pytest.approx(3, rel=0.2)
    for cap, left_s in ((1, column_bytes / 2), (0, 6)):
        said(bench, SetRepair(floor_bytes=1, cap_bytes=cap))
        bench.tick(3 if cap == 0 else 0.1)
        found = view(bench)
        assert found["left_s"] == pytest.approx(left_s, rel=0.2)
        assert found["bytes_per_s"] == pytest.approx(column_bytes / 2 / left_s, rel=0.2)


def test_the_rate_is_of_the_time_in_which_something_was_in_hand() -> None:
    rate = RepairRate()
    rate.passed(0, is_working=False)
    rate.passed(3600 * SECOND_US, is_working=False)
    rate.passed(3610 * SECOND_US, is_working=True)
    rate.made(1000)
    assert rate.bytes_per_s == pytest.approx(100, rel=0.1)
    assert rate.left_s(500) == pytest.approx(5, rel=0.1)


def test_what_lies_back_counts_by_half() -> None:
    rate = RepairRate()
    for second in range(int(20 * HALF_S)):
        rate.passed(second * SECOND_US, is_working=True)
        rate.made(100)
    for second in range(int(20 * HALF_S), int(21 * HALF_S)):
        rate.passed(second * SECOND_US, is_working=True)
        rate.made(300)
    assert rate.bytes_per_s == pytest.approx(200, rel=0.03)


def test_a_moment_says_nothing() -> None:
    rate = RepairRate()
    rate.passed(0, is_working=True)
    rate.passed(int(ENOUGH_S * SECOND_US) - 1, is_working=True)
    rate.made(1)
    assert (rate.bytes_per_s, rate.left_s(9)) == (0.0, None)
