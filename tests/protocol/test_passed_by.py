"""An attempt that a rank has passed by ends at once: nobody's arena waits for it."""

from __future__ import annotations

from tests.calls import counted
from tests.protocol.coordinating import Bench, RankFake


def pair(bench: Bench) -> list[RankFake]:
    return [RankFake(bench, rank, 2) for rank in range(2)]


def test_a_slow_rank_hears_at_once_that_another_has_gone_on_without_the_step() -> None:
    bench = Bench()
    fast, slow = pair(bench)
    fast.open(3)
    slow.open(2)
    (abort,) = slow.aborts()
    assert abort.checkpoint.step == 2
    assert "rank 0 went on to step 3" in abort.message
    slow.open(3)
    for rank in (fast, slow):
        rank.seal_all()
        rank.certify()
    assert [commit.info.checkpoint.step for commit in slow.commits()] == [3]


def test_after_a_restart_a_rank_that_resumes_a_later_step_ends_what_its_dead_stager_left() -> None:
    bench = Bench()
    dead, other = pair(bench)
    for rank in (dead, other):
        rank.open(1)
    first = other.payload.checkpoint
    bench.close(dead.session)
    renewed = RankFake(bench, 0, 2, process=dead.process)
    renewed.saves = dead.saves
    renewed.open(2)
    second = renewed.payload.checkpoint
    assert not other.aborts(), "its payload of step 1 may still come back"
    bench.restart(*bench.targets)
    for rank, step, checkpoint in ((other, 1, first), (renewed, 2, second)):
        rank.reconnect()
        rank.resume(step, checkpoint)
    assert [abort.checkpoint for abort in other.aborts()] == [first]


def test_saves_that_lack_a_rank_are_not_compared_all_with_all() -> None:
    """One rank may hand over step after step while its peer never comes."""

    def calls(open_count: int) -> int:
        bench = Bench()
        rank = RankFake(bench, 0, 2)
        for step in range(open_count):
            rank.open(step)
        return counted(lambda: rank.open(open_count))[1]

    assert calls(200) < 5 * calls(50)
