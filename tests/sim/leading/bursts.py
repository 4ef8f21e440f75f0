"""What a takeover in the middle of a burst costs: seconds, bytes that are sent again, columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.saving import AttemptCommitted, Certified, PayloadPlanned
from ckpt.format.messages.targets import PutDocument, Reserve
from ckpt.protocol.stager.events import SaveCommitted
from ckpt.protocol.writer.column import ColumnState
from tests.sim.leading.crowd import LeadingCrowd
from tests.sim.leading.effects import simulated

CELLS: Final = 4
STEPS: Final = (10, 11)
GAP_US: Final = 2 * US_PER_S
"""Between the begins of two saves of a rank, beside what it copies."""
Moment = Callable[[LeadingCrowd], bool]


def _sent(crowd: LeadingCrowd, kind: type) -> int:
    return crowd.network.sent[kind]


def _sealed(crowd: LeadingCrowd) -> bool:
    """Half of all columns."""
    columns = [each for node in crowd.ranks for each in node.columns]
    sealed = sum(each.state is ColumnState.SEALED for each in columns)
    return sealed * 2 > len(crowd.ranks) * crowd.code.n


MOMENTS: Final[dict[str, Moment]] = {
    "the first reserves": lambda crowd: _sent(crowd, Reserve) > 0,
    "the first has a plan": lambda crowd: _sent(crowd, PayloadPlanned) > 0,
    "half have a plan": lambda crowd: _sent(crowd, PayloadPlanned) * 2 > len(crowd.ranks),
    "all stream": lambda crowd: all(node.writers for node in crowd.ranks),
    "half is sealed": _sealed,
    "one is certified": lambda crowd: _sent(crowd, Certified) > 0,
    "the last but one is certified": lambda crowd: _sent(crowd, Certified) >= len(crowd.ranks) - 1,
    "the index goes out": lambda crowd: _sent(crowd, PutDocument) > 0,
    "it is decided": lambda crowd: bool(crowd.oracles.decided),
    "the record goes out": lambda crowd: _sent(crowd, PutDocument) > crowd.code.m + 1,
    "it is announced": lambda crowd: _sent(crowd, AttemptCommitted) > 0,
}
"""At which the leader ends."""


class Way(Enum):
    """How it ends."""

    KILLED = "killed"
    ASKED = "asked to step down"


@dataclass(frozen=True, slots=True)
class Burst:
    """Of equal ranks on equal targets, whose devices are `slow` times slower than the fake's."""

    ranks: int
    targets: int
    code: Code
    slow: int
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a burst and of the save after it."""

    seconds: float
    """From its begin until every rank has heard of its commit."""
    next_seconds: float
    """Likewise."""
    takeover_s: float
    """From then until targets vouch for the successor's catalog and all ranks have come to it;
    0 without one.
    """
    sent: float
    """Payload bytes of both, to what they are."""
    moved: int
    """Columns that left their targets, or for which spares were asked."""
    missing: int
    """Columns, at the commits."""


@cache
def cost(burst: Burst, moment: str | None = None, way: Way = Way.KILLED) -> Cost:
    """`moment`: when the leader ends; None: never."""
    with simulated():
        crowd = LeadingCrowd(
            burst.seed, burst.ranks, [burst.slow] * burst.targets, burst.code, CELLS, STEPS,
            gap_us=GAP_US,
        )  # fmt: skip
        try:
            return _run(crowd, moment, way)
        finally:
            crowd.end()


def _run(crowd: LeadingCrowd, moment: str | None, way: Way) -> Cost:
    clock, takeover_s = crowd.clock, 0.0
    crowd.begin()
    began_us = clock.now_us
    if moment is not None:
        crowd.when(lambda: MOMENTS[moment](crowd))
        takeover_s = _take_over(crowd, way)
    crowd.when(lambda: all(STEPS[0] in node.outcomes for node in crowd.ranks))
    seconds = (clock.now_us - began_us) / US_PER_S
    crowd.when(lambda: any(STEPS[1] in node.steps for node in crowd.ranks))
    next_us = clock.now_us
    outcome = crowd.finish()
    ends = [end for node in crowd.ranks for end in node.outcomes.values()]
    assert all(isinstance(end, SaveCommitted) for end in ends)
    return Cost(
        seconds, (clock.now_us - next_us) / US_PER_S, takeover_s,
        outcome.fragment_bytes / outcome.planned_bytes, outcome.abandoned + outcome.spares_asked,
        outcome.columns_missing,
    )  # fmt: skip


def _take_over(crowd: LeadingCrowd, way: Way) -> float:
    """The leader ends, and all ranks come to its successor; seconds."""
    several, ended_us = crowd.several, crowd.clock.now_us
    came = _sent(crowd, LaunchJoined) + len(crowd.ranks)
    ended = several.leader
    assert ended is not None
    if way is Way.KILLED:
        ended.crash()
    else:
        ended.step_down()
    crowd.when(lambda: several.leader not in (None, ended) and several.machine.vouching.serves)
    crowd.when(lambda: _sent(crowd, LaunchJoined) >= came)
    return (crowd.clock.now_us - ended_us) / US_PER_S
