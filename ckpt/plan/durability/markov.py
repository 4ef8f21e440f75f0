"""The chance that a group loses data within a time: a Markov chain, solved exactly.

A state names what each hit domain lost, in ascending order: (1, 1) is one target in each of two
domains, (WHOLE, 2) a whole domain and two targets of another one. Domains are alike, so which ones
they are does not matter.

    () --target--> (1) --target--> (1, 1) --one too many--> lost
       <-return---     <-return---
       --domain--> (WHOLE) ...

Solved as a transient, not for its mean: the matrix exponential by uniformization, Taylor terms and
squaring. Nothing is subtracted on the way, so that chances of 1e-30 keep their leading digits (Xue
and Ye, "Computing exponentials of essentially non-negative matrices entrywise to high relative
accuracy", Mathematics of Computation 82, 2013).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from ckpt.plan.durability.group import WHOLE, Hazards, PlacementGroup

State = tuple[int, ...]
Matrix = npt.NDArray[np.float64]

STATES_MAX: Final = 256
"""With more, so many targets lost in one domain one by one count as fewer."""
_STEP_MAX: Final = 0.5
_TERMS: Final = 20
"""Beyond as many jumps as lead to a loss."""


def loss_chance(group: PlacementGroup, hazards: Hazards, years: float = 1.0) -> float:
    """That a group which has lost nothing loses data within `years`."""
    deepest, states = _states(group)
    number = {state: at for at, state in enumerate(states)}
    lost = len(states)
    rates = np.zeros((lost + 1, lost + 1))
    for state, at in number.items():
        for following, rate in _following(group, hazards, state, deepest):
            fatal = _fatal(group, following)
            rates[at, lost] += rate * fatal
            if following in number:
                rates[at, number[following]] += rate
    if not rates.any():
        return 0.0
    return min(1.0, float(_exponential(rates * years, _TERMS + group.loss_max)[0, lost]))


def _fatal(group: PlacementGroup, state: State) -> float:
    if sum(map(group.weight, state)) <= group.loss_max:
        return 0.0
    return group.deadly(state)


def _states(group: PlacementGroup) -> tuple[int, list[State]]:
    """How many lost targets of a domain are distinguished; all states without a lost payload."""
    least = min(group.domain_targets, max(group.max_per_domain, 1))
    for deepest in range(min(group.domain_targets, STATES_MAX), least, -1):
        found = _reachable(group, deepest)
        if len(found) <= STATES_MAX:
            return deepest, found
    return least, _reachable(group, least)


def _reachable(group: PlacementGroup, deepest: int) -> list[State]:
    """Breadth first from the state without a loss; stops above STATES_MAX where less deep ones can
    be tried."""
    found: dict[State, None] = {(): None}
    coming: list[State] = [()]
    while coming and (len(found) <= STATES_MAX or deepest == 1):
        state = coming.pop(0)
        for following, _ in _losses(group, _ONE_EACH, state, deepest):
            if following not in found and not _is_beyond(group, following):
                found[following] = None
                coming.append(following)
    return list(found)


def _is_beyond(group: PlacementGroup, state: State) -> bool:
    return sum(map(group.weight, state)) > group.loss_max


_ONE_EACH: Final = Hazards(1.0, 1.0, 1.0, 1.0)


def _following(
    group: PlacementGroup, hazards: Hazards, state: State, deepest: int
) -> Iterator[tuple[State, float]]:
    yield from _losses(group, hazards, state, deepest)
    for lost, count in Counter(state).items():
        if lost == WHOLE:
            yield _moved(state, WHOLE, 0), count / hazards.domain_return
        else:
            yield _moved(state, lost, lost - 1), count * lost / hazards.target_return


def _losses(
    group: PlacementGroup, hazards: Hazards, state: State, deepest: int
) -> Iterator[tuple[State, float]]:
    """Where the next loss leads, and how often a year."""
    size = group.domain_targets
    whole = group.domains - len(state)
    if whole:
        yield _moved(state, 0, 1), whole * size * hazards.target_losses
        yield _moved(state, 0, WHOLE), whole * hazards.domain_losses
    for lost, count in Counter(state).items():
        if lost == WHOLE:
            continue
        yield _moved(state, lost, WHOLE), count * hazards.domain_losses
        if lost < deepest:
            yield _moved(state, lost, lost + 1), count * (size - lost) * hazards.target_losses


def _moved(state: State, before: int, after: int) -> State:
    """One domain that had lost `before` has lost `after`."""
    lost = list(state)
    if before:
        lost.remove(before)
    return tuple(sorted([*lost, after] if after else lost))


def _exponential(rates: Matrix, terms: int) -> Matrix:
    """exp(Q), of the chain with these rates beside the diagonal: where it is after one unit of
    time.
    """
    leaving = rates.sum(axis=1)
    fastest = float(leaving.max())
    halvings = max(0, math.ceil(math.log2(fastest / _STEP_MAX)))
    scale = fastest / 2**halvings
    # One step of the uniformized chain: where a jump leads, staying among them.
    jump = rates / fastest
    jump[np.diag_indices_from(jump)] += (fastest - leaving) / fastest
    power = np.eye(len(rates))
    result = np.zeros_like(power)
    for term in range(terms):
        result += power * (math.exp(-scale) * scale**term / math.factorial(term))
        power = power @ jump
    for _ in range(halvings):
        result = result @ result
    return result
