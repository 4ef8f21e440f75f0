"""A takeover beside a catalog of many generations on many targets: seconds of virtual time, what is
said, and how much the new leader has to do for each target.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Final

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.protocol.target.core import TargetLimits
from tests.sim.leading.crowd import LeadingCrowd, Traffic
from tests.sim.leading.effects import simulated
from tests.sim.leading.past import Past

RANKS: Final = 8
"""Of the job that saves meanwhile."""
STEPS: Final = tuple(range(10, 40))
GAP_US: Final = 200_000
SAVES: Final = 3
"""Ahead of the kill."""
LEADERS_OWN: Final = "ckpt/protocol/coordinator/"
CODE: Final = Code(4, 2)


class Lines:
    """I count the lines of the coordinator's machine that run while I am entered."""

    def __init__(self, *, is_on: bool) -> None:
        self.count = 0
        self._is_on = is_on
        self._before: Any = None

    def __enter__(self) -> Lines:
        if self._is_on:
            self._before = sys.gettrace()
            sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._is_on:
            sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._ran if LEADERS_OWN in frame.f_code.co_filename else None

    def _ran(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "line"
        return self._ran


@dataclass(frozen=True, slots=True)
class Takeover:
    """Of a leader that was killed."""

    columns: int
    """Of the past, on all targets."""
    serves_s: float
    """From the kill until enough targets vouch for the successor's catalog."""
    commit_s: float
    """From the kill to the first commit that anybody is told of afterwards."""
    frames: Counter[type[Message]]
    """From the kill to that commit, to and from coordinators."""
    frame_bytes: Counter[type[Message]]
    lines: int
    """That the successor's machine ran until it served; 0 where nobody counted."""


class OldCluster(LeadingCrowd):
    """Targets of the size that they have: a page of what they hold is larger than cells here."""

    limits = TargetLimits()


def takeover(targets: int, generations: int, ranks: int, *, count_lines: bool = False) -> Takeover:
    """`ranks`: so many each generation has."""
    with simulated():
        crowd = OldCluster(1, RANKS, [1] * targets, CODE, 1, STEPS, gap_us=GAP_US)
        past = Past(generations, ranks, CODE, tuple(crowd.targets))
        crowd.remember(past)
        try:
            return _run(crowd, past, count_lines)
        finally:
            crowd.end()


def _run(crowd: LeadingCrowd, past: Past, count_lines: bool) -> Takeover:
    clock, announced = crowd.clock, crowd.oracles.announced
    crowd.begin()
    crowd.when(lambda: len(announced) >= SAVES)
    before, crowd.network.traffic = len(announced), Traffic()
    crowd.kill_leader()
    killed_us = clock.now_us
    with Lines(is_on=count_lines) as lines:
        crowd.when(lambda: crowd.several.up and crowd.several.machine.vouching.serves)
        serves_us = clock.now_us - killed_us
    crowd.when(lambda: len(announced) > before)
    commit_us = clock.now_us - killed_us
    traffic = crowd.network.traffic
    return Takeover(
        past.columns, serves_us / US_PER_S, commit_us / US_PER_S, traffic.frames,
        traffic.frame_bytes, lines.count,
    )  # fmt: skip
