"""Which columns move: a payload survives as much as before, it ends, and few bytes go."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Domain,
    Generation,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.plan.balancing import (
    TOLERANCE,
    BalanceRule,
    ColumnMove,
    DeviceFill,
    Movable,
    excess_bytes,
    planned,
)
from ckpt.plan.placement import LEVELS, Holder, Level, domain_key
from tests.landing import in_turn

GIB = 1 << 30
ID = CheckpointId(RunName("run"), Step(1), Generation(1, 1))


@dataclass
class World:
    """Devices with one target each, and the columns there."""

    domains: dict[TargetId, Domain]
    totals: dict[TargetId, int]
    k: int = 2
    level: Level = "host"
    max_per_domain: int = 1
    holders: dict[ColumnId, TargetId] = field(default_factory=dict)
    sizes: dict[Rank, int] = field(default_factory=dict)
    groups: dict[TargetId, int] = field(default_factory=dict)

    def put(self, rank: int, size: int, *holders: str) -> None:
        self.sizes[Rank(rank)] = size
        for j, holder in enumerate(holders):
            self.holders[self.column(rank, j)] = TargetId(holder)

    @staticmethod
    def column(rank: int, number: int) -> ColumnId:
        return ColumnId(PayloadId(ID, Rank(rank)), ColumnNumber(number))

    def used(self, target: TargetId) -> int:
        return sum(self.sizes[c.payload.rank] for c, id in self.holders.items() if id == target)

    def share(self, target: str) -> float:
        return self.used(TargetId(target)) / self.totals[TargetId(target)]

    def shelves(self) -> list[DeviceFill]:
        return [
            DeviceFill(str(domain), (id,), domain, self.used(id), self.totals[id],
                  self.totals[id] - self.used(id))
            for id, domain in self.domains.items()
        ]  # fmt: skip

    def movables(self) -> list[Movable]:
        return [
            Movable(
                column, id, self.sizes[column.payload.rank], column.column < self.k,
                tuple(
                    Holder(other, self.domains[other])
                    for another, other in self.holders.items()
                    if another.payload == column.payload and another != column
                ),
            )
            for column, id in self.holders.items()
        ]  # fmt: skip

    def rule(self, above: float = 0.0) -> BalanceRule:
        groups = {id: self.groups.get(id, 0) for id in self.domains}
        return BalanceRule(self.level, self.max_per_domain, groups, above)

    def plan(self, moves_max: int = 64, above: float = 0.0) -> list[ColumnMove]:
        return planned(self.shelves(), self.movables(), self.rule(above), moves_max)

    def perform(self, moves: list[ColumnMove]) -> None:
        for move in moves:
            assert self.holders[move.column] == move.source
            self.holders[move.column] = move.destination

    def spread(self, level: Level) -> dict[PayloadId, int]:
        """The most columns of each payload in one domain."""
        held: dict[PayloadId, Counter[tuple[str, ...]]] = {}
        for column, id in self.holders.items():
            key = domain_key(id, self.domains[id], level)
            held.setdefault(column.payload, Counter())[key] += 1
        return {payload: max(counts.values()) for payload, counts in held.items()}


def hosts(count: int, total: int = 100 * GIB) -> World:
    """t0, t1, ... each on a host of its own."""
    ids = [TargetId(f"t{number}") for number in range(count)]
    domains = {id: Domain.parse(f"p/r/h{number}/d") for number, id in enumerate(ids)}
    return World(domains, dict.fromkeys(ids, total))


def chance_world(seed: int) -> World:
    """Unequal devices in racks and hosts, filled unevenly, within the domain rule."""
    chance = random.Random(seed)
    world = World({}, {}, level=chance.choice(LEVELS[1:4]))
    world.max_per_domain = chance.choice([1, 1, 2])
    for number in range(chance.randrange(3, 14)):
        id = TargetId(f"t{number}")
        place = f"p/r{number % 4}/h{number // 2}/d{number}"
        world.domains[id] = Domain.parse(place)
        world.totals[id] = chance.choice([50, 100, 200]) * GIB
    favoured = sorted(world.domains, key=lambda _: chance.random())
    for rank in range(chance.randrange(1, 60)):
        size = chance.choice([GIB // 2, GIB, 3 * GIB])
        chosen: list[TargetId] = []
        held: Counter[tuple[str, ...]] = Counter()
        for id in favoured if chance.random() < 0.8 else favoured[::-1]:
            key = domain_key(id, world.domains[id], world.level)
            fits = world.used(id) + size <= world.totals[id]
            if len(chosen) < 3 and held[key] < world.max_per_domain and fits:
                chosen.append(id)
                held[key] += 1
        world.put(rank, size, *chosen)
    return world


def test_the_fullest_gives_to_the_emptiest_until_they_are_about_as_full() -> None:
    world = hosts(4)
    for rank in range(60):
        world.put(rank, GIB, "t0", "t1", "t2")
    moves = world.plan()
    assert {move.destination for move in moves} == {"t3"}
    world.perform(moves)
    shares = [world.share(f"t{number}") for number in range(4)]
    assert max(shares) - min(shares) < TOLERANCE
    assert world.plan() == []


def test_nothing_is_moved_for_less_than_the_tolerance() -> None:
    world = hosts(4)
    for rank in range(4):
        world.put(rank, GIB, "t0", "t1", "t2")
    assert (world.plan(), excess_bytes(world.shelves(), world.rule())) == ([], 0)


def test_data_goes_before_parity() -> None:
    world = hosts(4)
    for rank in range(20):
        world.put(rank, GIB, *(("t0", "t1", "t2") if rank % 2 else ("t2", "t1", "t0")))
    assert all(move.column.column < 2 for move in world.plan(4))


def test_only_what_is_above_the_mark_gives() -> None:
    world = hosts(4)
    for rank in range(88):
        world.put(rank, GIB, "t0", "t1", "t2" if rank % 2 else "t3")
    world.holders[world.column(0, 0)] = TargetId("t3")
    moves = world.plan(above=0.85)
    assert {move.source for move in moves} <= {"t0", "t1"}
    world.perform(moves)
    assert max(world.share("t0"), world.share("t1")) <= 0.85
    assert min(world.share("t0"), world.share("t1")) > 0.80, "and no more than that"
    assert world.plan(above=0.95) == []


def test_a_column_stays_in_its_placement_group() -> None:
    world = hosts(6)
    world.groups = {TargetId(f"t{number}"): number // 4 for number in range(6)}
    for rank in range(60):
        world.put(rank, GIB, "t0", "t1", "t2")
    assert {move.destination for move in world.plan()} == {"t3"}


def test_a_place_where_a_payload_would_survive_less_is_passed_over() -> None:
    world = hosts(4)
    world.domains[TargetId("t3")] = Domain.parse("p/r/h0/other")
    for rank in range(60):
        world.put(rank, GIB, "t0", "t1", "t2")
    moves = world.plan()
    assert {(move.source, move.destination) for move in moves} == {("t0", "t3")}


def test_a_rack_gets_no_more_of_a_payload_than_the_one_that_gives_had() -> None:
    world = hosts(4)
    for number, rack in enumerate(("r0", "r1", "r2", "r0")):
        world.domains[TargetId(f"t{number}")] = Domain.parse(f"p/{rack}/h{number}/d")
    for rank in range(60):
        world.put(rank, GIB, "t0", "t1", "t2")
    assert {move.source for move in world.plan()} == {"t0"}


def test_what_a_device_may_not_take_stays() -> None:
    world = hosts(4)
    for rank in range(60):
        world.put(rank, GIB, "t0", "t1", "t2")
    shelves = [
        replace(shelf, takes_bytes=5 * GIB) if shelf.targets == ("t3",) else shelf
        for shelf in world.shelves()
    ]
    assert len(planned(shelves, world.movables(), world.rule(), 64)) == 5


def test_targets_of_one_device_count_as_one() -> None:
    domain = Domain.parse("p/r/h/d")
    shelf = DeviceFill(str(domain), (TargetId("t0"), TargetId("t1")), domain, 90, 100, 10)
    world = hosts(2)
    world.put(0, 9, "t0")
    assert planned([shelf], world.movables(), world.rule(), 64) == []


@pytest.mark.parametrize("seed", in_turn(range(150), every=3))
def test_any_plan_ends_keeps_what_survives_and_moves_few_bytes(seed: int) -> None:
    world = chance_world(seed)
    before = {level: world.spread(level) for level in LEVELS}
    fullest = max(map(world.share, world.domains))
    first = sum(world.used(id) for id in world.domains)
    moved = rounds = 0
    while moves := world.plan(random.Random(seed).randrange(1, 20)):
        assert len({move.column.payload for move in moves}) == len(moves)
        for move in moves:
            giver, taker = world.share(move.source), world.share(move.destination)
            assert giver - taker >= TOLERANCE - 1e-9
            world.perform([move])
            assert world.share(move.destination) <= max(giver, taker) + 1e-9
        moved += sum(move.file_bytes for move in moves)
        rounds += 1
        assert rounds < 200, "it ends"
    for level in LEVELS:
        after = world.spread(level)
        assert all(after[payload] <= most for payload, most in before[level].items()), level
    assert max(map(world.share, world.domains)) <= fullest
    assert moved <= first
    assert world.plan() == []


def test_equal_arguments_give_equal_plans_in_any_order() -> None:
    world = chance_world(3)
    shelves, movables, rule = world.shelves(), world.movables(), world.rule()
    plan = planned(shelves, movables, rule, 64)
    random.Random(1).shuffle(shelves)
    random.Random(2).shuffle(movables)
    assert planned(shelves, movables, rule, 64) == plan
