"""On which targets the columns of a payload go, and what may be lost afterwards.

Placement is explicit: it is computed once, from the candidates' loads, and stored resolved (P11).
Nothing here is random; equal arguments give equal answers, in whatever order candidates come.

Goals, in this order:
1. At most `max_per_domain` columns of a payload in one failure domain at `level` (P13). What the
   rule leaves no room for is absent, never squeezed in.
2. Every wider or narrower domain holds no more than its share of targets would, where rule 1 leaves
   a choice: two targets of one device are not taken while another device is free.
3. The least loaded targets first. With equal domains, targets differ by at most one column, so
   max/mean over a burst of more than 20 columns for each target is at most 1.05.
4. Few sets of targets can lose data together. A large cluster is cut into groups of at least
   GROUP_TARGETS_MIN targets, each spread over all domains, and a payload stays inside one group.
   With 1024 targets, three random losses share a group in 1 of 2,000 cases; free choice over the
   cluster makes nearly every triple deadly. That is the trade of copysets (Cidon et al., "Copysets:
   Reducing the Frequency of Data Loss in Cloud Storage", USENIX ATC 2013) with scatter width
   "group size - 1". Within a group, columns are declustered (Holland and Gibson, "Parity
   Declustering for Continuous Operation in Redundant Disk Arrays", ASPLOS 1992): ties are broken by
   another affine permutation every turn, stride * position + shift modulo a prime, which brings all
   pairs together about equally often (Carter and Wegman, "Universal Classes of Hash Functions",
   1979), so that a lost target is rebuilt from all that goal 2 lets stand beside it. Whole groups
   were preferred to many permuted copysets because the choice inside them stays free, which is
   what keeps goal 3 under any mix of sizes and losses.
5. Parity goes to the targets that have least of it and roles rotate, so that a healthy read, which
   leaves parity alone, loads all alike.

Domain limits at one level, and budgets of devices inside it, form a laminar matroid, for which the
greedy choice in load order is both largest and least loaded (Edmonds, "Matroids and the greedy
algorithm", 1971): when columns are absent, no cleverer order would have placed them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.ids import BootId, Domain, TargetId
from ckpt.erasure.code import Code

Level = Literal["target", "device", "host", "rack", "power"]
"""What counts as one failure domain, narrowest first."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
GROUP_TARGETS_MIN: Final = 24
"""A cluster is cut into groups when each gets at least so many targets,
and three times the code's columns.
"""

DomainKey = tuple[str, ...]


class Candidate(Struct, frozen=True, gc=False):
    """A target that might take a column."""

    target: TargetId
    boot: BootId
    domain: Domain
    device: str
    """Targets that name the same device share its `bytes_free`; empty when it shares with nobody.
    """
    bytes_free: int
    """Of the device, reservations already taken off."""
    load_bytes: int
    """Bytes of columns that this burst already gave to it."""
    live: bool = True
    """A target that is down takes nothing, but keeps its place, so that groups stay what they were.
    """
    parity_bytes: int = 0
    """The part of `load_bytes` that is parity; left at 0, roles rotate by `turn` alone."""
    own_bytes_free: int | None = None
    """What the target's own capacity leaves, besides the device; None when only the device counts.
    """
    slow: bool = False
    """It comes after all that are not: a place where nothing else is left, else a spare."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the columns of one payload go."""

    columns: tuple[TargetId | None, ...]
    """n entries; None for a column that no target can take now. Parity is missing first."""
    spares: tuple[TargetId, ...]
    """Any of them may replace any column, even all at once, and the domain rule still holds."""


@dataclass(frozen=True, slots=True)
class Survivable:
    """What may be lost, whichever it is, with the payload still readable. -1:
    unreadable already.
    """

    targets: int
    domains: int
    """At `level`."""
    level: Level


@dataclass(frozen=True, slots=True)
class Holder:
    """A column's owner."""

    target: TargetId
    domain: Domain


def check_level(text: str) -> Level:
    """The level of that name, or Refused."""
    for level in LEVELS:
        if level == text:
            return level
    raise Refused(f"failure domain level {text!r} is none of {', '.join(LEVELS)}")


def place(
    code: Code,
    column_bytes: int,
    candidates: Sequence[Candidate],
    level: Level,
    max_per_domain: int,
    spare_count: int,
    turn: int,
) -> Placement:
    """n targets for the columns of one payload, and up to `spare_count` spares.

    `column_bytes` is the file size that a target reserves for each column and each spare. `turn` is
    the payload's number in the burst (its rank will do): it rotates roles and breaks ties.
    """
    assert column_bytes >= 0
    assert max_per_domain >= 1
    assert spare_count >= 0
    assert turn >= 0
    everyone = _seats(candidates, turn)
    home: Sequence[_Seat] = everyone
    best: list[_Seat] = []
    for seats in (*_groups_by_load(code, candidates, turn), everyone):
        table = _Table(column_bytes, level, max_per_domain, seats, code.n)
        table.fill(seats, code.n)
        if len(table.taken) > len(best):
            home, best = seats, table.taken
        if len(best) == code.n:
            break

    # Spares come from the payload's own group as long as it has any.
    table = _Table(column_bytes, level, max_per_domain, everyone, code.n + spare_count)
    for seat in best:
        table.take(seat)
    table.fill((*home, *everyone), len(best) + spare_count)
    spares = tuple(seat.candidate.target for seat in table.taken[len(best) :])
    return Placement(_assign_roles(code, best, turn), spares)


def pick_replacement(
    column_bytes: int,
    candidates: Sequence[Candidate],
    others: Sequence[Holder],
    level: Level,
    max_per_domain: int,
    excluded: Collection[TargetId] = (),
    count: int = 1,
    turn: int = 0,
) -> tuple[TargetId, ...]:
    """Up to `count` targets, best first, each of which may take the one column that is lost.

    `others` hold the payload's other columns; `excluded` are targets that already failed it. Empty
    when no live target has room without breaking the domain rule.
    """
    seats = [s for s in _seats(candidates, turn) if s.candidate.target not in excluded]
    table = _Table(column_bytes, level, max_per_domain, seats, len(others) + 1)
    for holder in others:
        table.note(holder.target, holder.domain)
    strict = [s for s in seats if table.fits(s) and table.is_even(s)]
    loose = [s for s in seats if table.fits(s) and not table.is_even(s)]
    return tuple(seat.candidate.target for seat in (*strict, *loose)[:count])


def document_targets(
    candidates: Sequence[Candidate], count: int, beside: Collection[Holder] = ()
) -> tuple[TargetId, ...]:
    """Up to `count` live targets for small documents: as few as possible in one power feed,
    then rack, host, device, those counted that are to hold it already (`beside`).

    Wider domains count first; among equals those that are not slow, then the least loaded, then the
    lowest id. Room is not asked for: documents live on the part of a device that no reservation
    gets.
    """
    left = sorted((c for c in candidates if c.live), key=lambda c: (c.slow, c.load_bytes, c.target))
    seen: Counter[str] = Counter()
    for holder in beside:
        seen.update(_keys(holder.target, holder.domain))
    chosen: list[TargetId] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda c: [seen[key] for key in _keys(c.target, c.domain)[::-1]])
        left.remove(best)
        chosen.append(best.target)
        seen.update(_keys(best.target, best.domain))
    return tuple(chosen)


def survivable(code: Code, placed: Sequence[Domain | None], level: Level) -> Survivable:
    """How much any loss may take: `placed` names each column's domain,
    None for a column that is absent.

    The code is MDS: any k columns read the payload. So any (present - k) targets may go, and as
    many domains as still leave k columns when those that hold most go first. Columns lie on
    distinct targets. The caller takes the minimum over all payloads of a checkpoint.
    """
    present = [(str(j), domain) for j, domain in enumerate(placed) if domain is not None]
    loss_max = len(present) - code.k
    if loss_max < 0:
        return Survivable(-1, -1, level)
    held = Counter(domain_key(TargetId(name), domain, level) for name, domain in present)
    lost = domains = 0
    for columns in sorted(held.values(), reverse=True):
        lost += columns
        if lost > loss_max:
            break
        domains += 1
    return Survivable(loss_max, domains, level)


def group_count(code: Code, target_count: int) -> int:
    """Into how many groups a cluster of so many targets is cut, nearly equal in size."""
    return max(1, target_count // max(GROUP_TARGETS_MIN, 3 * code.n))


def domain_key(target: TargetId, domain: Domain, level: Level) -> DomainKey:
    """What equal-failing targets have in common at this level."""
    match level:
        case "target":
            return (target,)
        case "device":
            return (domain.power, domain.rack, domain.host, domain.device)
        case "host":
            return (domain.power, domain.rack, domain.host)
        case "rack":
            return (domain.power, domain.rack)
        case "power":
            return (domain.power,)


# --------------------------------------------------------------------------- helpers


@lru_cache(maxsize=65_536)
def _keys(target: TargetId, domain: Domain) -> tuple[str, ...]:
    """What the target belongs to, narrowest first, as LEVELS: asked for at every column placed.

    As texts, each of which is hashed once.
    """
    return tuple(f"{level} {'/'.join(domain_key(target, domain, level))}" for level in LEVELS)


@lru_cache(maxsize=32)
def _shares(usable: frozenset[tuple[TargetId, Domain]], column_count: int) -> dict[str, int]:
    """A domain's even share of the columns: its share of the usable targets, rounded up. Not to be
    changed: every payload that is placed asks for it."""
    size = Counter(key for target, domain in usable for key in _keys(target, domain)[1:])
    return {key: -(-column_count * targets // len(usable)) for key, targets in size.items()}


class _Seat(Struct, frozen=True, gc=False):
    """A candidate at its position in its group's fixed order."""

    candidate: Candidate
    position: int


class _Table:
    """What is taken, and what each domain and device may still take.

    I am filled in the order given. `fits` is the rule and the space, `is_even` the wish of goal 2.
    """

    def __init__(
        self,
        column_bytes: int,
        level: Level,
        max_per_domain: int,
        seats: Iterable[_Seat],
        column_count: int,
    ) -> None:
        self.taken: list[_Seat] = []
        self._column_bytes = column_bytes
        self._level = LEVELS.index(level)
        self._max_per_domain = max_per_domain
        self._targets: set[TargetId] = set()
        self._held: dict[str, int] = {}
        self._reserved: dict[str, int] = {}

        usable = [s.candidate for s in seats if _has_room(s.candidate, column_bytes)]
        standing = frozenset([(c.target, c.domain) for c in usable])
        self._share = _shares(standing, column_count)

    def fits(self, seat: _Seat) -> bool:
        c = seat.candidate
        if c.target in self._targets or not _has_room(c, self._column_bytes):
            return False
        key = _keys(c.target, c.domain)[self._level]
        room = c.bytes_free - self._reserved.get(_budget(c), 0)
        return room >= self._column_bytes and self._held.get(key, 0) < self._max_per_domain

    def is_even(self, seat: _Seat) -> bool:
        c = seat.candidate
        keys = _keys(c.target, c.domain)[1:]
        held, share = self._held, self._share
        return not any(key in held and held[key] >= share.get(key, 1) for key in keys)

    def take(self, seat: _Seat) -> None:
        c = seat.candidate
        self.taken.append(seat)
        budget = _budget(c)
        self._reserved[budget] = self._reserved.get(budget, 0) + self._column_bytes
        self.note(c.target, c.domain)

    def note(self, target: TargetId, domain: Domain) -> None:
        """Somebody holds a column there already, on space that is no longer free."""
        self._targets.add(target)
        for key in _keys(target, domain):
            self._held[key] = self._held.get(key, 0) + 1

    def fill(self, seats: Sequence[_Seat], count: int) -> None:
        """Take until `count` are taken: first only where it keeps domains even,
        then anywhere allowed.
        """
        for even in (True, False):
            for seat in seats:
                if len(self.taken) >= count:
                    return
                if self.fits(seat) and (self.is_even(seat) or not even):
                    self.take(seat)


def _has_room(candidate: Candidate, column_bytes: int) -> bool:
    own = candidate.own_bytes_free
    fits_own = own is None or own >= column_bytes
    return candidate.live and candidate.bytes_free >= column_bytes and fits_own


def _groups_by_load(
    code: Code, candidates: Sequence[Candidate], turn: int
) -> Iterable[list[_Seat]]:
    """Each group in its order of choice, the least loaded group first;
    none when the cluster is one group.
    """
    groups = _groups(code, candidates)
    if len(groups) == 1:
        return
    means = [_mean_load(group) for group in groups]
    for i in sorted(range(len(groups)), key=lambda i: (means[i], (i - turn) % len(groups))):
        yield _seats(groups[i], turn)


def _groups(code: Code, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates dealt out in domain order, so that neighbours in a rack or host land
    in different groups.
    """
    ordered = sorted(candidates, key=lambda c: (c.domain, c.target))
    count = group_count(code, len(ordered))
    return [ordered[i::count] for i in range(count)]


def _mean_load(group: Sequence[Candidate]) -> float:
    live = [c.load_bytes for c in group if c.live]
    return sum(live) / len(live) if live else math.inf


def _seats(candidates: Sequence[Candidate], turn: int) -> list[_Seat]:
    """Least loaded first, the slow last; equals in an order that another turn permutes."""
    ordered = sorted(candidates, key=lambda c: (c.domain, c.target))
    prime = _prime_from(len(ordered))
    stride, shift = 1 + turn % (prime - 1), _golden(turn, prime)
    seats = [_Seat(c, i) for i, c in enumerate(ordered)]
    seats.sort(
        key=lambda s: (
            s.candidate.slow,
            s.candidate.load_bytes,
            (s.position * stride + shift) % prime,
        )
    )
    return seats


def _assign_roles(code: Code, seats: Sequence[_Seat], turn: int) -> tuple[TargetId | None, ...]:
    """Column numbers for the chosen targets: parity to those that have least of it,
    data to the others.

    Among equals, roles rotate by a multiple of the golden ratio. A plain `turn % n` would be blind:
    with twice as many targets as columns, a target is chosen every second turn and would only ever
    see every second role.
    """
    ordered = [s.candidate for s in sorted(seats, key=lambda s: s.position)]
    shift = _golden(turn, len(ordered))
    rotated = ordered[shift:] + ordered[:shift]
    parity_count = max(0, len(rotated) - code.k)
    by_parity = sorted(range(len(rotated)), key=lambda i: (rotated[i].parity_bytes, -i))
    parity = set(by_parity[:parity_count])
    data = [c.target for i, c in enumerate(rotated) if i not in parity]
    last = [c.target for i, c in enumerate(rotated) if i in parity]
    return (*data, *last, *[None] * (code.n - len(rotated)))


def _golden(turn: int, size: int) -> int:
    """A number below `size` that fills the circle evenly, for turns of any step width.

    Multiples of the golden ratio do (Knuth, TAOCP 3, 6.4, theorem S); here in 32-bit fixed point.
    """
    return ((turn * 0x9E3779B1) & 0xFFFFFFFF) * size >> 32


def _prime_from(size: int) -> int:
    """The smallest prime that is at least `size`, and at least 2."""
    prime = max(2, size)
    while any(prime % factor == 0 for factor in range(2, math.isqrt(prime) + 1)):
        prime += 1
    return prime


def _budget(candidate: Candidate) -> str:
    """Whose `bytes_free` it is: the device's, or the target's own."""
    return f"device {candidate.device}" if candidate.device else f"target {candidate.target}"
