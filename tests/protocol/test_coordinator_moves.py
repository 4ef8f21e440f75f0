"""Several columns of one payload that leave their targets at once, or beside a lost one."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId, TargetId
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_adopting import WHILE_S, Scene, host
from tests.protocol.test_coordinator_repairing import (
    AFTER_S,
    LOOK_S,
    Worker,
    holders,
    missing,
    wipe,
)
from tests.protocol.test_coordinator_standings import change, done, make_again


def saved_on_three_hosts() -> tuple[Bench, CheckpointId]:
    """Two targets on each; every host has a column."""
    bench = Bench(6, "2+1", hosts=3)
    return bench, bench.save(1)


@pytest.mark.parametrize("others", [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_copies_that_change_domains_with_each_other_are_named_together(
    others: tuple[int, int], turn: int
) -> None:
    bench, id = saved_on_three_hosts()
    for step in range(2, 2 + turn):
        bench.save(step)
    leaving = [holders(bench, id)[j] for j in others]
    for each in leaving:
        done(change(bench, each.id, "draining", force=True))
    bench.tick(LOOK_S)
    while make_again(bench):
        bench.tick(LOOK_S)
    assert not {each.id for each in leaving} & {each.id for each in holders(bench, id)}
    assert not any(each.columns for each in leaving)
    assert missing(bench, id) == 0


@pytest.mark.parametrize(("stuck", "free"), [(0, 2), (2, 0), (1, 3)])
def test_a_place_in_a_domain_that_is_left_is_for_the_column_that_leaves_it(
    stuck: int, free: int
) -> None:
    """Another one that would take it could not be named beside it, and has no other place."""
    bench = Bench(8, "2+2", hosts=4)
    id = bench.save(1)
    stays, leaves = holders(bench, id)[stuck], holders(bench, id)[free]
    (beside,) = (t for t in bench.targets.values() if host(t) == host(stays) and t is not stays)
    for each in (beside, stays, leaves):
        done(change(bench, each.id, "draining", force=True))
    bench.tick(LOOK_S)
    assert make_again(bench)
    bench.tick(LOOK_S)
    assert holders(bench, id)[stuck] is stays
    assert holders(bench, id)[free] is not leaves
    assert missing(bench, id) == 0
    assert not make_again(bench)


def test_a_place_is_for_what_is_missing_before_it_is_for_what_leaves() -> None:
    bench = Bench(4)
    id = bench.save(1)
    leaving, _, lost = holders(bench, id)
    (spare,) = (each for each in bench.targets.values() if not each.columns)
    done(change(bench, leaving.id, "draining", force=True))
    done(change(bench, lost.id, "draining", force=True))
    wipe(bench, lost)
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [2]
    assert worker.places == [spare.id]
    worker.seal()
    worker.end()
    bench.tick(LOOK_S)
    assert missing(bench, id) == 0
    assert [each.id for each in holders(bench, id)][::2] == [leaving.id, TargetId(spare.id)]


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("away", [0, 1])
def test_no_column_goes_beside_one_whose_holder_is_waited_for(away: int, turn: int) -> None:
    bench = Bench(8, "2+2", hosts=4)
    for step in range(turn):
        bench.save(step)
    id = bench.save(9)
    gone, leaving = holders(bench, id)[away], holders(bench, id)[2]
    bench.stop(gone.id)
    bench.tick(WHILE_S)
    done(change(bench, leaving.id, "draining"))
    bench.tick(LOOK_S)
    while make_again(bench):
        bench.tick(LOOK_S)
    assert leaving not in holders(bench, id)
    bench.start(gone)
    bench.tick(LOOK_S)
    assert missing(bench, id) == 0
    assert len({host(each) for each in holders(bench, id)}) == 4


def test_no_copy_is_named_beside_a_column_whose_holder_is_waited_for() -> None:
    scene = Scene(5, "2+2", hosts=4)
    beside = next(j for j in range(4) if host(scene.holder(j)) == host(scene.spare))
    lost = (beside + 1) % 4
    scene.leave(scene.holder(beside))
    scene.holder(lost).columns.clear()
    scene.copy(lost, scene.spare)
    scene.come_back(scene.holder(lost))
    scene.come_back(scene.spare)
    assert (scene.missing, scene.named[lost]) == (2, scene.holder(lost).id)
    assert scene.column(lost) in scene.spare.columns
    scene.bench.tick(AFTER_S)
    assert (scene.missing, scene.named[lost]) == (1, scene.spare.id)
