"""F15 on real processes: what is asked is done, the answer is lost, for every kind of message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import NotFound, Unavailable
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.machines.answer_thief import HOST, AnswerThief

RUN = "robbed"
RANKS = 2
WAIT_S = 90.0
SEED = 1
TRIES = 30
STEPS = 12
FEW = 2
"""A kind that came no oftener may never have been lost."""
LOST = {
    "ServerProof", "TargetRegistered", "HoldingsListed", "Attested", "LeaseRenewed", "LaunchJoined",
    "Reserved", "PayloadPlanned", "SparesNamed", "ColumnAccepted", "ColumnSealed", "Certified",
    "DocumentStored", "AttemptCommitted", "Resolved", "DocumentData", "RangeData", "RangesDone",
    "ManifestData", "LoadConfirmed", "ColumnVerified", "StepDeleted", "Dropped",
}  # fmt: skip
"""Answers that must be among those that were."""


class RobbedCluster(RemoteCluster):
    """Everybody meets the thief on the way to the coordinator and to targets."""

    def __init__(self, directory: Path, thief: AnswerThief) -> None:
        super().__init__(directory, ("--keep", "4"), ("--advertise", HOST, "--no-unix"))
        self._thief = thief

    def start_coordinator(self) -> None:
        super().start_coordinator()
        self._listen = self._thief.stand_before(self.coordinator.address)

    @property
    def url(self) -> str:
        return f"ckpt://{self._listen}"

    def start_target(self, id: str) -> None:
        super().start_target(id)
        self._thief.stand_before(self.targets[id].address)


@pytest.fixture
def thief() -> Iterator[AnswerThief]:
    made = AnswerThief(SEED)
    yield made
    made.close()


@pytest.fixture
def robbed(tmp_path: Path, thief: AnswerThief) -> Iterator[RobbedCluster]:
    with started(RobbedCluster(tmp_path, thief)) as made:
        yield made


def insist(act: Callable[[], object]) -> None:
    """As a caller does who is told that there was no answer: again."""
    for _ in range(TRIES):
        try:
            act()
        except Unavailable:
            continue
        return
    raise AssertionError(f"not once in {TRIES} times")


def state(step: int, rank: int) -> dict[str, object]:
    return {"w": np.random.default_rng((step, rank)).random(200_000)}


def check(store: ckpt.Store, step: int) -> None:
    for rank in range(RANKS):
        found = store.load(RUN, step, rank=rank, world_size=RANKS)
        assert isinstance(found, dict)
        assert np.array_equal(found["w"], state(step, rank)["w"])


def delete(store: ckpt.Store, step: int) -> None:
    """It was done when it is asked for again, and that is said."""
    with suppress(NotFound):
        store.delete(RUN, step)


def test_every_answer_is_lost_in_its_turn_and_nothing_else(
    robbed: RobbedCluster, thief: AnswerThief
) -> None:
    with ckpt.open(robbed.url) as store:
        for step in range(1, STEPS + 1):
            saves = [
                store.save(RUN, step, state(step, rank), rank=rank, world_size=RANKS)
                for rank in range(RANKS)
            ]
            assert [each.wait(WAIT_S).step for each in saves] == [step] * RANKS
            insist(partial(check, store, step))
            insist(partial(store.verify, RUN, step))
            if step % 3 == 0:
                insist(partial(delete, store, step - 1))
        insist(partial(check, store, STEPS - 2))
        kept = [commit.step for commit in store.steps(RUN)]
    assert kept[-2:] == [STEPS - 2, STEPS], kept
    spared = {name for name in thief.seen if not thief.stolen[name]}
    assert all(thief.seen[name] <= FEW for name in spared), spared
    assert thief.stolen.keys() - spared >= LOST
