"""Loading by others than those who saved: other ranks, other axes, `like`, `whole`,
and errors by path.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.ranks import done, every, launched
from tests.e2e.states import AXIS_ITEMS, form_of, matrix, state_of
from tests.landing import in_turn

RANKS = 4
WAIT_S = 60.0
BIG_SHAPE = (4096, 1024)
BIG_ROWS = BIG_SHAPE[0] // RANKS


@pytest.fixture(scope="module")
def saved(store: ckpt.Store) -> str:
    """A run whose step 1 is four ranks' states, and whose step 2 has one large tensor."""
    for rank in range(RANKS):
        store.save("saved", 1, state_of(rank, RANKS, 1), rank=rank, world_size=RANKS)
    saves = []
    for rank in range(RANKS):
        rows = np.full((BIG_ROWS, BIG_SHAPE[1]), rank, "f4")
        state = {"big": ckpt.Shard(rows, BIG_SHAPE, (rank * BIG_ROWS, 0))}
        saves.append(store.save("saved big", 1, state, rank=rank, world_size=RANKS))
    for save in saves:
        save.wait(WAIT_S)
    return "saved"


@pytest.fixture
def checkpoint(store: ckpt.Store, saved: str) -> Iterator[ckpt.Checkpoint]:
    """Resolved as rank 1 of two."""
    with store.resolve(saved, rank=1, world_size=2) as found:
        yield found


@pytest.mark.parametrize("world_size", in_turn([2, 3], every=2))
def test_another_world_size_takes_another_axis_in_place(
    cluster: Cluster, saved: str, world_size: int
) -> None:
    with launched(cluster.url, world_size, launch=f"readers {world_size}") as team:
        for answer in done(every(team, "load_columns", run=saved)):
            assert (answer["in_place"], answer["equal"], answer["replica"]) == (True, True, True)


def test_only_the_needed_bytes_are_read(store: ckpt.Store, saved: str) -> None:
    with store.resolve("saved big", rank=0, world_size=1) as found:
        found.load(like={"big": ckpt.Box((BIG_ROWS + 3, 0), (2, BIG_SHAPE[1]))})
        wanted = sum(one.wanted_bytes for one in found.statistics)
        received = sum(sum(one.bytes_by_target.values()) for one in found.statistics)
    rows_bytes = 2 * BIG_SHAPE[1] * 4
    assert rows_bytes <= wanted < rows_bytes + 64 * 1024
    assert received == wanted


def test_whole_is_the_union_of_all_ranks(store: ckpt.Store, saved: str) -> None:
    union = store.load(saved, whole=True)
    assert isinstance(union, dict)
    states = [state_of(rank, RANKS, 1) for rank in range(RANKS)]
    assert set(union) == set(states[0])
    assert (union["matrix"] == matrix(1)).all()
    assert (union["model"]["p"] == np.full((50, 100), 1.0)).all()
    assert union["model"]["name"] == "replica"
    assert isinstance(union["rank"], ckpt.PerRank)
    assert dict(union["rank"].values) == {rank: rank for rank in range(RANKS)}
    for rank, state in enumerate(states):
        assert form_of(union[3]["big"][rank]) == form_of(state[3]["big"])  # type: ignore[index]


def test_any_other_caller_is_told_what_to_ask_for(store: ckpt.Store, saved: str) -> None:
    with pytest.raises(ckpt.Refused, match=r"saved by 4 ranks.*whole=True"):
        store.load(saved, rank=0, world_size=2)
    with pytest.raises(ckpt.Refused, match=r"saved by 4 ranks.*whole=True"):
        store.load(saved)


def test_keys_that_only_one_side_has_are_errors_by_path(checkpoint: ckpt.Checkpoint) -> None:
    with pytest.raises(ckpt.Refused) as caught:
        checkpoint.load(like={"matrix": ckpt.Box((0, 0), (1, 1)), "nowhere": {"x": np.zeros(3)}})
    assert "nowhere/x" in str(caught.value)
    assert "brain" in str(caught.value)


def test_a_wrong_shape_is_an_error_by_path(checkpoint: ckpt.Checkpoint) -> None:
    shape = (AXIS_ITEMS, AXIS_ITEMS)
    for like, path in (
        ({"matrix": np.zeros((3, 3), "f4")}, "matrix"),
        ({"matrix": ckpt.Shard(np.zeros((1, 1), "f4"), (5, 5), (0, 0))}, "matrix"),
        ({"matrix": ckpt.Box((AXIS_ITEMS, 0), (1, 1))}, "matrix"),
        ({"layers": [{"w": np.zeros(shape)}]}, "layers/#0/w"),
    ):
        with pytest.raises(ckpt.Refused, match=path):
            checkpoint.load(like=like, strict=False)


def test_a_wrong_dtype_is_an_error_by_path_and_names_both(checkpoint: ckpt.Checkpoint) -> None:
    with pytest.raises(ckpt.Refused, match=r"model/p: stored as <f8, like has <f4"):
        checkpoint.load(like={"model": {"p": np.zeros((50, 100), "f4")}}, strict=False)


def test_not_strict_takes_what_is_there(checkpoint: ckpt.Checkpoint) -> None:
    mine = np.zeros(2)
    like = {"matrix": np.zeros((AXIS_ITEMS, AXIS_ITEMS), "f4"), "new": mine, "model": {"name": ""}}
    state = checkpoint.load(like=like, strict=False)
    assert isinstance(state, dict)
    assert (state["matrix"] == matrix(1)).all()
    assert state["new"] is mine
    assert state["model"] == {"name": "replica"}


def test_like_with_every_key_is_strict_and_fills_in_place(store: ckpt.Store, saved: str) -> None:
    expected = state_of(1, RANKS, 1)
    like = state_of(1, RANKS, 2)
    like["matrix"].array[:] = 0  # type: ignore[attr-defined]
    like[3]["int"] = 0  # type: ignore[index]
    like[("a", 1)] = np.zeros(2, "<f4")  # The saved one is read-only in `like`.
    state = store.load(saved, like=like, rank=1, world_size=RANKS)
    assert form_of(state) == form_of(expected)
    assert isinstance(state, dict)
    assert state["matrix"] is like["matrix"]


def test_what_never_was_is_not_found(store: ckpt.Store, saved: str) -> None:
    with pytest.raises(ckpt.NotFound, match="never"):
        store.load("never")
    with pytest.raises(ckpt.NotFound, match="77"):
        store.load(saved, 77)
