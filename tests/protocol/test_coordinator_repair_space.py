"""The last of each target's space is for repair: saves that begin do without it."""

from __future__ import annotations

import dataclasses

from ckpt.base.units import MiB
from ckpt.format.messages.saving import AttemptAborted, RequestSpares, SparesNamed
from ckpt.format.messages.targets import RenewLease
from tests.protocol.coordinating import Bench, RankFake
from tests.protocol.test_coordinator_draining import WorkerFake
from tests.protocol.test_coordinator_evicting import bench_with_room, drain_all, steps
from tests.protocol.test_coordinator_repairing import Worker, holders, wipe
from tests.protocol.test_full_devices import USABLE, fill


def refusal(rank: RankFake, step: int) -> AttemptAborted:
    """Of a save that is refused for want of space."""
    rank.open(step)
    abort = rank.aborts()[-1]
    assert abort.code == "no_space"
    return abort


def test_a_save_does_not_get_the_last_of_a_target_and_hears_who_does() -> None:
    bench = Bench(3)
    fill(bench, *bench.targets, taken=0.94)
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    bench.close(rank.session)
    fill(bench, *bench.targets, taken=0.95)
    late = RankFake(bench, key="late")
    assert "the last 5% of each target are kept for repair" in refusal(late, 1).message


def test_a_target_with_less_is_passed_over_while_others_have_more() -> None:
    bench = Bench(4)
    fill(bench, "t0", taken=0.96)
    for step in range(1, 9):
        bench.save(step)
    assert not bench.targets[next(iter(bench.targets))].columns


def test_of_a_target_with_a_capacity_of_its_own_it_is_the_last_of_that() -> None:
    """Its device has plenty."""
    bench = Bench(3)
    for one in bench.targets.values():
        assert one.session is not None
        counters = {"usable_bytes": USABLE}
        bench.tell(
            one.session, RenewLease(one.id, one.boot, USABLE // 20, 0, counters, USABLE << 10)
        )
    refusal(RankFake(bench), 1)


def test_repair_gets_it() -> None:
    bench = Bench(5)
    id = bench.save(1)
    fill(bench, *bench.targets, taken=0.97)
    wipe(bench, holders(bench, id)[1])
    assert Worker(bench).lease().payload is not None


def test_a_save_that_was_let_in_gets_it_for_a_column_that_lost_its_place() -> None:
    """None fails for want of space."""
    bench = Bench(8, hosts=4)
    rank = RankFake(bench)
    rank.open(1)
    places = rank.places()
    fill(bench, *bench.targets, taken=0.97)
    asked = RequestSpares(rank.payload, min(places), (places[min(places)].target,))
    (named,) = bench.tell(rank.session, asked)
    assert isinstance(named, SparesNamed)
    assert len(named.spares) == 1


def test_where_nothing_is_made_again_nothing_is_kept() -> None:
    bench = Bench(3)
    bench.policy = dataclasses.replace(bench.policy, rebuild_after_us=None)
    bench.restart(*bench.targets)
    bench.tick(20)
    fill(bench, *bench.targets, taken=0.97)
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None


def test_who_holds_the_devices_is_said_as_well() -> None:
    bench = Bench(3)
    fill(bench, *bench.targets, taken=0.96)
    rank = RankFake(bench)
    rank.payload_bytes = 4 * MiB
    message = refusal(rank, 1).message
    assert "t0 (p/r/h0/d0): 96% taken; ckpt's columns 0 B, other files 960 MiB" in message
    assert "40 MiB free" in message


def test_a_save_that_finds_only_what_is_kept_has_room_made_from_what_is_drained() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 4):
        bench.save(step)
    drain_all(worker)
    for target in bench.targets.values():
        target.counters = {"usable_bytes": USABLE}
    bench.tick(2)
    assert steps(bench) == [1, 2, 3], "none is above a mark"
    rank = RankFake(bench, run="other")
    assert "room is being made" in refusal(rank, 4).message
    bench.tick(3)
    assert steps(bench) == [3]
