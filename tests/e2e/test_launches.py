"""Starts of a run: their payloads never meet, older ones can save no more, and a rank that is missing is named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.ranks import done, every, launched, save_and_wait
from tests.waiting import wait_until

WAIT_S = 60.0


def test_payloads_of_two_launches_never_meet_and_the_older_is_fenced(cluster: Cluster) -> None:
    with (
        launched(cluster.url, 2, launch="old") as old,
        launched(cluster.url, 2, launch="new") as new,
    ):
        old[0].do("save", run="mix", step=1, version=1)
        new[1].do("save", run="mix", step=1, version=2)  # The other half, of another launch.
        answer = old[0].ask("wait", run="mix", step=1)
        assert (answer.error, "launch" in answer.text) == ("fenced", True)
        for rank in old:
            rank.do("save", run="mix", step=2)
            assert rank.ask("wait", run="mix", step=2).error == "fenced"
        new[0].do("save", run="mix", step=1, version=2)
        done(every(new, "wait", run="mix", step=1))
        loads = done(every(new, "load", run="mix", version=2))
        assert [load["equal"] for load in loads] == [True, True]


def test_what_an_older_launch_has_wholly_handed_over_still_commits(cluster: Cluster) -> None:
    with (
        launched(cluster.url, 2, launch="old") as old,
        launched(cluster.url, 2, launch="new") as new,
    ):
        save_and_wait(old, "over", 1)
        done(every(old, "save", run="over", step=2, version=2, filler_bytes=8 << 20))
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
        done(every(new, "save", run="over", step=3, version=3))
        done(every(old, "wait", run="over", step=2))
        done(every(new, "wait", run="over", step=3))


def test_reading_begins_nothing(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="training") as training:
        save_and_wait(training, "eval", 1)
        with launched(cluster.url, 2, launch="evaluation") as evaluation:
            loads = done(every(evaluation, "load", run="eval"))
            assert [load["equal"] for load in loads] == [True, True]
            save_and_wait(training, "eval", 2, version=2)
            # What it resolved once stays, for all its ranks, however often they ask.
            again = done(every(evaluation, "load", run="eval"))
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


def test_a_rank_that_goes_on_aborts_the_step_it_left_out_and_is_named(cluster: Cluster) -> None:
    with launched(cluster.url, 3, launch="skips") as team:
        for rank in team[:2]:
            rank.do("save", run="skips", step=1)
        team[2].do("save", run="skips", step=2)
        for rank in team[:2]:
            answer = rank.ask("wait", run="skips", step=1)
            assert answer.error == "aborted"
            assert "rank 2" in answer.text
            assert "skips@1" in answer.text
        for rank in team[:2]:
            rank.do("save", run="skips", step=2)
        done(every(team, "wait", run="skips", step=2))


def test_a_trainer_that_left_before_its_save_ends_the_wait_of_its_peers(cluster: Cluster) -> None:
    with launched(cluster.url, 3, launch="leaves") as team:
        save_and_wait(team, "leaves", 1)
        for rank in team[:2]:
            rank.do("save", run="leaves", step=2)
        team[2].kill()
        for rank in team[:2]:
            answer = rank.ask("wait", run="leaves", step=2)
            assert answer.error == "aborted"
            assert "rank 2" in answer.text


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


def test_a_step_saved_again_is_a_new_generation_beside_its_readers(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="again") as team:
        first = save_and_wait(team, "again", 1, version=1)[0]
        with (
            ckpt.open(cluster.url) as store,
            store.resolve("again", 1, rank=0, world_size=2) as old,
        ):
            second = save_and_wait(team, "again", 1, version=2)[0]
            assert first["generation"] != second["generation"]
            old_state = old.load()
            assert isinstance(old_state, dict)
            assert (old_state["model"]["p"] == 1.0).all()
            assert len(store.steps("again")) == 1
        loads = done(every(team, "load", run="again", step=1, version=2))
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
