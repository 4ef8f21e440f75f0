"""A target whose device fails: out of plans while others will do, counted, read, and back."""

from __future__ import annotations

import pytest

from ckpt.base.ids import TargetId
from ckpt.base.limits import DEVICE_FAILURES_MAX
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import RequestSpares, SparesNamed
from ckpt.format.messages.targets import DeviceReport, PutDocument, RenewLease, Reserve
from tests.protocol.coordinating import Bench, RankFake

EIO = "write: EIO: Input/output error"
FAILED = Failed("failed", "cannot write the column: EIO")


def tell_device(bench: Bench, id: str, failures: int = DEVICE_FAILURES_MAX) -> None:
    """The target's next renewal."""
    target = bench.targets[TargetId(id)]
    assert target.session is not None
    target.device = DeviceReport({"write": failures}, failures, EIO)
    bench.tell(
        target.session, RenewLease(target.id, target.boot, *target.space, device=target.device)
    )


def planned(bench: Bench, step: int = 1) -> set[str]:
    rank = RankFake(bench, key=f"launch {step}")
    rank.open(step)
    assert rank.plan is not None, rank.heard
    return {place.target for place in (*rank.plan.places, *rank.plan.spares)}


def test_a_target_leaves_the_plans_after_a_few_failures_and_comes_back() -> None:
    bench = Bench(5)
    tell_device(bench, "t1", DEVICE_FAILURES_MAX - 1)
    everybody = set().union(*(planned(bench, step) for step in range(1, 4)))
    assert everybody == {"t0", "t1", "t2", "t3", "t4"}
    tell_device(bench, "t1")
    for step in range(4, 12):
        assert planned(bench, step) == {"t0", "t2", "t3", "t4"}
    tell_device(bench, "t1", 0)
    everybody = set().union(*(planned(bench, step) for step in range(12, 20)))
    assert "t1" in everybody


def test_space_that_stands_on_it_is_given_back() -> None:
    bench = Bench(4)
    bench.save(1)
    failing = next(id for id, one in bench.targets.items() if one.reservations)
    tell_device(bench, failing)
    rank = RankFake(bench)
    rank.open(2)
    assert failing not in {place.target for place in rank.places().values()}
    assert bench.targets[failing].reservations == set()


def test_what_it_holds_counts_and_is_named_to_readers() -> None:
    bench = Bench(4)
    id = bench.save(1)
    holders = {id for id, one in bench.targets.items() if one.columns}
    for holder in sorted(holders)[:2]:
        tell_device(bench, holder)
    view = bench.ask("show", id.run, id.step)
    assert isinstance(view, dict)
    (generation,) = view["generations"]
    assert (generation["columns_missing"], generation["readable"]) == (0, True)


def test_with_too_few_others_it_is_the_last_resort_and_a_failed_save_names_it() -> None:
    bench = Bench(3)
    tell_device(bench, "t1")
    assert planned(bench) == {"t0", "t1", "t2"}
    bench.targets[TargetId("t1")].refuses[Reserve] = FAILED
    rank = RankFake(bench, key="another")
    rank.open(2)
    bench.tick(30)
    (ended,) = rank.aborts()
    assert f"t1 ({EIO})" in ended.message


def test_a_wide_code_does_with_its_floor_rather_than_with_a_device_that_fails() -> None:
    bench = Bench(6, "4+2")
    tell_device(bench, "t1")
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    assert {place.target for place in rank.plan.places} == {"t0", "t2", "t3", "t4", "t5"}
    assert len(rank.plan.absent) == 1


def test_a_place_that_is_lost_goes_to_one_that_is_well_first() -> None:
    bench = Bench(6, "2+1")
    tell_device(bench, "t5")
    rank = RankFake(bench)
    rank.open(1)
    plan = rank.plan
    assert plan is not None
    (column, lost), *_ = rank.places().items()
    failed = (lost.target, *(spare.target for spare in plan.spares))
    (answer,) = bench.tell(rank.session, RequestSpares(plan.payload, column, failed))
    assert isinstance(answer, SparesNamed)
    assert len(answer.spares) == 1
    assert bench.asked("t5", Reserve) == []
    everybody = (*failed, answer.spares[0].target)
    (answer,) = bench.tell(rank.session, RequestSpares(plan.payload, column, everybody))
    assert isinstance(answer, SparesNamed)
    assert [place.target for place in answer.spares] == ["t5"], "below the floor it is asked"


def test_documents_go_to_targets_that_are_well() -> None:
    bench = Bench(5)
    tell_device(bench, "t0")
    tell_device(bench, "t1")
    mark = bench.mark()
    bench.save(1)
    assert bench.asked("t0", PutDocument, mark) == bench.asked("t1", PutDocument, mark) == []


def test_another_boot_has_a_clean_slate_and_a_new_session_of_the_same_has_not() -> None:
    bench = Bench(4)
    tell_device(bench, "t1")
    bench.stop("t1")
    bench.start("t1")
    assert bench.machine.members.targets[TargetId("t1")].is_failing
    bench.stop("t1")
    bench.targets[TargetId("t1")].reboot()
    bench.start("t1")
    assert not bench.machine.members.targets[TargetId("t1")].is_failing


def test_status_tells_the_errors_of_every_device() -> None:
    bench = Bench(4)
    tell_device(bench, "t2")
    view = bench.ask("status")
    assert isinstance(view, dict)
    shown = {one["id"]: one for one in view["targets"]}
    assert (shown["t0"]["device_failing"], shown["t0"]["device_errors"]) == (False, {})
    assert (shown["t2"]["device_failing"], shown["t2"]["device_error"]) == (True, EIO)
    assert shown["t2"]["device_errors"] == {
        "write": 3, "read": 0, "sync": 0, "create": 0, "space": 0,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["x" * 10_000, "", "\x1b[2J\nEIO"])
def test_what_a_target_says_is_bounded(text: str) -> None:
    bench = Bench(4)
    target = bench.targets[TargetId("t0")]
    assert target.session is not None
    report = DeviceReport({f"kind{n}": 1 for n in range(500)}, 9, text)
    bench.tell(target.session, RenewLease(target.id, target.boot, *target.space, device=report))
    kept = bench.machine.members.targets[TargetId("t0")].device
    assert (len(kept.errors), len(kept.latest) <= 200) == (5, True)
    assert kept.latest.isprintable()
