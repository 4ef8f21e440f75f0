"""How many steps of a run stay: `keep`."""

from __future__ import annotations

from ckpt.base.ids import (
    PayloadId,
    Rank,
)
from ckpt.format.messages.asking import StepDeleted
from ckpt.format.messages.loading import ReleasePin, ReportDamage
from ckpt.format.messages.reading import ByteRange
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_deletion import delete, holders, pin


def test_keep_leaves_the_newest_steps() -> None:
    bench = Bench(keep=2)
    ids = [bench.save(step) for step in (1, 2, 3, 4)]
    assert [bench.states()[str(id)] for id in ids] == [
        "deleted", "deleted", "committed", "committed",
    ]  # fmt: skip
    assert holders(bench, ids[1]) == []
    assert len(holders(bench, ids[2])) >= 3


def test_runs_are_kept_apart() -> None:
    bench = Bench(keep=1)
    other = bench.save(1, run="other")
    bench.save(1)
    bench.save(2)
    assert bench.states()[str(other)] == "committed"


def test_a_step_that_is_saved_again_replaces_its_older_generation() -> None:
    bench = Bench()
    old, new = bench.save(1), bench.save(1)
    assert bench.states() == {str(old): "deleted", str(new): "committed"}


def test_a_pinned_step_outlives_retention_and_goes_with_its_pin() -> None:
    bench = Bench(keep=1)
    old = bench.save(1)
    session, number = pin(bench)
    bench.save(2)
    assert bench.states()[str(old)] == "committed"
    bench.tell(session, ReleasePin(number))
    assert bench.states()[str(old)] == "deleted"


def test_a_damaged_step_takes_no_place_of_a_good_one_and_stays_until_it_is_deleted() -> None:
    bench = Bench(keep=2)
    good, bad = bench.save(1), bench.save(2)
    for target in bench.targets.values():
        for column in [c for c in target.columns if c.payload.checkpoint == bad]:
            target.damaged[column] = (ByteRange(0, 1),)
    bench.tell(bench.session(), ReportDamage(PayloadId(bad, Rank(0)), "rotten"))
    newest = bench.save(3)
    assert [bench.states()[str(id)] for id in (good, bad, newest)] == [
        "committed", "damaged", "committed",
    ]  # fmt: skip
    (answer,) = bench.tell(bench.session(), delete(2))
    assert answer == StepDeleted(10_000)
    assert bench.states()[str(bad)] == "deleted"
