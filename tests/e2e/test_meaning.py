"""What ranks declare is what they get back: a round trip by four processes, replicas, shards,
what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.e2e.states import form_of, state_of

RANKS = 4
WAIT_S = 60.0


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """Four rank processes of one launch."""
    with launched(cluster.url, RANKS, launch="first") as ranks:
        yield ranks


def save_all(store: ckpt.Store, run: str, step: int, states: list[object]) -> list[ckpt.Save]:
    """One save of every rank, all from this process."""
    return [store.save(run, step, s, rank=r, world_size=len(states)) for r, s in enumerate(states)]


def errors_of(saves: list[ckpt.Save]) -> list[str]:
    texts = []
    for save in saves:
        with pytest.raises(ckpt.CkptError) as caught:
            save.wait(WAIT_S)
        texts.append(str(caught.value))
    return texts


def test_four_ranks_get_their_own_trees_back_bit_by_bit(team: list[RankProcess]) -> None:
    for step in (1, 2):
        commits = [answer.value for answer in save_and_wait(team, "trip", step, version=step)]
        assert all(commit == commits[0] for commit in commits)
    for answer in done(every(team, "load", run="trip", version=2)):
        assert (answer["step"], answer["equal"]) == (2, True)
    for answer in done(every(team, "load", run="trip", step=1, version=1)):
        assert (answer["step"], answer["equal"]) == (1, True)


def test_a_commit_says_what_it_is_and_what_it_survives(team: list[RankProcess]) -> None:
    commit = save_and_wait(team, "said", 5)[0]
    assert (commit["run"], commit["step"], commit["world_size"]) == ("said", 5, RANKS)
    assert (commit["targets_survivable"], commit["columns_missing"]) == (2, 0)
    # All targets share one device here: losing it loses everything, and the commit says so.
    assert (commit["domains_survivable"], commit["domain_level"]) == (0, "device")
    assert commit["slowest_rank"] in range(RANKS)
    assert str(commit["slowest_target"]).startswith("t")
    stall_s, commit_s = commit["stall_s"], commit["commit_s"]
    assert isinstance(stall_s, float)
    assert isinstance(commit_s, float)
    assert stall_s > 0
    assert commit_s > 0
    assert commit["warnings"] == []


def test_a_replicated_tree_is_stored_once(store: ckpt.Store) -> None:
    big = np.arange(1 << 20, dtype="f8")
    states: list[object] = [{"p": ckpt.Replicated(big), "rank": rank} for rank in range(RANKS)]
    commit = save_all(store, "once", 1, states)[0].wait(WAIT_S)
    assert big.nbytes <= commit.bytes < big.nbytes + RANKS * 64 * 1024
    saves = [
        store.save("once", 2, {"p": big}, rank=r, world_size=RANKS, replicated=True)
        for r in range(RANKS)
    ]
    assert saves[0].wait(WAIT_S).bytes < big.nbytes + RANKS * 64 * 1024
    # The writers are balanced.
    assert max(save.staged_bytes for save in saves) < 1.05 * big.nbytes / RANKS + 64 * 1024
    for rank in range(RANKS):
        state = store.load("once", 2, rank=rank, world_size=RANKS)
        assert form_of(state) == form_of({"p": big})


def test_a_replica_that_differs_aborts_the_save_by_path_and_rank(team: list[RankProcess]) -> None:
    for rank in team:
        rank.tell("save", run="differs", step=1, replica_of=int(rank.rank == 2))
    done([rank.heard() for rank in team])
    for answer in every(team, "wait", run="differs", step=1):
        assert answer.error == "refused"
        assert "model/p" in answer.text
        assert "rank 2" in answer.text


def test_a_replica_that_differs_may_be_kept_apart_with_a_warning(cluster: Cluster) -> None:
    with launched(cluster.url, 3, launch="keeps", replicas="keep") as team:
        for rank in team:
            rank.tell("save", run="keeps", step=1, replica_of=int(rank.rank == 2))
        done([rank.heard() for rank in team])
        for answer in done(every(team, "wait", run="keeps", step=1)):
            (warning,) = answer["warnings"]  # type: ignore[misc]
            assert "model/p" in warning
            assert "rank 2" in warning
            assert [warning in text for text in answer.warnings] == [True]
    with ckpt.open(cluster.url) as store:
        for rank in range(3):
            state = store.load("keeps", rank=rank, world_size=3)
            assert form_of(state) == form_of(state_of(rank, 3, 1, replica_of=int(rank == 2)))


def test_a_hole_in_a_global_tensor_is_refused_at_the_commit(store: ckpt.Store) -> None:
    states: list[object] = [
        {"m": ckpt.Shard(np.zeros((5, 4)), (15, 4), (rank * 10, 0))} for rank in range(2)
    ]
    for text in errors_of(save_all(store, "hole", 1, states)):
        assert "'m'" in text
    assert store.latest("hole") is None


def test_shards_may_overlap_when_they_agree(store: ckpt.Store) -> None:
    whole = np.arange(30 * 50, dtype="f8").reshape(30, 50)

    def overlapping(difference: int) -> list[object]:
        parts = [whole[:20], whole[10:] + difference]
        return [{"m": ckpt.Shard(part, (30, 50), (r * 10, 0))} for r, part in enumerate(parts)]

    for save in save_all(store, "overlap", 1, overlapping(0)):
        save.wait(WAIT_S)
    loaded = store.load("overlap", like={"m": ckpt.Box((5, 0), (25, 50))}, rank=0, world_size=2)
    assert isinstance(loaded, dict)
    assert (loaded["m"] == whole[5:]).all()
    for text in errors_of(save_all(store, "overlap", 2, overlapping(1))):
        assert "m" in text
        assert "overlap" in text
    assert store.latest("overlap") == 1


def test_what_cannot_be_stored_is_refused_by_path_before_a_byte_is_staged(
    store: ckpt.Store,
) -> None:
    for bad, path in (
        ({"layers": [{"w": object()}]}, "layers/"),
        ({"a": {"f": lambda: None}}, "a/f"),
        ({"a": np.array([object()])}, "a"),
    ):
        with pytest.raises(ckpt.Refused, match=path):
            store.save("refused", 1, bad)
    assert store.steps("refused") == []


@pytest.mark.parametrize("name", ["", "a@1", "../up", "a/./b", "line\nbreak", "x" * 256, "é" * 128])
def test_a_run_name_that_is_none_is_refused(store: ckpt.Store, name: str) -> None:
    with pytest.raises(ckpt.Refused):
        store.save(name, 1, {"a": 1})


@pytest.mark.parametrize("name", ["a b/c", "é" * 127 + "x", "..a", "%2e"])
def test_a_run_name_may_have_slashes_and_spaces_and_is_never_a_path(
    store: ckpt.Store, cluster: Cluster, name: str
) -> None:
    store.save(name, 1, {"a": 1}).wait(WAIT_S)
    assert store.load(name) == {"a": 1}
    files = [file.name for files in cluster.columns_of(name).values() for file in files]
    assert files
    assert not any(name in file for file in files)
