"""What a committed checkpoint survives: targets lost, bytes rotten,
and what is said when it is too much.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import ckpt
from ckpt.base.limits import PAGE_BYTES
from tests.e2e.cluster import OPTIONS, TARGETS, Cluster
from tests.e2e.ranks import done, end_with_stagers, every, launched, save_and_wait
from tests.e2e.states import form_of
from tests.waiting import wait_until

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always"
WAIT_S = 60.0
PAYLOAD = np.random.default_rng(5).integers(0, 255, 6 << 20, "u1")
FILLER_BYTES = 4 << 20
"""Of each rank's own."""
HOLDERS = 6
"""Targets that hold a column of a single rank's payload."""


@pytest.fixture(autouse=True)
def healed(cluster: Cluster) -> None:
    """Every test begins with all targets."""
    cluster.heal()


def save(store: ckpt.Store, run: str, step: int) -> ckpt.Commit:
    return store.save(run, step, {"a": PAYLOAD + np.uint8(step)}).wait(WAIT_S)


def is_step(state: object, step: int) -> bool:
    return form_of(state) == form_of({"a": PAYLOAD + np.uint8(step)})


def test_any_two_targets_may_be_lost_after_the_commit(cluster: Cluster) -> None:
    with launched(cluster.url, 4, launch="first") as team:
        save_and_wait(team, "two", 1, filler_bytes=1 << 20)
        for number, victims in enumerate((("t0", "t1"), ("t3", "t6"))):
            cluster.kill(*victims)
            loads = done(every(team, "load", run="two", filler_bytes=1 << 20))
            assert [load["equal"] for load in loads] == [True] * 4, (number, victims)
            rebuilt = [load["rebuilt_bytes"] for load in loads]
            assert any(rebuilt), (
                "seven targets for six columns: two lost ones hold data of some rank"
            )
            cluster.heal()


def test_one_loss_too_many_is_unavailable_and_never_an_older_step(
    cluster: Cluster, store: ckpt.Store
) -> None:
    save(store, "older", 1)
    cluster.kill("t0")
    save(store, "older", 2)  # On t1 to t6.
    cluster.heal()
    cluster.kill("t1", "t2", "t3")
    with pytest.raises(ckpt.Unavailable) as caught:
        store.load("older", timeout_s=0.5)
    assert "older@2" in str(caught.value)
    for target in ("t1", "t2", "t3"):
        assert target in str(caught.value)
    assert store.latest("older") == 2
    cluster.heal()
    assert is_step(store.load("older"), 2)


def test_an_older_step_is_taken_only_when_that_is_accepted(
    cluster: Cluster, store: ckpt.Store
) -> None:
    cluster.kill("t4")
    save(store, "accepted", 1)  # Columns on all but t4.
    cluster.heal()
    cluster.kill("t0")
    save(store, "accepted", 2)
    cluster.heal()
    holders = {id for id, files in cluster.columns_of("accepted").items() if len(files) == 2}
    victims = sorted(holders)[:2]
    cluster.kill("t4", *victims)  # Step 1 has lost two columns, step 2 three.
    with pytest.raises(ckpt.Unavailable, match="accepted@2"):
        store.load("accepted", timeout_s=0.5)
    with pytest.warns(UserWarning, match="accepted@2"):
        assert is_step(store.load("accepted", timeout_s=0.5, fallback=True), 1)


def test_rot_in_one_column_is_repaired_and_counted(cluster: Cluster, store: ckpt.Store) -> None:
    save(store, "rot", 1)
    for files in cluster.columns_of("rot").values():
        for file in files:
            if file.name.endswith("-0"):
                cluster.flip(file, 1000)
                cluster.flip(file, 700_000)
    with store.resolve("rot") as found:
        assert is_step(found.load(), 1)
        assert sum(one.damaged_bytes for one in found.statistics) > 0
        assert sum(one.rebuilt_bytes for one in found.statistics) > 0
    report = store.verify("rot", 1)
    assert report.state == "degraded"
    assert [(c.column, len(c.damaged)) for c in report.columns if c.state == "damaged"] == [(0, 2)]
    assert store.latest("rot") == 1


def test_rot_in_the_same_place_of_as_many_columns_as_parity_is_repaired(
    cluster: Cluster, store: ckpt.Store
) -> None:
    save(store, "deep", 1)
    files = [file for files in cluster.columns_of("deep").values() for file in files]
    assert len(files) == HOLDERS
    for first, second in list(combinations(files, 2))[::4]:
        for file in (first, second):
            cluster.flip(file, 5000)
        assert is_step(store.load("deep"), 1)
        for file in (first, second):
            cluster.flip(file, 5000)  # As it was.
    assert store.verify("deep", 1).state == "healthy"


def test_proved_damage_walks_all_ranks_back_with_a_warning(cluster: Cluster) -> None:
    with launched(cluster.url, 2, launch="walk 1") as team:
        for step in (1, 2):
            save_and_wait(team, "walk", step, version=step)
        end_with_stagers(team)  # Whose memory would still hold step 2.
    for files in cluster.columns_of("walk").values():
        for file in files:
            _, number, _, _, column = file.name.split("-")
            if number == "2" and int(column) < 3:
                cluster.flip(file, 100)
    with launched(cluster.url, 2, launch="walk 2") as team:
        loads = done(every(team, "load", run="walk", version=1))
        second = done(every(team, "load", run="walk", version=1))
    assert [(load["step"], load["equal"]) for load in (*loads, *second)] == [(1, True)] * 4
    assert all(any("walk@2" in text for text in load.warnings) for load in loads)


def lose_rank_1_of_step_2(cluster: Cluster, run: str) -> None:
    """More of what only rank 1 reads than parity mends."""
    for files in cluster.columns_of(run).values():
        for file in files:
            _, number, _, rank, column = file.name.split("-")
            if (number, rank) == ("2", "1") and int(column) < 3:
                cluster.flip(file, 500_000)


def test_damage_that_is_found_after_a_rank_has_loaded_is_an_error_and_never_a_mix(
    cluster: Cluster,
) -> None:
    with launched(cluster.url, 2, launch="late 1") as team:
        for step in (1, 2):
            save_and_wait(team, "late", step, version=step, filler_bytes=FILLER_BYTES)
        end_with_stagers(team)
    lose_rank_1_of_step_2(cluster, "late")
    with launched(cluster.url, 2, launch="late 2") as (early, late):
        assert (
            early.ask("load", run="late", version=2, filler_bytes=FILLER_BYTES)["step"] == 2
        )  # It waits for nobody.
        for _ in range(2):
            answer = late.ask("load", run="late")
            assert answer.error == "lost"
            assert "late@2" in answer.text
            assert "late@1" in answer.text
            assert "ranks 0 of this launch" in answer.text
        assert early.ask("load", run="late").error == "lost"
    with launched(cluster.url, 2, launch="late 3") as team:
        loads = done(every(team, "load", run="late", version=1, filler_bytes=FILLER_BYTES))
        assert [(load["step"], load["equal"]) for load in loads] == [(1, True)] * 2


def test_damage_that_is_found_while_others_load_gives_all_ranks_one_step_or_an_error(
    cluster: Cluster,
) -> None:
    with launched(cluster.url, 3, launch="at once 1") as team:
        for step in (1, 2):
            save_and_wait(team, "at once", step, version=step, filler_bytes=FILLER_BYTES)
        end_with_stagers(team)
    lose_rank_1_of_step_2(cluster, "at once")
    with launched(cluster.url, 3, launch="at once 2") as team:
        answers = every(team, "load", run="at once", version=1, filler_bytes=FILLER_BYTES)
    returned = {answer["step"] for answer in answers if not answer.error}
    assert returned in ({1}, {2}), answers
    assert returned == {1} or answers[1].error == "lost", answers


def test_proved_damage_of_the_only_step_is_lost_and_shown(
    cluster: Cluster, store: ckpt.Store
) -> None:
    save(store, "only", 1)
    files = sorted(
        (f for files in cluster.columns_of("only").values() for f in files),
        key=lambda f: f.name[-1],
    )
    for file in files[:3]:
        cluster.flip(file, 0)
    assert store.verify("only", 1).state == "lost"
    with pytest.raises(ckpt.Lost, match="only@1"):
        store.load("only")
    with pytest.raises(ckpt.Lost, match="only@1"):
        store.load("only", 1)
    assert store.steps("only") == []


def test_a_column_that_was_removed_counts_as_lost(cluster: Cluster, store: ckpt.Store) -> None:
    save(store, "removed", 1)
    for file in [f for files in cluster.columns_of("removed").values() for f in files][:2]:
        file.unlink()
    assert is_step(store.load("removed"), 1)
    assert store.verify("removed", 1).state == "degraded"


def test_columns_that_are_gone_when_their_targets_start_again_are_proved_lost(
    cluster: Cluster, store: ckpt.Store
) -> None:
    for step in (1, 2):
        save(store, "gone", step)
    newest = {
        id: [file for file in files if file.name.split("-")[1] == "2"]
        for id, files in cluster.columns_of("gone").items()
    }
    victims = [id for id, files in newest.items() if files][:3]
    cluster.kill(*victims)
    for id in victims:
        for file in newest[id]:
            file.unlink()
    cluster.heal()
    with pytest.warns(UserWarning, match="gone@2"):
        assert is_step(store.load("gone"), 1)
    with pytest.raises(ckpt.Lost, match="gone@2"):
        store.load("gone", 2)


def test_columns_that_vanish_under_running_targets_are_proved_lost(
    cluster: Cluster, store: ckpt.Store
) -> None:
    for step in (1, 2):
        save(store, "vanished", step)
    files = [file for files in cluster.columns_of("vanished").values() for file in files]
    for file in [file for file in files if file.name.split("-")[1] == "2"][:3]:
        file.unlink()
    with pytest.warns(UserWarning, match="vanished@2"):
        assert is_step(store.load("vanished"), 1)
    with pytest.raises(ckpt.Lost, match="vanished@2"):
        store.load("vanished", 2)


@pytest.mark.parametrize("harm", ["removed", "rotten"])
def test_an_index_of_which_no_target_has_a_copy_is_proved_lost(
    cluster: Cluster, store: ckpt.Store, harm: str
) -> None:
    run = f"no index, {harm}"
    for step in (1, 2):
        save(store, run, step)
    copies = cluster.indexes_of(run, 2)
    assert len(copies) >= 3, "m + 1"
    for file in copies.values():
        if harm == "removed":
            file.unlink()
            continue
        for place in range(0, file.stat().st_size - 2 * PAGE_BYTES, PAGE_BYTES):
            cluster.flip(file, place + 20)
    with pytest.warns(UserWarning, match=f"{run}@2"):
        assert is_step(store.load(run), 1)
    with pytest.raises(ckpt.Lost, match="has no index any more"):
        store.load(run, 2)


def test_an_index_whose_last_copy_is_away_is_unavailable_and_comes_back_with_it(
    cluster: Cluster, store: ckpt.Store
) -> None:
    for step in (1, 2):
        save(store, "away", step)
    copies = cluster.indexes_of("away", 2)
    last, *others = sorted(copies)
    for target in others:
        copies[target].unlink()
    cluster.kill(last)
    with pytest.raises(ckpt.Unavailable, match="index"):
        store.load("away", timeout_s=1.0)
    assert store.latest("away") == 2
    cluster.heal()
    assert is_step(store.load("away"), 2)


def test_a_save_with_dead_targets_says_what_it_still_survives(
    cluster: Cluster, store: ckpt.Store
) -> None:
    cluster.kill("t5", "t6")
    commit = save(store, "five", 1)
    assert (commit.targets_survivable, commit.columns_missing) == (1, 1)
    wait_until(lambda: store.steps("five") == [commit], "the list says the same")
    cluster.kill("t0")
    assert is_step(store.load("five"), 1)
    assert set(TARGETS) - cluster.live() == {"t0", "t5", "t6"}
    with pytest.raises(ckpt.Unavailable) as caught:
        save(store, "five", 2)
    assert "4 targets are live" in str(caught.value)
    assert "5 are needed" in str(caught.value)
    assert store.latest("five") == 1
