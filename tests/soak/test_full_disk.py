"""A store that is full refuses saves by name, loses nothing, leaves nothing aside,
and saves again once there is room.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import NoSpace
from ckpt.base.units import MiB
from ckpt_client.local.processes import find_marked
from tests.e2e.cluster import TARGETS, Cluster, command
from tests.soak.judge import column_counts, staged_count
from tests.waiting import wait_until

CAPACITY = 240 * MiB
STATE_BYTES = 3 * MiB
RANKS = 4
ROUNDS = 12
SAVES_MAX = 60
WAIT_S = 60.0
RUN = "full"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def state_of(seed: int, rank: int, step: int) -> dict[str, object]:
    content = np.random.default_rng((seed, rank, step)).bytes(STATE_BYTES)
    return {"a": np.frombuffer(content, np.uint8)}


def save_step(store: ckpt.Store, seed: int, step: int) -> list[ckpt.CkptError]:
    """All ranks save; the errors they heard."""
    saves = []
    errors = []
    for rank in range(RANKS):
        state = state_of(seed, rank, step)
        try:
            saves.append(store.save(RUN, step, state, rank=rank, world_size=RANKS))
        except ckpt.CkptError as error:
            errors.append(error)  # An earlier rank's, that is refused already.
            break
    for save in saves:
        try:
            save.wait(WAIT_S)
        except ckpt.CkptError as error:
            errors.append(error)
    return errors


def fill(store: ckpt.Store, seed: int, step: int) -> int:
    """Save steps until one is refused for space; returns the next step."""
    for next_step in range(step, step + SAVES_MAX):
        errors = save_step(store, seed, next_step)
        if errors:
            assert all(isinstance(error, NoSpace | ckpt.Aborted) for error in errors), errors
            assert any("space" in str(error) for error in errors), errors
            return next_step + 1
    raise AssertionError(f"{SAVES_MAX} saves fit into a capacity for fewer")


def check_all(store: ckpt.Store, seed: int, steps: set[int]) -> None:
    """What is listed is what was committed, byte for byte."""
    listed = {commit.step for commit in store.steps(RUN)}
    assert listed == steps
    for step in listed:
        for rank in range(RANKS):
            state = store.load(RUN, step, rank=rank, world_size=RANKS)
            assert isinstance(state, dict)
            assert state["a"].tobytes() == state_of(seed, rank, step)["a"].tobytes()


def wait_for_columns(cluster: Cluster, steps: int) -> None:
    """Until the targets hold columns of so many steps."""
    wait_until(lambda: len(column_counts(cluster.directory)) == steps, "deleted is gone")


def test_a_store_that_fills_up_and_is_freed_goes_on(tmp_path: Path, mark: str, seed: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    cluster = Cluster(tmp_path / "store", f"targets=7&code=4+2&capacity={CAPACITY}")
    committed: set[int] = set()
    refused = 0
    random = np.random.default_rng(seed)
    with ckpt.open(cluster.url, launch="full") as store:
        step = 1
        for _ in range(ROUNDS):
            end = fill(store, seed, step)
            committed |= set(range(step, end - 1))
            refused += 1
            step = end
            check_all(store, seed, committed)
            victims = random.choice(sorted(committed), len(committed) // 2, replace=False)
            for victim in victims:
                command("rm", f"{RUN}@{victim}", "--yes", "--store", cluster.url)
                committed.remove(int(victim))
            wait_for_columns(cluster, len(committed))
            assert not save_step(store, seed, step), "there is room, and a save is refused"
            committed.add(step)
            step += 1
        used = sum(target.bytes_used for target in cluster.targets().values())
        assert used <= CAPACITY
        sys.stdout.write(f"{step - 1} saves, {refused} refused, {len(committed)} kept\n")
        check_all(store, seed, committed)
    cluster.stop()
    assert staged_count(cluster.directory) <= RANKS * len(TARGETS)
    assert not [one for one in find_marked(mark) if not one.is_stager]
