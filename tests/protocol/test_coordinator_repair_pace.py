"""How fast repair may go: what a worker is told while others save, load, or do nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import TargetId
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import (
    NO_CAP,
    RATE_BYTES_MAX,
    RepairLimits,
    RepairNoted,
    RepairPace,
    RepairRules,
    check_limits,
    decode_repair_rules,
)
from ckpt.protocol.coordinator.repairing.pacing import (
    RENEW_FAST_US,
    RENEW_US,
    URGENT,
    TaskCounts,
    TaskLoad,
    most_beside_others,
    paced,
)
from ckpt.protocol.coordinator.repairing.traffic import LOAD_US_MAX
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_repairing import Worker, holders, wipe

LIMITS = RepairLimits(floor_bytes=10, cap_bytes=100)


def load(k: int, *targets: str) -> TaskLoad:
    return TaskLoad(frozenset(map(TargetId, targets)), k)


def rate(
    mine: TaskLoad, *others: TaskLoad, limits: RepairLimits = LIMITS, busy: bool = False,
    urgent: bool = False,
) -> int:  # fmt: skip
    counts = TaskCounts()
    for each in (mine, *others):
        counts.begin(each)
    return paced(mine, counts.most(mine), limits, is_busy=busy, is_urgent=urgent).bytes_per_s


# --------------------------------------------------------------------------- the arithmetic


def test_a_payload_goes_at_k_times_what_each_of_its_targets_gives() -> None:
    assert rate(load(4, "a", "b", "c", "d", "e")) == 400
    assert rate(load(4, "a", "b", "c", "d", "e"), busy=True) == 40


def test_the_target_that_most_tasks_use_holds_a_task_back() -> None:
    mine, other, third = load(2, "a", "b", "c"), load(2, "c", "d", "e"), load(2, "c", "e", "f")
    assert rate(mine, other, third) == 2 * 100 // 3
    assert rate(load(2, "x", "y", "z"), mine, other, third) == 200, "it shares with nobody"


def test_without_a_cap_it_goes_as_fast_as_it_goes_until_somebody_saves() -> None:
    limits = RepairLimits(floor_bytes=10)
    mine = load(2, "a", "b", "c")
    assert rate(mine, mine, limits=limits) == NO_CAP
    assert rate(mine, limits=limits, busy=True) == 20
    assert rate(mine, limits=limits, busy=True, urgent=True) == 20 * URGENT


def test_where_no_more_may_be_lost_it_is_above_the_floor_and_never_above_the_cap() -> None:
    mine = load(2, "a", "b", "c")
    assert rate(mine, busy=True, urgent=True) == 20 * URGENT
    low = RepairLimits(floor_bytes=10, cap_bytes=15)
    assert rate(mine, limits=low, busy=True, urgent=True) == 30
    assert rate(mine, urgent=True) == 200, "nobody is in its way"


def test_a_share_is_never_nothing_which_would_be_no_cap() -> None:
    mine = load(2, "a", "b", "c")
    assert rate(mine, *[mine] * 99, limits=RepairLimits(floor_bytes=1), busy=True) == 1


def test_who_goes_above_the_floor_asks_again_at_once() -> None:
    """A save that begins is met within half a second."""
    mine = load(2, "a", "b", "c")
    fast = paced(mine, 1, LIMITS, is_busy=False, is_urgent=False)
    slow = paced(mine, 1, LIMITS, is_busy=True, is_urgent=False)
    urgent = paced(mine, 1, LIMITS, is_busy=True, is_urgent=True)
    assert (fast.renew_us, urgent.renew_us, slow.renew_us) == (
        RENEW_FAST_US, RENEW_FAST_US, RENEW_US,
    )  # fmt: skip
    assert RENEW_FAST_US <= 250_000


@pytest.mark.parametrize("limits", [(0, 0), (-1, 0), (1, -1), (8 * MiB, 8 * MiB - 1)])
def test_what_is_no_limit_is_refused(limits: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="the cap not below it"):
        check_limits(RepairLimits(*limits))


@pytest.mark.parametrize("limits", [(8 << 60, 0), (1, RATE_BYTES_MAX + 1)])
def test_what_no_target_can_give_is_refused(limits: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="bytes a second") as refused:
        check_limits(RepairLimits(*limits))
    assert "at most" in refused.value.hint


def test_the_highest_limits_have_their_place_in_messages() -> None:
    """Also for the widest code; what an earlier version took does not count."""
    highest = RepairLimits(RATE_BYTES_MAX, RATE_BYTES_MAX)
    check_limits(highest)
    of_all = rate(load(255, "a"), limits=highest, busy=True, urgent=True)
    assert max(of_all, most_beside_others(RepairLimits(RATE_BYTES_MAX))) < 1 << 63
    taken = msgspec.json.encode(RepairRules(8 << 60, paused_at_s=1.0))
    assert decode_repair_rules(taken) == RepairRules(paused_at_s=1.0)


@pytest.mark.parametrize("floor", [None, 1, RATE_BYTES_MAX])
@pytest.mark.parametrize("cap", [None, NO_CAP, RATE_BYTES_MAX])
def test_rules_that_set_some_limits_come_back_equal(floor: int | None, cap: int | None) -> None:
    """A coordinator reads them as it starts; what cannot be is not what is at the limit."""
    rules = RepairRules(floor, cap, paused_at_s=1.0)
    assert decode_repair_rules(msgspec.json.encode(rules)) == rules


def test_a_cap_that_no_target_can_give_counts_as_not_set() -> None:
    rules = RepairRules(5, RATE_BYTES_MAX + 1, paused_at_s=1.0)
    assert decode_repair_rules(msgspec.json.encode(rules)) == RepairRules(paused_at_s=1.0)


def test_a_cap_at_the_floor_and_none_are_limits() -> None:
    check_limits(RepairLimits(1, 1))
    check_limits(RepairLimits(1, NO_CAP))


# --------------------------------------------------------------------------- the coordinator


def paced_bench(targets: int = 6, code: str = "2+2") -> Bench:
    bench = Bench(targets, code)
    bench.policy = dataclasses.replace(bench.policy, repair=LIMITS)
    bench.restart(*bench.targets)
    bench.tick(20)
    return bench


def leased(bench: Bench, name: str = "w") -> Worker:
    worker = Worker(bench, name)
    assert worker.lease().payload is not None
    return worker


def pace(worker: Worker) -> RepairPace:
    noted = worker.renew()
    assert isinstance(noted, RepairNoted)
    return noted.pace


FREE = RepairPace(2 * LIMITS.cap_bytes, RENEW_FAST_US)
ASIDE = RepairPace(2 * LIMITS.floor_bytes, RENEW_US)


def test_a_worker_goes_at_the_floor_from_a_saves_begin_until_all_is_certified() -> None:
    bench = paced_bench()
    wipe(bench, holders(bench, bench.save(1))[1])
    worker = leased(bench)
    assert worker.leased.pace == pace(worker) == FREE
    rank = RankFake(bench, key="next")
    rank.open(2)
    assert pace(worker) == ASIDE
    rank.seal_all()
    assert pace(worker) == ASIDE
    rank.certify()
    assert pace(worker) == FREE


def test_what_is_leased_while_somebody_saves_begins_at_the_floor() -> None:
    bench = paced_bench()
    wipe(bench, holders(bench, bench.save(1))[1])
    RankFake(bench, key="next").open(2)
    assert leased(bench).leased.pace == ASIDE


def test_a_save_that_is_given_up_holds_nobody_back() -> None:
    bench = paced_bench()
    wipe(bench, holders(bench, bench.save(1))[1])
    worker = leased(bench)
    rank = RankFake(bench, key="next")
    rank.open(2)
    assert pace(worker) == ASIDE
    rank.leave()
    bench.close(rank.session)
    for _ in range(80):
        bench.tick(1)
        worker.renew()
    assert not bench.machine.book.open()
    assert pace(worker) == FREE


@pytest.mark.parametrize("how", ["released", "left", "long ago"])
def test_a_worker_goes_at_the_floor_while_somebody_loads(how: str) -> None:
    bench = paced_bench()
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = leased(bench)
    reader = bench.session(Role.READER)
    (resolved,) = bench.tell(reader, Resolve(RUN, id.step))
    assert isinstance(resolved, Resolved)
    assert pace(worker) == ASIDE
    match how:
        case "released":
            bench.tell(reader, ReleasePin(resolved.pin))
        case "left":
            bench.close(reader)
        case "long ago":
            for _ in range(LOAD_US_MAX // SECOND_US):
                assert pace(worker) == ASIDE
                bench.tick(1)
    assert pace(worker) == FREE


def test_what_a_worker_reads_itself_is_no_load() -> None:
    bench = paced_bench()
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = leased(bench)
    (resolved,) = bench.tell(worker.session, Resolve(RUN, id.step))
    assert isinstance(resolved, Resolved)
    assert pace(worker) == FREE


def test_it_goes_above_the_floor_where_no_more_may_be_lost() -> None:
    bench = paced_bench()
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    wipe(bench, first)
    worker = leased(bench)
    RankFake(bench, key="next").open(2)
    assert pace(worker) == ASIDE
    bench.stop(second.id)
    assert pace(worker) == RepairPace(2 * URGENT * LIMITS.floor_bytes, RENEW_FAST_US)


def test_tasks_part_the_budget_of_the_targets_that_they_share() -> None:
    bench = paced_bench(4, "2+1")
    for step in (1, 2, 3):
        bench.save(step)
    common = max(bench.targets.values(), key=lambda target: len(target.columns))
    assert len(common.columns) >= 2
    wipe(bench, common)
    one = leased(bench, "one")
    assert pace(one) == FREE
    other = leased(bench, "other")
    half = RepairPace(LIMITS.cap_bytes, RENEW_FAST_US)
    assert (pace(one), other.leased.pace) == (half, half)
    other.end("it gives up")
    assert pace(one) == FREE


def test_people_see_how_fast_a_worker_may_go() -> None:
    bench = paced_bench()
    wipe(bench, holders(bench, bench.save(1))[1])
    worker = leased(bench)
    RankFake(bench, key="next").open(2)
    worker.renew()
    view = bench.ask("repair")
    assert isinstance(view, dict)
    assert [task["bytes_per_s_max"] for task in view["tasks"]] == [ASIDE.bytes_per_s]
