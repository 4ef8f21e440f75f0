"""Signals in the middle of a save: to targets, the coordinator, stagers and trainers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from tests.e2e.cluster import OPTIONS, TARGETS, Cluster
from tests.e2e.ranks import RankProcess, done, end_with_stagers, every, launched, save_and_wait
from tests.e2e.states import form_of
from tests.waiting import wait_until

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always"
WAIT_S = 60.0
BIG_BYTES = 192 << 20
COLUMN_BYTES = BIG_BYTES // 4
STANDSTILL_S = 2 * LEASE_US / US_PER_S + 1


@pytest.fixture(autouse=True)
def healed(cluster: Cluster) -> None:
    """Every test begins with all targets."""
    cluster.heal()


@pytest.fixture(scope="module")
def big() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A payload that takes so long that a signal hits it on its way."""
    return np.random.default_rng(3).integers(0, 255, BIG_BYTES, "u1")


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """Four rank processes of one launch."""
    with launched(cluster.url, 4, launch="first") as ranks:
        yield ranks


def written_bytes(pid: int) -> int:
    """What a process has written to files so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def stager_of(store: ckpt.Store) -> int:
    (link,) = store._stagers.links.values()
    return link.pid


def caught_in_mid_stream(cluster: Cluster, store: ckpt.Store, save: ckpt.Save) -> str:
    """A target that has a part of the save's column, and not all;
    the stager stands still on return.
    """
    pids = {id: cluster.pid_of(id) for id in TARGETS}
    before = {id: written_bytes(pid) for id, pid in pids.items()}
    started: list[str] = []

    def some_have_begun() -> bool:
        started[:] = [i for i, pid in pids.items() if written_bytes(pid) - before[i] > 1 << 20]
        return bool(started)

    wait_until(some_have_begun, "a target has a part of its column")
    os.kill(stager_of(store), signal.SIGSTOP)
    assert not save.ended
    victim = started[0]
    assert written_bytes(pids[victim]) - before[victim] < COLUMN_BYTES, "not all of it"
    return victim


def test_a_target_killed_in_mid_stream_loses_its_column_to_the_spare(
    cluster: Cluster, big: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> None:
    with ckpt.open(cluster.url) as store:
        store.prepare({"a": big}).result()
        save = store.save("spare", 1, {"a": big})
        victim = caught_in_mid_stream(cluster, store, save)
        cluster.kill(victim)
        os.kill(stager_of(store), signal.SIGCONT)
        commit = save.wait(WAIT_S)
        assert (commit.targets_survivable, commit.columns_missing) == (2, 0)
        holders = {id for id, files in cluster.columns_of("spare").items() if files}
        assert holders == set(TARGETS) - {victim}
        cluster.kill(*sorted(holders)[:2])
        assert form_of(store.load("spare")) == form_of({"a": big})


def test_a_target_that_hangs_in_mid_burst_does_not_hold_the_commit_up(
    cluster: Cluster, big: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> None:
    with ckpt.open(cluster.url) as store:
        save = store.save("hangs", 1, {"a": big})
        victim = caught_in_mid_stream(cluster, store, save)
        with cluster.stopped(cluster.pid_of(victim)):
            os.kill(stager_of(store), signal.SIGCONT)
            commit = save.wait(WAIT_S)
            assert commit.targets_survivable == 2 - commit.columns_missing
            assert form_of(store.load("hangs")) == form_of({"a": big})


def test_below_the_floor_a_save_fails_at_once_and_names_live_and_needed(
    cluster: Cluster, team: list[RankProcess]
) -> None:
    save_and_wait(team, "floor", 1)
    cluster.kill("t0", "t1", "t2")
    done(every(team, "save", run="floor", step=2))
    for answer in every(team, "wait", run="floor", step=2):
        assert answer.error in ("unavailable", "aborted")
        assert "4 targets are live" in answer.text
        assert "5 are needed" in answer.text
    cluster.heal()
    save_and_wait(team, "floor", 3)


def test_a_coordinator_killed_in_mid_save_only_delays_the_commit(
    cluster: Cluster, team: list[RankProcess]
) -> None:
    save_and_wait(team, "restart", 1)
    done(every(team, "save", run="restart", step=2, version=2, filler_bytes=8 << 20))
    before = cluster.coordinator_pid
    os.kill(before, signal.SIGKILL)
    commits = done(every(team, "wait", run="restart", step=2))
    assert {commit["step"] for commit in commits} == {2}
    assert cluster.coordinator_pid != before
    loads = done(every(team, "load", run="restart", version=2, filler_bytes=8 << 20))
    assert [(load["step"], load["equal"]) for load in loads] == [(2, True)] * 4


def test_what_was_staged_while_the_coordinator_stood_still_is_finished_by_the_next(
    cluster: Cluster, team: list[RankProcess]
) -> None:
    save_and_wait(team, "standing", 1)
    before = cluster.coordinator_pid
    with cluster.stopped(before):
        done(every(team, "save", run="standing", step=2, version=2))
        os.kill(before, signal.SIGKILL)
    assert {c["step"] for c in done(every(team, "wait", run="standing", step=2))} == {2}


def test_ranks_without_a_key_that_join_around_a_coordinators_restart_are_one_launch(
    cluster: Cluster,
) -> None:
    with launched(cluster.url, 2) as team:
        team[0].do("save", run="joins", step=1)
        wait_until(
            lambda: any(a.run == "joins" for a in cluster.status().attempts), "rank 0 has joined"
        )
        before = cluster.coordinator_pid
        os.kill(before, signal.SIGKILL)
        wait_until(
            lambda: cluster.ready()["coordinator_pid"] not in (None, before), "another coordinator"
        )
        team[1].do("save", run="joins", step=1)
        assert {c["step"] for c in done(every(team, "wait", run="joins", step=1))} == {1}


def test_a_killed_stager_is_an_error_of_wait_and_the_next_save_works(
    team: list[RankProcess],
) -> None:
    first = team[0]
    first.do("save", run="stager", step=1)
    stager = first.do("stager")
    assert isinstance(stager, int)
    os.kill(stager, signal.SIGKILL)
    answer = first.ask("wait", run="stager", step=1)
    assert answer.error == "aborted"
    assert f"pid {stager}" in answer.text
    save_and_wait(team, "stager", 2)


def test_trainers_killed_after_save_returned_still_commit(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="orphans 1", stager_idle_s=30.0) as team:
        done(every(team, "save", run="orphans", step=7, filler_bytes=4 << 20))
        for rank in team:
            rank.kill()
    with ckpt.open(cluster.url) as store:
        wait_until(lambda: store.latest("orphans") == 7, "the orphans' commit")
    # Their stagers are still there: a restarted trainer reads from their memory.
    with launched(cluster.url, 2, launch="orphans 2") as team:
        loads = done(every(team, "load", run="orphans", filler_bytes=4 << 20))
        assert [(load["equal"], load["source"]) for load in loads] == [(True, "stager")] * 2


def flip_in_memory(stager: int) -> int:
    """One byte of everything that a stager keeps becomes another; how many."""
    flipped = set()
    for link in Path(f"/proc/{stager}/fd").iterdir():
        file = link.stat().st_ino
        if os.readlink(link).startswith("/memfd:") and file not in flipped:
            descriptor = os.open(link, os.O_RDWR)
            (byte,) = os.pread(descriptor, 1, 1 << 20)
            os.pwrite(descriptor, bytes([byte ^ 0xFF]), 1 << 20)
            os.close(descriptor)
            flipped.add(file)
    return len(flipped)


def test_bytes_that_changed_in_a_stagers_memory_are_read_from_the_tier(cluster: Cluster) -> None:
    filler_bytes = 4 << 20
    with launched(cluster.url, 1, launch="rots 1", stager_idle_s=60.0) as team:
        save_and_wait(team, "rots", 1, filler_bytes=filler_bytes)
        stager = team[0].do("stager")
        assert isinstance(stager, int)
        team[0].kill()
    with launched(cluster.url, 1, launch="rots 2") as team:
        before = team[0].ask("load", run="rots", filler_bytes=filler_bytes)
        assert flip_in_memory(stager)
        after = team[0].ask("load", run="rots", filler_bytes=filler_bytes)
    assert [(load["equal"], load["source"]) for load in (before, after)] == [
        (True, "stager"), (True, "tier"),
    ]  # fmt: skip


def test_without_the_old_stagers_the_same_bytes_come_from_the_tier(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="tier 1", stager_idle_s=30.0) as team:
        save_and_wait(team, "tier", 1)
        end_with_stagers(team)
    with launched(cluster.url, 2, launch="tier 2") as team:
        loads = done(every(team, "load", run="tier"))
        assert [(load["equal"], load["source"]) for load in loads] == [(True, "tier")] * 2


def test_a_save_begun_while_the_coordinator_stands_still_commits_when_it_goes_on(
    cluster: Cluster, store: ckpt.Store
) -> None:
    """For longer than targets that fall silent themselves are waited for."""
    store.save("standstill", 1, {"a": np.arange(1000)}).wait(WAIT_S)
    begun_s = time.monotonic()
    with cluster.stopped(cluster.coordinator_pid):
        save = store.save("standstill", 2, {"a": np.arange(1, 1001)})
        wait_until(lambda: time.monotonic() - begun_s > STANDSTILL_S, "leases to run out")
    assert save.wait(WAIT_S).step == 2
    assert cluster.live() == set(TARGETS)
