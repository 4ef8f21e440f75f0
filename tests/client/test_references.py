"""Bytes that did not change are not written again, and every step is bit for bit what was saved."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.units import KiB, MiB
from tests.client.test_end_to_end import directory_of, stop
from tests.landing import in_turn
from tests.waiting import wait_until
from tests.warm_child import run_script

TIMEOUT_S = 60.0
RANKS = 2
FROZEN_BYTES = 3 * MiB + 2 * 640 * KiB
CHANGED_BYTES_MAX = 512 * KiB
"""Of both ranks: adapters, their optimizer's state, and tree documents."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("frozen") / "burst"
    yield f"ckpt+local://{directory}?targets=6&code=4+2"
    stop(directory)


def frozen() -> dict[str, np.ndarray]:
    """A base model: a training of adapters never changes it."""
    random = np.random.default_rng(1)
    sizes = {"embedding": 3 * MiB, "first": 640 * KiB, "last": 640 * KiB}
    return {name: random.integers(0, 256, size, np.uint8) for name, size in sizes.items()}


def state_of(rank: int, step: int, base: dict[str, np.ndarray]) -> dict[str, object]:
    """Adapters and optimizer state change at every step."""
    random = np.random.default_rng(100 * step + rank)
    return {
        "base": ckpt.Replicated(base),
        "adapter": random.random(9_000),
        "optim": {"m": random.random(9_000), "v": random.random((90, 100)), "step": step},
        "norm": np.full(100, rank, "f4"),
    }


def written(commit: ckpt.Commit) -> int:
    return commit.bytes - commit.bytes_referenced


def save(store: ckpt.Store, run: str, step: int, base: dict[str, np.ndarray]) -> int:
    """Bytes that were written for it."""
    saves = [
        store.save(run, step, state_of(rank, step, base), rank=rank, world_size=RANKS)
        for rank in range(RANKS)
    ]
    commits = [one.wait(TIMEOUT_S) for one in saves]
    return written(commits[0])


def assert_loads(store: ckpt.Store, run: str, step: int, base: dict[str, np.ndarray]) -> None:
    for rank in range(RANKS):
        loaded = store.load(run, step, rank=rank, world_size=RANKS)
        wanted = state_of(rank, step, base)
        for name, array in base.items():
            np.testing.assert_array_equal(loaded["base"][name], array)
        np.testing.assert_array_equal(loaded["adapter"], wanted["adapter"])
        assert loaded["optim"]["step"] == step
        optim = wanted["optim"]
        assert isinstance(optim, dict)
        for name in ("m", "v"):
            np.testing.assert_array_equal(loaded["optim"][name], optim[name])
        np.testing.assert_array_equal(loaded["norm"], wanted["norm"])


def column_bytes(directory: Path) -> int:
    """All that the targets hold."""
    return sum(path.stat().st_size for path in directory.glob("targets/*/columns/*"))


@pytest.mark.parametrize("unchanged", in_turn(["warn", "ignore"], every=2))
def test_a_frozen_base_is_written_once(url: str, unchanged: str) -> None:
    base, run = frozen(), f"adapters, {unchanged}"
    directory = directory_of(url)
    with ckpt.open(url, unchanged=unchanged) as store:
        assert save(store, run, 1, base) > FROZEN_BYTES
        for step in (2, 3, 4):
            before = column_bytes(directory)
            assert save(store, run, step, base) < CHANGED_BYTES_MAX
            assert column_bytes(directory) - before < 2 * CHANGED_BYTES_MAX, "parity, too"
        assert store.steps(run)[-1].homes == (1,), "references never chain"
        for step in (1, 2, 3, 4):
            assert_loads(store, run, step, base)


def test_what_is_referred_to_outlives_as_many_targets_as_its_code_says(tmp_path: Path) -> None:
    base = frozen()
    with ckpt.open(f"ckpt+local://{tmp_path}?targets=6&code=4+2") as store:
        for step in (1, 2, 3):
            last = save(store, "lossy", step, base)
        assert last < CHANGED_BYTES_MAX
        supervisor = json.loads((tmp_path / "ready.json").read_text())["pid"]
        os.kill(supervisor, signal.SIGSTOP)  # It would start them again.
        try:
            for target in json.loads(store._control.ask("status"))["targets"][1:3]:
                os.kill(target["pid"], signal.SIGKILL)
            for step in (1, 2, 3):
                assert_loads(store, "lossy", step, base)
        finally:
            os.kill(supervisor, signal.SIGCONT)
    stop(tmp_path)


def test_one_bit_that_changed_in_place_is_stored(url: str) -> None:
    base, run = frozen(), "one bit"
    with ckpt.open(url) as store:
        save(store, run, 1, base)
        assert save(store, run, 2, base) < CHANGED_BYTES_MAX
        before = {name: array.copy() for name, array in base.items()}
        base["first"][300_001] ^= 1  # Outside the pages that are looked at first.
        stored = save(store, run, 3, base)
        assert 640 * KiB <= stored < 640 * KiB + CHANGED_BYTES_MAX
        assert_loads(store, run, 2, before)
        assert_loads(store, run, 3, base)
        assert save(store, run, 4, base) < CHANGED_BYTES_MAX
        assert_loads(store, run, 4, base)


def test_all_is_written_when_it_is_switched_off(url: str) -> None:
    base = frozen()
    with ckpt.open(url, references=False) as store:
        for step in (1, 2):
            assert save(store, "off", step, base) > FROZEN_BYTES


def test_another_store_begins_with_a_whole_save(url: str) -> None:
    base = frozen()
    for step in (1, 3):
        with ckpt.open(url) as store:
            assert save(store, "anew", step, base) > FROZEN_BYTES
            assert save(store, "anew", step + 1, base) < CHANGED_BYTES_MAX
    with ckpt.open(url) as store:
        assert_loads(store, "anew", 4, base)


def test_a_home_that_was_deleted_is_written_again(url: str) -> None:
    base, run = frozen(), "deleted"
    with ckpt.open(url) as store:
        save(store, run, 1, base)
        store.delete(run, 1)
        assert save(store, run, 2, base) > FROZEN_BYTES
        assert save(store, run, 3, base) < CHANGED_BYTES_MAX
        store.delete(run, 2)
        assert save(store, run, 4, base) < CHANGED_BYTES_MAX, "step 3 still needs it"
        for step in (3, 4):
            assert_loads(store, run, step, base)


def test_shards_that_ranks_compare_are_always_stored(url: str) -> None:
    box = np.random.default_rng(5).random((200, 100))
    with ckpt.open(url, unchanged="ignore") as store:
        for step in (1, 2, 3):
            states = [{"w": ckpt.Shard(box, (300, 100), (0, 0))}]
            states.append({"w": ckpt.Shard(np.roll(box, -100, 0), (300, 100), (100, 0))})
            states[1]["w"].array[100:] = step
            saves = [
                store.save("overlap", step, state, rank=rank, world_size=2)
                for rank, state in enumerate(states)
            ]
            commits = [one.wait(TIMEOUT_S) for one in saves]
            assert written(commits[0]) > 2 * box.nbytes


def test_a_shard_that_another_rank_begins_to_overlap_is_stored_by_the_next_save(url: str) -> None:
    whole = np.random.default_rng(6).random((300, 100))

    def saves(store: ckpt.Store, step: int, second: int) -> list[ckpt.Save]:
        boxes = [(0, 200), (second, 300)]
        states = [
            {"w": ckpt.Shard(whole[begin:end], whole.shape, (begin, 0))} for begin, end in boxes
        ]
        return [
            store.save("overlaps", step, state, rank=rank, world_size=2)
            for rank, state in enumerate(states)
        ]

    with ckpt.open(url) as store:
        for save in saves(store, 1, 200):
            save.wait(TIMEOUT_S)
        for save in saves(store, 2, 100):
            with pytest.raises(ckpt.CkptError, match="w is to be compared with another rank's"):
                save.wait(TIMEOUT_S)
        for save in saves(store, 3, 100):
            assert written(save.wait(TIMEOUT_S)) > whole.nbytes
        loaded = store.load("overlaps", 3, whole=True)
        np.testing.assert_array_equal(loaded["w"], whole)


_TRAINER = """
import os, sys
import ckpt
from tests.client.test_references import frozen
url, run = sys.argv[1:]
base = frozen()
store = ckpt.open(url)
store.save(run, 1, {"base": base, "step": 1}).wait(60)
base["first"][7] ^= 1
store.save(run, 2, {"base": base, "step": 2})
os.kill(os.getpid(), 9)
"""


def test_a_trainer_that_is_killed_behind_save_does_not_stop_a_save_that_refers(
    url: str, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(_TRAINER)
    assert run_script(script, url, "killed", environment=os.environ) == -9
    base = frozen()
    base["first"][7] ^= 1
    with ckpt.open(url) as store:
        wait_until(lambda: store.latest("killed") == 2, "the orphan's commit", TIMEOUT_S)
        loaded = store.load("killed", 2)
        assert loaded["step"] == 2
        for name, array in base.items():
            np.testing.assert_array_equal(loaded["base"][name], array)
        (_, second) = store.steps("killed")
        assert written(second) < 640 * KiB + CHANGED_BYTES_MAX
