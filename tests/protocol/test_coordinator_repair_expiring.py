"""What expires sooner than it would be made again is left alone, and that is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId, ColumnNumber, Generation, PayloadId, Rank, RunName, Step
from ckpt.format.messages.keeping import KeepSteps, Retention
from ckpt.format.messages.repairs import RepairLeased
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.repairing.expiring import leave_expiring
from ckpt.protocol.coordinator.repairing.lacking import LackingPayload
from ckpt.protocol.coordinator.repairing.tasks import LOOK_US
from tests.protocol.coordinating import RUN, SECOND_US, Bench
from tests.protocol.test_coordinator_labeling import label
from tests.protocol.test_coordinator_repairing import Worker, wipe

LOOK_S = LOOK_US / SECOND_US
EVERY_S = 60.0
BYTES = 100


def lacking(step: int, rank: int = 0) -> LackingPayload:
    id = CheckpointId(RunName("r"), Step(step), Generation(1, step))
    return LackingPayload(PayloadId(id, Rank(rank)), (ColumnNumber(0),), 1, False, 0.0)


def left_alone(queue: list[LackingPayload], rate: float, **leaves_s: float) -> list[int]:
    """Steps that are; `leaves_s`: when each, as `s1`, will have expired."""
    kept, skipped = leave_expiring(
        queue, lambda _: BYTES, rate,
        lambda id, seconds: leaves_s.get(f"s{id.step}", 1e9) < seconds,
    )  # fmt: skip
    assert {one.payload.checkpoint for one in kept}.isdisjoint(skipped)
    assert [one for one in queue if one in kept] == kept
    assert len(kept) + sum(one.payload.checkpoint in skipped for one in queue) == len(queue)
    return sorted(id.step for id in skipped)


def test_each_is_done_after_all_that_is_ahead_of_it() -> None:
    queue = [lacking(3), lacking(2), lacking(1)]
    assert left_alone(queue, 10.0, s1=29.0) == [1]
    assert left_alone(queue, 10.0, s1=31.0) == []
    assert left_alone(queue, 10.0, s2=19.0, s1=21.0) == [2], "with less ahead it is done in time"


def test_a_checkpoint_is_done_with_its_last_payload() -> None:
    queue = [lacking(3), lacking(2, 0), lacking(1, 0), lacking(2, 1)]
    assert left_alone(queue, 10.0, s2=25.0) == [2]
    assert left_alone(queue, 10.0, s2=31.0, s1=41.0) == []


def test_the_first_and_what_can_lose_no_more_are_never_left_alone() -> None:
    queue = [lacking(3), lacking(2), replace(lacking(1), left=0)]
    assert left_alone(queue, 10.0, s3=0.0, s2=0.0, s1=0.0) == [2]


def test_while_nobody_knows_how_fast_it_goes_nothing_is_left_alone() -> None:
    assert left_alone([lacking(1)], 0.0, s1=0.0) == []


# --------------------------------------------------------------------------- the coordinator


def saved(bench: Bench, *steps: int) -> None:
    for step in steps:
        bench.save(step)
        bench.wall_s += EVERY_S


def slow(bench: Bench, bytes_per_s: float) -> None:
    """So fast columns were made until now."""
    rate = bench.machine.repairs.rate
    rate.passed(bench.now_us, is_working=True)
    rate.passed(bench.now_us + 10 * SECOND_US, is_working=True)
    rate.made(10 * bytes_per_s)
    assert rate.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)


def harmed(*, last: int) -> Bench:
    """All steps lack the column of one target; the run keeps so many, and saves each minute."""
    bench = Bench(4, "2+2")
    bench.tell(bench.session(), KeepSteps(RUN, Retention(last=last)))
    saved(bench, 1, 2, 3)
    wipe(bench, next(iter(bench.targets.values())))
    return bench


def due(bench: Bench) -> list[int]:
    bench.tick(LOOK_S)
    return sorted(one.payload.checkpoint.step for one in bench.machine.repairs.waiting())


def column_bytes(bench: Bench) -> float:
    return bench.machine.repairs.bytes_left() / 3


def test_the_next_save_takes_the_oldest_away_before_it_is_made_again() -> None:
    bench = harmed(last=3)
    assert due(bench) == [1, 2, 3], "nobody knows how fast it goes"
    slow(bench, column_bytes(bench) / (0.4 * EVERY_S))
    assert due(bench) == [2, 3], "1 would be done in 72 s, and goes in 60"
    view = bench.ask("repair")
    assert isinstance(view, dict)
    ((name, why),) = view["skipped"]
    assert name.startswith(f"{RUN}@1#")
    assert "expires sooner than in" in why


def test_what_is_fast_enough_or_has_a_name_is_made_again() -> None:
    bench = harmed(last=3)
    slow(bench, column_bytes(bench) / (0.2 * EVERY_S))
    assert due(bench) == [1, 2, 3]
    bench = harmed(last=3)
    label(bench, 1, add=("best",))
    slow(bench, column_bytes(bench) / (0.4 * EVERY_S))
    assert due(bench) == [1, 2, 3]


def test_while_rules_change_nothing_is_left_alone() -> None:
    """Neither the old ones nor the new ones are known to count."""
    bench = harmed(last=3)
    slow(bench, column_bytes(bench) / (0.4 * EVERY_S))
    bench.persist_at_once = False
    bench.tell(bench.session(), KeepSteps(RUN, Retention(last=9)))
    assert due(bench) == [1, 2, 3]


def test_of_a_run_that_has_ended_all_is_made_again() -> None:
    bench = harmed(last=3)
    slow(bench, column_bytes(bench) / (0.4 * EVERY_S))
    assert due(bench) == [2, 3]
    bench.wall_s += 3 * EVERY_S
    assert due(bench) == [1, 2, 3]


def test_no_worker_gets_what_is_left_alone() -> None:
    bench = harmed(last=3)
    slow(bench, column_bytes(bench) / (10 * EVERY_S))
    assert due(bench) == [3], "or nobody would learn that it goes faster now"
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    worker.end()
    assert worker.lease() == RepairLeased()


def test_what_later_ones_refer_to_is_made_again_though_it_expires() -> None:
    bench = harmed(last=3)
    slow(bench, column_bytes(bench) / (0.4 * EVERY_S))
    oldest = bench.machine.checkpoints.of_run(RunName(RUN), RowState.COMMITTED)[0]
    bench.machine.homes.hold(CheckpointId(RunName(RUN), Step(3), Generation(1, 3)), [oldest.id])
    assert due(bench) == [1, 2, 3]
