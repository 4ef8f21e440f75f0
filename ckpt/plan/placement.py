"""On which targets the columns of a payload go, and what may be lost afterwards.

Placement is explicit: it is computed once, from the candidates' loads, and stored resolved (P11).
Nothing here is random; equal arguments give equal answers, in whatever order candidates come.

Goals, in this order:
1. At most `max_per_domain` columns of a payload in one failure domain at `level` (P13). What the
   rule leaves no room for is absent, never squeezed in.
2. Every wider or narrower domain holds no more than its share of targets would, where rule 1 leaves
   a choice: two targets of one device are not taken while another device is free.
3. The least loaded targets first, with room taken into account as that gets short (filling.py):
   loads are divided by weights, and one of weight w < 1 stands back in all but w of the turns. What
   each payload needs comes first, so that no room is wasted that goals 1 and 2 allow to be used.
   With equal domains and room, targets differ by at most one column, so max/mean over a burst of
   more than 20 columns for each target is at most 1.05.
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

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.ids import Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.filling import DomainRooms, needed
from ckpt.plan.seating import (
    Candidate,
    CandidateSeat,
    Rooms,
    Seating,
    budget_of,
    golden,
    rooms_of,
    seated,
)

Level = Literal["target", "device", "host", "rack", "power"]
"""What counts as one failure domain, narrowest first."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DomainKey = tuple[str, ...]


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
    """As `place_in`, of candidates that are looked at once."""
    seating = Seating(code, candidates)
    return place_in(seating, column_bytes, level, max_per_domain, spare_count, turn)


def place_in(
    seating: Seating,
    column_bytes: int,
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
    code = seating.code
    home: Sequence[CandidateSeat] = ()
    best: list[CandidateSeat] = []
    for seats in seating.by_load(turn):
        table = _Table(column_bytes, level, max_per_domain, seats, code.n)
        table.fill(table.needed_first(seats, seating.rooms), code.n)
        if len(table.taken) > len(best):
            home, best = seats, table.taken
        if len(best) == code.n:
            break

    def spares_of(seats: Sequence[CandidateSeat]) -> list[CandidateSeat]:
        table = _Table(column_bytes, level, max_per_domain, seats, code.n + spare_count)
        for seat in best:
            table.take(seat)
        table.fill(seats, len(best) + spare_count)
        return table.taken[len(best) :]

    # Spares come from the payload's own group as long as it has any.
    spares = spares_of(home)
    if len(spares) < spare_count:
        spares = spares_of((*home, *seating.everyone(turn)))
    targets = tuple(seat.candidate.target for seat in spares)
    return Placement(_assign_roles(code, best, turn), targets)


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
    everyone = seated(candidates, rooms_of(candidates), turn)
    seats = [s for s in everyone if s.candidate.target not in excluded]
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


class _Shares(Struct, frozen=True):
    """Of the usable targets. Not to be changed: every payload that is placed asks for it."""

    columns: dict[str, int]
    """A domain's even share of the columns: its share of the targets, rounded up."""
    crowds: tuple[int, ...]
    """Of each level, how many targets its largest domain has."""


@lru_cache(maxsize=1024)
def _shares(usable: frozenset[tuple[TargetId, Domain]], column_count: int) -> _Shares:
    keys = [_keys(target, domain) for target, domain in usable]
    size = Counter(key for each in keys for key in each[1:])
    share = {key: -(-column_count * targets // len(usable)) for key, targets in size.items()}
    crowds = tuple(max(Counter(names).values()) for names in zip(*keys, strict=True))
    return _Shares(share, crowds or (1,) * len(LEVELS))


class _Table:
    """What is taken, and what each domain and device may still take.

    I am filled in the order given. `fits` is the rule and the space, `is_even` the wish of goal 2.
    """

    def __init__(
        self,
        column_bytes: int,
        level: Level,
        max_per_domain: int,
        seats: Iterable[CandidateSeat],
        column_count: int,
    ) -> None:
        self.taken: list[CandidateSeat] = []
        self._column_bytes = column_bytes
        self._column_count = column_count
        self._level = LEVELS.index(level)
        self._max_per_domain = max_per_domain
        self._targets: set[TargetId] = set()
        self._held: dict[str, int] = {}
        self._reserved: dict[str, int] = {}

        usable = [s.candidate for s in seats if _has_room(s.candidate, column_bytes)]
        standing = frozenset([(c.target, c.domain) for c in usable])
        shares = _shares(standing, column_count)
        self._share, self._crowd = shares.columns, shares.crowds[self._level]

    def fits(self, seat: CandidateSeat) -> bool:
        c = seat.candidate
        if c.target in self._targets or not _has_room(c, self._column_bytes):
            return False
        key = self._domain(seat)
        room = c.bytes_free - self._reserved.get(budget_of(c), 0)
        return room >= self._column_bytes and self._held.get(key, 0) < self._max_per_domain

    def is_even(self, seat: CandidateSeat) -> bool:
        c = seat.candidate
        keys = _keys(c.target, c.domain)[1:]
        held, share = self._held, self._share
        return not any(key in held and held[key] >= share.get(key, 1) for key in keys)

    def take(self, seat: CandidateSeat) -> None:
        c = seat.candidate
        self.taken.append(seat)
        budget = budget_of(c)
        self._reserved[budget] = self._reserved.get(budget, 0) + self._column_bytes
        self.note(c.target, c.domain)

    def needed_first(self, seats: Sequence[CandidateSeat], rooms: Rooms) -> Sequence[CandidateSeat]:
        """Those without which room is wasted, then the others, each in their order."""
        if not self._is_anybody_needed(seats, rooms):
            return seats
        by_domain: dict[str, list[CandidateSeat]] = {}
        for seat in filter(self.fits, seats):
            by_domain.setdefault(self._domain(seat), []).append(seat)
        domains = [self._domain_rooms(key, held, rooms) for key, held in by_domain.items()]
        found = zip(by_domain.values(), needed(domains, self._column_count), strict=True)
        first = {
            held[i].position for held, some in found for i in some if not held[i].candidate.slow
        }
        return sorted(seats, key=lambda seat: seat.position not in first)

    def _is_anybody_needed(self, seats: Sequence[CandidateSeat], rooms: Rooms) -> bool:
        """No domain may have more than all payloads to come can use: most often that is seen at
        once.
        """
        free = [rooms[seat.candidate.target] for seat in seats]
        columns = sum(free) - self._column_bytes * self._column_count
        return (
            self._column_bytes > 0
            and self._crowd * max(free, default=0) * self._column_count > columns
        )

    def _domain_rooms(self, key: str, held: list[CandidateSeat], rooms: Rooms) -> DomainRooms:
        columns = tuple(rooms[seat.candidate.target] // self._column_bytes for seat in held)
        return DomainRooms(columns, min(self._max_per_domain, self._share.get(key, 1)))

    def _domain(self, seat: CandidateSeat) -> str:
        return _keys(seat.candidate.target, seat.candidate.domain)[self._level]

    def note(self, target: TargetId, domain: Domain) -> None:
        """Somebody holds a column there already, on space that is no longer free."""
        self._targets.add(target)
        for key in _keys(target, domain):
            self._held[key] = self._held.get(key, 0) + 1

    def fill(self, seats: Sequence[CandidateSeat], count: int) -> None:
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


def _assign_roles(
    code: Code, seats: Sequence[CandidateSeat], turn: int
) -> tuple[TargetId | None, ...]:
    """Column numbers for the chosen targets: parity to those that have least of it,
    data to the others.

    Among equals, roles rotate by a multiple of the golden ratio. A plain `turn % n` would be blind:
    with twice as many targets as columns, a target is chosen every second turn and would only ever
    see every second role.
    """
    ordered = [s.candidate for s in sorted(seats, key=lambda s: s.position)]
    shift = golden(turn, len(ordered))
    rotated = ordered[shift:] + ordered[:shift]
    parity_count = max(0, len(rotated) - code.k)
    by_parity = sorted(range(len(rotated)), key=lambda i: (rotated[i].parity_bytes, -i))
    parity = set(by_parity[:parity_count])
    data = [c.target for i, c in enumerate(rotated) if i not in parity]
    last = [c.target for i, c in enumerate(rotated) if i in parity]
    return (*data, *last, *[None] * (code.n - len(rotated)))
