"""Of attempts that ended, the newest are remembered, and no more payloads than are affordable."""

from __future__ import annotations

import pytest

from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
)
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.protocol.coordinator.saving.attempts import Attempt, AttemptBook, AttemptState, Payload


def book(*payloads: int, open_last: bool = False) -> AttemptBook:
    """Attempts that ended, by how many payloads each has; steps count from 1."""
    found, layout = AttemptBook(), Layout(Code(2, 1), 4096, 4096)
    for step, count in enumerate(payloads, start=1):
        id = CheckpointId(RunName("r"), Step(step), Generation(1, step))
        attempt = Attempt(id, LaunchNumber(1), count, 0, AttemptState.COMMITTED)
        for rank in map(Rank, range(count)):
            payload = Payload(PayloadId(id, rank), "p", 1, ReplicaPolicy.ABORT, None, layout)
            attempt.payloads[rank] = payload
        found.add(attempt)
    if open_last:
        attempt.state = AttemptState.OPEN
    return found


@pytest.mark.parametrize(
    ("payloads", "kept", "payloads_kept", "steps"),
    [
        ((2, 2, 2), 3, 6, [1, 2, 3]),
        ((2, 2, 2), 2, 6, [2, 3]),
        ((2, 2, 2), 3, 5, [2, 3]),
        ((9, 1, 1), 3, 2, [2, 3]),
        ((1, 1, 9), 3, 2, [3]),
        ((1, 1, 9), 0, 2, []),
    ],
)
def test_the_oldest_go_first_and_the_newest_stays_however_large(
    payloads: tuple[int, ...], kept: int, payloads_kept: int, steps: list[int]
) -> None:
    found = book(*payloads)
    found.trim(kept, payloads_kept)
    assert [id.step for id in found.attempts] == steps


def test_an_attempt_in_the_making_is_never_forgotten() -> None:
    found = book(1, 9, open_last=True)
    found.trim(0, 0)
    assert [id.step for id in found.attempts] == [2]
