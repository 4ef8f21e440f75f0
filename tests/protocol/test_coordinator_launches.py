"""Which start of a run a rank belongs to, and who may save no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt.base.ids import LaunchNumber
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import TrainerLeft
from ckpt.format.messages.saving import PayloadPlanned
from ckpt.protocol.coordinator.catalog import AttemptOpened, LaunchEntered, LaunchNumbered
from ckpt.protocol.coordinator.cluster import launches
from tests.protocol.coordinating import Bench, RankFake, team
from tests.protocol.numbered import STEP, ByNumber


def failure(answer: list[Message]) -> Failed:
    (failed,) = answer
    assert isinstance(failed, Failed)
    return failed


def test_ranks_with_one_key_share_a_launch_whose_number_names_the_term() -> None:
    bench = Bench()
    first, second = team(bench, 2, key="job/0")
    other = RankFake(bench, 0, 2, key="job/1", process="again")
    assert first.launch == second.launch == (1 << 32 | 1)
    assert other.launch == (1 << 32 | 2)


def test_a_process_that_joins_again_gets_the_same_launch_also_on_another_session() -> None:
    bench = Bench()
    rank = RankFake(bench)
    before = rank.launch
    rank.reconnect()
    assert rank.launch == before


def test_two_live_processes_of_one_rank_are_busy_until_the_first_is_gone() -> None:
    bench = Bench()
    first = RankFake(bench)
    second = RankFake(bench, process="another")
    failed = failure(second.heard)
    assert (failed.code, second.launch) == ("busy", 0)
    assert first.process in failed.message
    bench.close(first.session)
    second.join()
    assert second.launch == first.launch


def test_a_process_whose_trainer_left_makes_room_for_another() -> None:
    bench = Bench()
    first = RankFake(bench)
    left = TrainerLeft(first.run, first.launch, first.rank, first.process)
    bench.tell(first.session, left)
    assert RankFake(bench, process="another").launch == first.launch


def test_a_launch_has_one_world_size() -> None:
    bench = Bench()
    RankFake(bench, 0, 2)
    failed = failure(RankFake(bench, 1, 3).heard)
    assert failed.code == "refused"
    assert "world size 2" in failed.message


def test_impossible_numbers_are_refused() -> None:
    bench = Bench()
    for rank, world_size in ((0, 0), (-1, 2), (2, 2), (0, (1 << 20) + 1)):
        assert failure(RankFake(bench, rank, world_size).heard).code == "refused"
    assert failure(RankFake(bench, run="a@b").heard).code == "refused"
    assert bench.states() == {}


def test_without_a_key_a_rank_that_comes_again_begins_a_new_launch_and_its_peers_follow() -> None:
    bench = Bench()
    first = team(bench, 2, key=None)
    assert first[0].launch == first[1].launch
    again = [RankFake(bench, rank, 2, key=None, process=f"again/{rank}") for rank in range(2)]
    assert again[0].launch == again[1].launch > first[0].launch


def test_without_a_key_another_world_size_is_another_launch() -> None:
    bench = Bench()
    assert RankFake(bench, 0, 2, key=None).launch < RankFake(bench, 1, 3, key=None).launch


def test_ranks_that_still_join_when_the_coordinator_restarts_meet_in_one_launch() -> None:
    for key in (None, "job/0"):
        for saved in (False, True):
            bench = Bench()
            first = RankFake(bench, 0, 2, key=key)
            if saved:
                first.open(1)
            bench.restart(*bench.targets)
            assert RankFake(bench, 1, 2, key=key).launch == first.launch == (1 << 32 | 1)
            first.reconnect()
            assert first.launch == (1 << 32 | 1)


def test_without_a_key_a_rank_that_comes_again_begins_a_new_launch_also_behind_a_restart() -> None:
    bench = Bench()
    old = team(bench, 2, key=None)
    bench.restart(*bench.targets)
    again = [RankFake(bench, rank, 2, key=None, process=f"again/{rank}") for rank in range(2)]
    assert [rank.launch for rank in again] == [2 << 32 | 1] * 2
    old[0].reconnect()
    assert old[0].launch == (1 << 32 | 1)


def test_nobody_is_told_of_a_launch_that_a_restart_would_not_find() -> None:
    bench = Bench()
    bench.persist_at_once = False
    told = team(bench, 2, key="job/0")
    told += team(bench, 2, key=None)
    assert [rank.launch for rank in told] == [0] * 4
    bench.sync()
    assert [len(rank.heard) for rank in told] == [1] * 4
    joined = [rank.heard[0] for rank in told]
    assert joined[0] == joined[1] != joined[2] == joined[3]


def test_an_evaluation_job_does_not_split_a_launch_that_is_still_joining() -> None:
    bench = Bench()
    first = RankFake(bench, 0, 2, key=None)
    RankFake(bench, 0, 1, key=None, process="evaluation")
    assert RankFake(bench, 1, 2, key=None).launch == first.launch


def test_launches_without_a_live_process_are_forgotten_beyond_a_number_but_the_begun_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "LAUNCHES_KEPT", 4)
    bench = Bench()
    begun = RankFake(bench, key="train")
    begun.open(1)
    live = RankFake(bench, key="looks on")
    bench.close(begun.session)
    for number in range(10):
        bench.close(RankFake(bench, key=f"evaluation {number}").session)
    assert len(bench.machine.launches.runs[live.run].launches) == 4
    bench.restart(*bench.targets)
    known = bench.machine.launches.runs[live.run].launches
    assert {begun.launch, live.launch} < set(known)
    assert len(known) == 4


def test_a_key_finds_its_launch_again_after_a_restart_once_it_has_saved() -> None:
    bench = Bench()
    old = RankFake(bench, 0, 2, key="job/0")
    old.open(1)
    bench.restart(*bench.targets)
    assert RankFake(bench, 1, 2, key="job/0").launch == old.launch


def _make_catalog_anew(bench: Bench) -> None:
    """As from the targets: it knows the launches' records, if any, without their keys."""
    bench.durable = [
        replace(entry, launch_key=None) if isinstance(entry, AttemptOpened) else entry
        for entry in bench.durable
        if not isinstance(entry, LaunchNumbered | LaunchEntered)
    ]
    bench.restart(*bench.targets)


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "joined"])
def test_a_key_finds_its_launch_again_in_a_catalog_that_was_made_from_the_targets(
    saved: bool,
) -> None:
    """Ranks that come back say number and key; a new stager knows the key alone, and that must not
    begin a launch which fences the others.
    """
    bench = Bench()
    first, second = team(bench, 2, key="job/0")
    if saved:
        first.open(1)
    _make_catalog_anew(bench)
    first.reconnect()
    assert RankFake(bench, 1, 2, key="job/0", process=second.process).launch == first.launch
    numbered = [entry for entry in bench.durable if isinstance(entry, LaunchNumbered)]
    assert [(entry.launch, entry.key) for entry in numbered] == [(first.launch, "job/0")]
    bench.restart(*bench.targets)
    assert RankFake(bench, 0, 2, key="job/0", process=first.process).launch == first.launch
    assert bench.durable.count(numbered[0]) == 1


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "joined"])
def test_a_rank_that_joins_first_behind_a_lost_catalog_begins_no_launch_of_its_own(
    saved: bool,
) -> None:
    """It knows the key alone. Peers that come behind it, with their old number, get its number."""
    bench = Bench()
    first, second = team(bench, 2, key="job/0")
    if saved:
        first.open(1)
    _make_catalog_anew(bench)
    fresh = RankFake(bench, 1, 2, key="job/0", process="again")
    first.reconnect()
    assert first.launch == fresh.launch != second.launch
    known = bench.machine.launches.get(first.run, second.launch)
    assert known is not None
    assert known.number == fresh.launch
    first.open(2)
    fresh.open(2)
    bench.restart(*bench.targets)
    first.reconnect()
    assert first.launch == fresh.launch


def test_a_launch_that_has_saved_keeps_its_number_when_a_reader_comes_back_with_an_older_one() -> (
    None
):
    """The catalog was lost twice: a trainer that was away meanwhile still says its first number,
    its stager the one that the launch has saved under.
    """
    bench = Bench()
    trainer, _ = team(bench, 2, key="job/0")
    _make_catalog_anew(bench)
    stager = RankFake(bench, 0, 2, key="job/0")
    stager.open(1)
    assert stager.launch > trainer.launch
    _make_catalog_anew(bench)
    trainer.reconnect()
    stager.reconnect()
    assert trainer.launch < stager.launch
    known = bench.machine.launches.get(trainer.run, trainer.launch)
    assert known is not None
    assert known.number == stager.launch
    stager.open(2)
    bench.restart(*bench.targets)
    assert RankFake(bench, 1, 2, key="job/0").launch == stager.launch


def test_a_load_whose_launch_has_not_come_back_yet_is_told_to_try_again() -> None:
    """A reader's own connection may be there before its trainer's, behind a lost catalog: that
    ended a job with "was never joined".
    """
    bench = Bench()
    first = bench.save(STEP)
    rank, _ = team(bench, 2, key="job/0")
    loading = ByNumber(rank)
    loading.begin()
    _make_catalog_anew(bench)
    loading.reconnect()
    early = failure(loading.finish())
    assert (early.code, early.message) == (
        "unavailable", f"launch {rank.launch} of run 'run' has not come back yet"
    )  # fmt: skip
    rank.reconnect()
    assert loading.load() == first


def test_a_forgotten_launch_whose_rank_comes_back_is_not_written_down_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "LAUNCHES_KEPT", 2)
    bench = Bench()
    old = RankFake(bench, key=None)
    bench.close(old.session)
    for number in range(3):
        bench.close(RankFake(bench, key=f"evaluation {number}").session)
    bench.restart(*bench.targets)
    before = list(bench.durable)
    old.reconnect()
    assert old.launch == (1 << 32 | 1)
    assert bench.durable == before
    bench.restart(*bench.targets)


def test_a_launch_that_nobody_gave_out_is_refused() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.launch = LaunchNumber(1 << 32 | 77)
    assert failure(rank.join()).code == "refused"


def test_a_launch_begins_with_its_first_save_and_then_fences_older_ones() -> None:
    bench = Bench()
    old, new = RankFake(bench, key="a"), RankFake(bench, key="b")
    assert isinstance(old.open(1)[0], PayloadPlanned)  # Joining began nothing.
    assert isinstance(new.open(2)[0], PayloadPlanned)
    failed = failure(old.open(3))
    assert failed.code == "fenced"
    assert "two jobs need two run names" in failed.hint
    bench.restart(*bench.targets)
    old.reconnect()
    assert failure(old.open(4)).code == "fenced"


def test_a_new_launch_ends_what_older_ones_have_not_wholly_handed_over() -> None:
    bench = Bench()
    old = team(bench, 2, key="a")
    for rank in old:
        rank.open(1)
    old[0].open(2)
    new = team(bench, 2, key="b")
    new[0].open(3)
    assert bench.states() == {"run@1#1.1": "open", "run@2#1.2": "aborted", "run@3#1.3": "open"}
    (aborted,) = old[0].aborts()
    assert (aborted.code, aborted.checkpoint.step) == ("fenced", 2)
    assert "two jobs need two run names" in aborted.hint, "another job by mistake, perhaps"
    for rank in old:
        rank.plan = next(p for p in rank.heard if isinstance(p, PayloadPlanned))
        rank.seal_all()
        rank.certify()
    assert bench.states()["run@1#1.1"] == "committed"


def test_a_payload_of_a_launch_that_was_never_joined_is_refused() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.launch = LaunchNumber(9)
    assert failure(rank.open(1)).code == "refused"
    assert bench.states() == {}
