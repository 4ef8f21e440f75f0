"""Starts of a run: their payloads never meet, older ones can save no more,
and a rank that is missing is named.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import ckpt
from tests.e2e.cluster import Cluster, runs
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def older(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """Two ranks of one launch.

    Launches are of a run: with each run these are the first that save.
    """
    with launched(cluster.url, 2, launch="older") as team:
        yield team


@pytest.fixture(scope="module")
def newer(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """Two ranks of another launch."""
    with launched(cluster.url, 2, launch="newer") as team:
        yield team


def test_payloads_of_two_launches_never_meet_and_the_older_is_fenced(
    cluster: Cluster, older: list[RankProcess], newer: list[RankProcess]
) -> None:
    older[0].do("save", run="mix", step=1, version=1)
    # Which one is the older is how they came to the coordinator.
    wait_until(lambda: any(a.run == "mix" for a in cluster.status().attempts), "it has begun")
    newer[1].do("save", run="mix", step=1, version=2)  # The other half, of another launch.
    answer = older[0].ask("wait", run="mix", step=1)
    assert (answer.error, "launch" in answer.text) == ("fenced", True)
    for rank in older:
        # A copy that needs no grant is over before the stager's refusal comes.
        refused = rank.ask("save", run="mix", step=2)
        if not refused.error:
            refused = rank.ask("wait", run="mix", step=2)
        assert refused.error == "fenced"
    newer[0].do("save", run="mix", step=1, version=2)
    done(every(newer, "wait", run="mix", step=1))
    loads = done(every(newer, "load", run="mix", version=2))
    assert [load["equal"] for load in loads] == [True, True]


def test_what_an_older_launch_has_wholly_handed_over_still_commits(
    cluster: Cluster, older: list[RankProcess], newer: list[RankProcess]
) -> None:
    save_and_wait(older, "over", 1)
    done(every(older, "save", run="over", step=2, version=2, filler_bytes=8 << 20))
    with ckpt.open(cluster.url) as store:
        wait_until(
            lambda: (
                store.latest("over") == 2
                or any(
                    (a.run, a.step, a.ranks_handed_over) == ("over", 2, 2)
                    for a in cluster.status().attempts
                )
            ),
            "both ranks have handed over",
        )
    done(every(newer, "save", run="over", step=3, version=3))
    done(every(older, "wait", run="over", step=2))
    done(every(newer, "wait", run="over", step=3))


def test_reading_begins_nothing(older: list[RankProcess], newer: list[RankProcess]) -> None:
    save_and_wait(older, "eval", 1)
    loads = done(every(newer, "load", run="eval"))
    assert [load["equal"] for load in loads] == [True, True]
    save_and_wait(older, "eval", 2, version=2)
    # What a launch that never saves resolved once stays, for all its ranks, however often they ask.
    again = done(every(newer, "load", run="eval"))
    assert [load["step"] for load in again] == [1, 1]


def test_without_a_key_a_rank_that_comes_again_begins_a_new_launch(cluster: Cluster) -> None:
    with launched(cluster.url, 2) as first:
        save_and_wait(first, "keyless", 1)
        for rank in first:
            rank.kill()
        with launched(cluster.url, 2) as second:
            loads = done(every(second, "load", run="keyless"))
            assert [load["equal"] for load in loads] == [True, True]
            save_and_wait(second, "keyless", 2)


def test_a_rank_that_goes_on_aborts_the_step_it_left_out_and_is_named(
    older: list[RankProcess],
) -> None:
    first, second = older
    first.do("save", run="skips", step=1)
    second.do("save", run="skips", step=2)
    answer = first.ask("wait", run="skips", step=1)
    assert answer.error == "aborted"
    assert "rank 1" in answer.text
    assert "skips@1" in answer.text
    first.do("save", run="skips", step=2)
    done(every(older, "wait", run="skips", step=2))


def test_a_trainer_that_left_before_its_save_ends_the_wait_of_its_peers(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="leaves") as (stays, leaves):
        save_and_wait([stays, leaves], "leaves", 1)
        stays.do("save", run="leaves", step=2)
        leaves.kill()
        answer = stays.ask("wait", run="leaves", step=2)
        assert answer.error == "aborted", answer.text
        assert "rank 1" in answer.text


def has_handed_over(cluster: Cluster, run: str, step: int) -> None:
    """Wait until one rank's payload is known to the coordinator."""
    wait_until(
        lambda: any((a.run, a.step) == (run, step) for a in cluster.status().attempts),
        f"{run}@{step} is open",
    )


def test_ranks_that_open_a_store_for_each_save_wait_for_each_other(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="reopens", stager_idle_s=0.3) as (fast, slow):
        save_and_wait([fast, slow], "reopens", 1)
        for step in (2, 3):
            fast.do("close")
            fast.do("open", launch="reopens", stager_idle_s=0.3)
            fast.do("save", run="reopens", step=step)
            has_handed_over(cluster, "reopens", step)
            stager = slow.do("stager")
            assert isinstance(stager, int)
            slow.do("close")  # Behind its peer's hand-over.
            if step == 3:
                wait_until(lambda pid=stager: not runs(pid), "nobody speaks for the slow rank")
            slow.do("open", launch="reopens", stager_idle_s=0.3)
            slow.do("save", run="reopens", step=step)
            done(every([fast, slow], "wait", run="reopens", step=step))


def test_a_process_that_ends_behind_its_closed_store_ends_the_wait_of_its_peers(
    cluster: Cluster,
) -> None:
    with launched(cluster.url, 2, launch="ends") as (stays, ends):
        save_and_wait([stays, ends], "ends", 1)
        ends.do("close")
        stays.do("save", run="ends", step=2)
        has_handed_over(cluster, "ends", 2)
        ends.kill()
        answer = stays.ask("wait", run="ends", step=2)
        assert answer.error == "aborted", answer.text
        assert "the trainer of rank 1 ended" in answer.text


def test_a_host_that_dies_before_its_rank_saved_ends_the_wait_of_its_peers(
    cluster: Cluster,
) -> None:
    with launched(cluster.url, 2, launch="host dies") as (stays, dies):
        save_and_wait([stays, dies], "host dies", 1)
        stager = dies.do("stager")
        assert isinstance(stager, int)
        stays.do("save", run="host dies", step=2)
        os.kill(stager, signal.SIGKILL)  # First: it must not tell that its trainer left.
        dies.kill()
        answer = stays.ask("wait", run="host dies", step=2)
        assert answer.error == "aborted", answer.text
        assert "rank 1" in answer.text
        assert "without a word" in answer.text


def test_two_live_processes_cannot_share_a_rank_of_a_launch(cluster: Cluster) -> None:
    with (
        launched(cluster.url, 1, launch="same") as first,
        launched(cluster.url, 1, launch="same") as second,
    ):
        save_and_wait(first, "shared", 1)
        second[0].ask("save", run="shared", step=2)
        answer = second[0].ask("wait", run="shared", step=2)
        assert answer.error == "busy"
        assert f"/{first[0].process.pid}/" in answer.text
        save_and_wait(first, "shared", 2)


def test_a_step_saved_again_is_a_new_generation_beside_its_readers(
    cluster: Cluster, older: list[RankProcess]
) -> None:
    first = save_and_wait(older, "again", 1, version=1)[0]
    with (
        ckpt.open(cluster.url) as store,
        store.resolve("again", 1, rank=0, world_size=2) as old,
    ):
        second = save_and_wait(older, "again", 1, version=2)[0]
        assert first["generation"] != second["generation"]
        old_state = old.load()
        assert isinstance(old_state, dict)
        assert (old_state["model"]["p"] == 1.0).all()
        assert len(store.steps("again")) == 1
    loads = done(every(older, "load", run="again", step=1, version=2))
    assert [load["equal"] for load in loads] == [True, True]


@pytest.mark.parametrize("set_name", ["RANK", "WORLD_SIZE"])
def test_a_rank_without_a_world_size_is_refused_and_the_other_way_round(
    cluster: Cluster, set_name: str
) -> None:
    script = (
        "import ckpt\n"
        "with ckpt.open() as store:\n"
        "    try:\n"
        "        store.save('alone', 1, {'a': 1})\n"
        "    except ckpt.Refused as error:\n"
        "        print(error)\n"
    )
    environ = {**os.environ, "CKPT_STORE": cluster.url, set_name: "1"}
    command = [sys.executable, "-W", "error", "-c", script]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert "RANK" in ended.stdout
    assert "WORLD_SIZE" in ended.stdout
    with ckpt.open(cluster.url) as store, pytest.raises(ckpt.Refused):
        store.save("alone", 1, {"a": 1}, rank=1)
