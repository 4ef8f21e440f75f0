"""In which order do candidates come, in which turn?

Nothing here is random: equal arguments give equal orders, in whatever order candidates come. Why it
is this order is said in placement.py, and in filling.py what room has to do with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.ids import BootId, Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.filling import AMPLE, WEIGHT_MIN, weight

GROUP_TARGETS_MIN: Final = 24
"""A cluster is cut into groups when each gets at least so many targets,
and three times the code's columns.
"""

NO_GROUP: Final = -1
Rooms = Mapping[TargetId, int]


class Candidate(Struct, frozen=True, gc=False):
    """A target that might take a column."""

    target: TargetId
    boot: BootId
    domain: Domain
    device: str
    """Targets that name the same device share its `bytes_free`; empty when it shares with
    nobody.
    """
    bytes_free: int
    """Of the device, reservations already taken off."""
    load_bytes: int
    """Bytes of columns that this burst already gave to it."""
    live: bool = True
    """A target that is down takes nothing, but keeps its place, so that groups stay what they
    were.
    """
    parity_bytes: int = 0
    """The part of `load_bytes` that is parity; left at 0, roles rotate by `turn` alone."""
    own_bytes_free: int | None = None
    """What the target's own capacity leaves, besides the device; None when only the device
    counts.
    """
    usable_bytes: int = 0
    """What its columns may take in all; 0 when that is not known: then there is plenty of room."""
    slow: bool = False
    """It comes after all that are not: a place where nothing else is left, else a spare."""
    group: int = NO_GROUP
    """Where groups are known (grouping.py); else all are dealt out again."""


class CandidateSeat(Struct, frozen=True, gc=False):
    """A candidate at its position in its group's fixed order."""

    candidate: Candidate
    position: int


def group_targets_min(code: Code) -> int:
    """So many targets a group has at least when a cluster is cut."""
    return max(GROUP_TARGETS_MIN, 3 * code.n)


def group_count(code: Code, target_count: int) -> int:
    """Into how many groups a cluster of so many targets is cut, nearly equal in size."""
    return max(1, target_count // group_targets_min(code))


def rooms_of(candidates: Sequence[Candidate]) -> Rooms:
    """What each target may still take: its own room, and its part of what its device has."""
    budgets = [budget_of(c) for c in candidates]
    sharing = Counter(budget for c, budget in zip(candidates, budgets, strict=True) if c.live)
    return {
        c.target: _room(c, sharing[budget]) for c, budget in zip(candidates, budgets, strict=True)
    }


def _room(candidate: Candidate, sharing: int) -> int:
    of_device = candidate.bytes_free // max(1, sharing)
    own = of_device if candidate.own_bytes_free is None else candidate.own_bytes_free
    return max(0, min(of_device, own)) if candidate.live else 0


def _weights(candidates: Sequence[Candidate], rooms: Rooms) -> list[float]:
    """Of each candidate beside these others."""
    shares = [_free_share(c) for c in candidates]
    if min(shares, default=1.0) >= AMPLE:
        return [1.0] * len(candidates)
    most = max((rooms[c.target] for c in candidates), default=0)
    return [
        weight(rooms[c.target], most, share) for c, share in zip(candidates, shares, strict=True)
    ]


def _free_share(candidate: Candidate) -> float:
    own = candidate.own_bytes_free
    free = candidate.bytes_free if own is None else min(own, candidate.bytes_free)
    return free / candidate.usable_bytes if candidate.usable_bytes else 1.0


def _stands_back(weight: float, turn: int, position: int) -> bool:
    """In all but this part of the turns: in a small burst loads alone do not tell who is next."""
    return weight < 1.0 and _silver(turn + position) >= weight


class Seating:
    """Candidates of a code, and what of them stays the same while only their loads change: one look
    at a thousand targets serves all payloads of a burst.
    """

    def __init__(self, code: Code, candidates: Sequence[Candidate]) -> None:
        self.code = code
        self.rooms = rooms_of(candidates)
        #: In domain order, so that neighbours in a rack or host land in different groups.
        self._candidates = sorted(candidates, key=lambda c: (c.domain, c.target))
        self._position = {c.target: i for i, c in enumerate(self._candidates)}
        #: By group, where its candidates are among them.
        self._grouped = _grouped(code, self._candidates)
        self._weights = _group_weights(self._candidates, self._groups(), self.rooms)

    def load(self, target: TargetId, load_bytes: int) -> None:
        """It has so much now."""
        position = self._position.get(target)
        if position is not None:
            known = self._candidates[position]
            self._candidates[position] = replace(known, load_bytes=load_bytes)

    def _groups(self) -> list[list[Candidate]]:
        return [[self._candidates[at] for at in group] for group in self._grouped]

    def everyone(self, turn: int) -> list[CandidateSeat]:
        """All, in their order of choice."""
        return seated(self._candidates, self.rooms, turn)

    def by_load(self, turn: int) -> Iterable[list[CandidateSeat]]:
        """Each group in its order of choice, the least loaded group first; then everyone."""
        groups, weights = self._groups(), self._weights
        if len(groups) > 1:
            keys = [
                (
                    _stands_back(weights[i], turn, i),
                    _mean_load(groups[i]) / weights[i],
                    (i - turn) % len(groups),
                    i,
                )
                for i in range(len(groups))
            ]
            for *_, i in sorted(keys):
                # Groups take turns: to each its own turns are one after the other.
                yield seated(groups[i], self.rooms, turn // len(groups))
        yield self.everyone(turn)


def _group_weights(
    candidates: Sequence[Candidate], groups: Sequence[Sequence[Candidate]], rooms: Rooms
) -> list[float]:
    """Beside the group of most weight."""
    of_target = {
        c.target: weight
        for c, weight in zip(candidates, _weights(candidates, rooms), strict=True)
        if c.live
    }
    means = [
        fmean([of_target[c.target] for c in group if c.live] or [WEIGHT_MIN]) for group in groups
    ]
    most = max(means)
    return [mean / most for mean in means]


def group_numbers(code: Code, candidates: Sequence[Candidate]) -> dict[TargetId, int]:
    """The placement group of each that has one."""
    ordered = sorted(candidates, key=lambda c: (c.domain, c.target))
    groups = _grouped(code, ordered)
    return {ordered[at].target: number for number, group in enumerate(groups) for at in group}


def _grouped(code: Code, ordered: Sequence[Candidate]) -> list[Sequence[int]]:
    """Who is in which group, by place in domain order: as is known, else they are dealt out in that
    order. One that has none yet, while others have, is in none.
    """
    known: dict[int, list[int]] = {}
    for at, candidate in enumerate(ordered):
        if candidate.group != NO_GROUP:
            known.setdefault(candidate.group, []).append(at)
    if known:
        return [known[number] for number in sorted(known)]
    count = group_count(code, len(ordered))
    return [range(i, len(ordered), count) for i in range(count)]


def _mean_load(group: Sequence[Candidate]) -> float:
    live = [c.load_bytes for c in group if c.live]
    return sum(live) / len(live) if live else math.inf


def seated(candidates: Sequence[Candidate], rooms: Rooms, turn: int) -> list[CandidateSeat]:
    """Least loaded first, for their room; the slow last; equals in an order that another turn
    permutes.
    """
    ordered = sorted(candidates, key=lambda c: (c.domain, c.target))
    weights = _weights(ordered, rooms)
    # Most often all weigh the same, and every payload that is placed asks.
    evenly = min(weights, default=1.0) == 1.0
    prime = _prime_from(len(ordered))
    stride, shift = 1 + turn % (prime - 1), golden(turn, prime)
    seats = [CandidateSeat(c, i) for i, c in enumerate(ordered)]
    seats.sort(
        key=lambda s: (
            s.candidate.slow,
            not evenly and _stands_back(weights[s.position], turn, s.position),
            s.candidate.load_bytes / weights[s.position],
            (s.position * stride + shift) % prime,
        )
    )
    return seats


def golden(turn: int, size: int) -> int:
    """A number below `size` that fills the circle evenly, for turns of any step width.

    Multiples of the golden ratio do (Knuth, TAOCP 3, 6.4, theorem S); here in 32-bit fixed point.
    """
    return ((turn * 0x9E3779B1) & 0xFFFFFFFF) * size >> 32


def _silver(turn: int) -> float:
    """As `golden`, below 1 and by the square root of 2: what one of them orders, the other does not
    know.
    """
    return ((turn * 0x6A09E667) & 0xFFFFFFFF) / (1 << 32)


def _prime_from(size: int) -> int:
    """The smallest prime that is at least `size`, and at least 2."""
    prime = max(2, size)
    while any(prime % factor == 0 for factor in range(2, math.isqrt(prime) + 1)):
        prime += 1
    return prime


def budget_of(candidate: Candidate) -> str:
    """Whose `bytes_free` counts: the device's, or the target's own."""
    return f"device {candidate.device}" if candidate.device else f"target {candidate.target}"
