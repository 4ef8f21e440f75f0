"""A save in which nothing, or no optimizer state, changed since the last one is told of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import Rank, RunName, Step
from ckpt.format.messages.saving import Repeats
from ckpt.format.table import Meaning, RankTable, TensorEntry
from ckpt_client.stager.history import RUNS_MAX, History
from tests.client.clikit import run as command

TIMEOUT_S = 60.0
RANKS = 2


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("still") / "burst"
    yield f"ckpt+local://{directory}?targets=4&code=2+1"
    command("local", "stop", str(directory))


def _state(rank: int, *, model: float = 0.0, moment: float = 0.0) -> dict[str, object]:
    """Three tensors of a rank's own, of which two are optimizer state; one replica in all."""
    return {
        "model": {"w": np.full((300, 70), model + (rank == 0))},
        "shared": ckpt.Replicated(np.arange(9_000)),
        "optim": {"m": np.full((300, 70), moment), "steps": np.array([rank], "f4")},
        "note": "not a tensor",
        "empty": np.zeros((0, 3)),
    }


def _save(store: ckpt.Store, run: str, step: int, **values: float) -> list[ckpt.Save]:
    """All ranks' saves; what differs is in rank 1 alone."""
    states = [_state(0), _state(1, **values)]
    states[0]["more"] = np.ones(3)
    return [
        store.save(run, step, state, rank=rank, world_size=RANKS)
        for rank, state in enumerate(states)
    ]


def _told(store: ckpt.Store, run: str, step: int, **values: float) -> list[str]:
    """What `wait` warns of on rank 0; all ranks are told the same."""
    saves = _save(store, run, step, **values)
    texts = []
    for save in saves:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            commit = save.wait(TIMEOUT_S)
        texts.append([str(one.message) for one in caught])
        assert [f"{run}@{step}: {text}" for text in commit.warnings] == texts[-1]
    assert texts[0] == texts[1]
    return texts[0]


def test_a_save_that_repeats_the_last_one_is_told_by_wait_and_by_show(url: str) -> None:
    with ckpt.open(url) as store:
        assert _told(store, "still", 1) == []
        (text,) = _told(store, "still", 2)
        assert text == (
            "still@2: nothing has changed since step 1: 9 tensors on 2 ranks, bit for bit the same"
        )
        assert _told(store, "still", 3, moment=1.0, model=1.0) == []
        (text,) = _told(store, "still", 4, moment=1.0, model=2.0)
        assert text == (
            "still@4: no optimizer state has changed since step 3: 4 tensors on 2 ranks, "
            "bit for bit the same; of all 9, 1 changed"
        )
        assert _told(store, "still", 5, moment=2.0, model=2.0) == []
        assert _told(store, "other", 6) == [], "another run's save is no repetition"
    shown = command("show", "still@2", "--store", url)
    assert shown.code == 0
    assert "warning       nothing has changed since step 1" in shown.out
    assert "warning" not in command("show", "still@1", "--store", url).out


def test_a_large_tensor_that_changed_once_is_told_when_it_has_repeated_twice(url: str) -> None:
    """Of a large one that changes a few pages are looked at; its equals are compared whole."""
    with ckpt.open(url) as store:

        def told(step: int, value: float) -> int:
            large = np.full(1 << 19, value)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                store.save("large", step, large, rank=0, world_size=1).wait(TIMEOUT_S)
            return len(caught)

        assert [told(1, 0), told(2, 0), told(3, 1), told(4, 1), told(5, 1)] == [0, 1, 0, 0, 1]


def test_who_never_waits_is_told_by_the_next_save(url: str) -> None:
    with ckpt.open(url) as store:
        for step in (1, 2):
            save = store.save("unwaited", step, np.ones(500), rank=0, world_size=1)
        (stager,) = store._stagers.links.values()
        assert stager.wait_until(lambda: save.ended, TIMEOUT_S)
        with pytest.warns(UserWarning, match="unwaited@2: nothing has changed since step 1"):
            store.save("unwaited", 3, np.zeros(500), rank=0, world_size=1)


def test_the_comparison_can_be_switched_off(url: str) -> None:
    with ckpt.open(url, unchanged="ignore") as store:
        for step in (1, 2, 3):
            assert _told(store, "ignored", step) == []
    with pytest.raises(ckpt.Refused, match="unchanged='never' is not one of warn, ignore"):
        ckpt.open(url, unchanged="never")


def _table(name: str, digest: int) -> RankTable:
    entry = TensorEntry(name, Meaning.OWN, "<f4", (8,), (0,), (8,), (), bytes([digest]) * 16)
    return RankTable(Rank(0), 1, (entry,))


def test_a_history_compares_with_the_last_save_of_the_run_if_its_step_is_earlier() -> None:
    history = History()
    run, other = RunName("run"), RunName("other")
    assert history.note(run, Step(1), _table("a", 1), {}) is None
    assert history.note(other, Step(2), _table("a", 1), {}) is None
    assert history.note(run, Step(5), _table("a", 1), {}) == Repeats(1, 1, 1, 0, 0)
    assert history.note(run, Step(5), _table("a", 1), {}) is None, "the same step again is no news"
    assert history.note(run, Step(6), _table("a", 2), {}) == Repeats(5, 1, 0, 0, 0)
    for number in range(RUNS_MAX):
        history.note(RunName(f"more{number}"), Step(1), _table("a", 1), {})
    assert history.note(run, Step(9), _table("a", 2), {}) is None, "long ago"
