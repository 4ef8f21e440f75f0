"""What happens to coordinators and to what is between them: each a few lines against the world.

A strike that finds nobody answers False, and another one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tests.sim.leading.cluster import MEMBERS, Request
from tests.sim.leading.process import CoordinatorProcess
from tests.sim.leading.world import TAKING, LeadingWorld, is_of

HOUR_S = 3600
CUT_US_MAX = 10_000_000
"""A stager may be away for 15 s."""
KINDS = (
    "LaunchNumbered", "LaunchEntered", "AttemptOpened", "AttemptDecided", "RowCommitted",
    "RowAborted", "TargetSeen", "LaunchResolved", "CheckpointTombstoned", "CatalogReached", TAKING, TAKING,
)  # fmt: skip
"""Of entries, around whose transaction a strike may come."""


def _down(world: LeadingWorld, one: CoordinatorProcess) -> None:
    """Killed, and started again a little later."""
    one.crash()
    world.clock.after(world.clock.rng.choice(world.times.down_us), one.start_if_wanted)


def leader_killed(world: LeadingWorld) -> bool:
    """F12: SIGKILL; its host's kernel says so."""
    leader = world.several.leader
    if leader is not None:
        _down(world, leader)
    return leader is not None


def leader_terminated(world: LeadingWorld) -> bool:
    """SIGTERM, as in a rolling restart."""
    leader = world.several.leader
    if leader is not None:
        leader.terminate()
    return leader is not None


def leader_steps_down(world: LeadingWorld) -> bool:
    """An operator wants another one."""
    leader = world.several.leader
    if leader is not None:
        leader.step_down()
    return leader is not None


def leader_paused(world: LeadingWorld) -> bool:
    """F13: SIGSTOP; it wakes beside its successor."""
    leader = world.several.leader
    if leader is None or world.is_healed:
        return False
    leader.stop(world.clock.rng.choice(world.times.away_us))
    return True


def leader_paused_often(world: LeadingWorld) -> bool:
    """Again and again, each time for about a lease."""
    for number in range(3):
        world.clock.after(number * 3_000_000, leader_paused, world)
    return True


def standby_killed(world: LeadingWorld) -> bool:
    """Nobody leads less for it."""
    others = [one for one in world.several.all if one.up and not one.leads]
    if others:
        _down(world, world.clock.rng.choice(others))
    return bool(others)


def all_killed(world: LeadingWorld) -> bool:
    """For a while nobody leads."""
    for one in world.several.all:
        _down(world, one)
    return True


def etcd_cut_off(world: LeadingWorld) -> bool:
    """F17: the leader and etcd do not hear each other, one way or both."""
    return _part_from_etcd(world, world.several.leader)


def standby_cut_off(world: LeadingWorld) -> bool:
    """F17: a standby and etcd."""
    others = [one for one in world.several.all if one.up and not one.leads]
    return _part_from_etcd(world, world.clock.rng.choice(others) if others else None)


def _part_from_etcd(world: LeadingWorld, one: CoordinatorProcess | None) -> bool:
    if one is None:
        return False
    rng = world.clock.rng
    for_us, ways = (
        rng.choice(world.times.away_us),
        rng.choice([(True, False), (False, True), (True, True)]),
    )
    for member in MEMBERS:
        if ways[0]:
            world.etcd.part(one.name, member, for_us)
        if ways[1]:
            world.etcd.part(member, one.name, for_us)
    return True


def quorum_lost(world: LeadingWorld) -> bool:
    """etcd does nothing for a while."""
    world.etcd.lose_quorum(world.clock.rng.choice(world.times.away_us))
    return True


def quota_full(world: LeadingWorld) -> bool:
    """etcd stores nothing until somebody makes room."""
    store = world.etcd.store
    store.is_full = store.was_full = True
    world.clock.after(world.clock.rng.choice(world.times.away_us), setattr, store, "is_full", False)
    return True


def answers_lost(world: LeadingWorld) -> bool:
    """F15: what was done is not answered, or its connection breaks."""
    return _weather(world, lost=0.3, broken=0.2)


def requests_late(world: LeadingWorld) -> bool:
    """F16: what is repeated is done again, after others."""
    return _weather(world, late=0.3, lost=0.1)


def _weather(world: LeadingWorld, **harms: float) -> bool:
    weather = world.etcd.faults.weather
    for name, value in harms.items():
        setattr(weather, name, value)
        world.clock.after(world.clock.rng.choice(world.times.away_us), setattr, weather, name, 0.0)
    return True


def leases_late(world: LeadingWorld) -> bool:
    """etcd looks at leases seldom."""
    world.etcd.faults.late_leases = 0.95
    return True


def watches_end(world: LeadingWorld) -> bool:
    """Of all standbys, or they fall silent; and what they lack may be compacted."""
    rng = world.clock.rng
    for stream in list(world.etcd.watches):
        if rng.random() < 0.5:
            stream.is_silent = True
        else:
            world.etcd.end_watch(stream)
    if rng.random() < 0.5:
        world.clock.after(rng.randint(0, 500_000), world.etcd.compact)
    return bool(world.etcd.watches)


def colleagues_cut_off(world: LeadingWorld) -> bool:
    """F17: coordinators do not hear each other."""
    names = [one.name for one in world.several.all]
    return _hold(world, [pair for pair in product(names, names) if pair[0] != pair[1]])


def targets_cut_off(world: LeadingWorld) -> bool:
    """F17: the leader and some targets, or all, one way or both."""
    leader, rng = world.several.leader, world.clock.rng
    if leader is None:
        return False
    names = [str(name) for name in world.targets]
    some = rng.sample(names, rng.choice([1, len(names) // 2, len(names)]))
    return _hold(world, _ways(world, leader.name, some))


def clients_cut_off(world: LeadingWorld) -> bool:
    """F17: the leader and ranks, one way or both."""
    leader = world.several.leader
    ranks = [rank.name for rank in world.ranks if rank.up]
    pairs = _ways(world, leader.name, ranks) if leader else []
    return bool(leader and ranks) and _hold(world, pairs, CUT_US_MAX)


def _ways(world: LeadingWorld, one: str, others: list[str]) -> list[tuple[str, str]]:
    way = world.clock.rng.randrange(3)
    there, back = [(one, each) for each in others], [(each, one) for each in others]
    return (there, back, there + back)[way]


def _hold(world: LeadingWorld, pairs: list[tuple[str, str]], most_us: int = 60_000_000) -> bool:
    for_us = min(world.clock.rng.choice(world.times.away_us), most_us)
    for one, other in pairs:
        world.network.hold(one, other, world.clock.now_us + for_us)
    return True


def clocks_jump(world: LeadingWorld) -> bool:
    """F26: each wall clock by an hour, this way or that."""
    for one in world.several.all:
        one.jump(world.clock.rng.choice([-HOUR_S, HOUR_S]))
    return True


# --------------------------------------------------------------------------- at one transaction


def at_a_transaction(world: LeadingWorld) -> bool:
    """F12: somebody is struck around the next one that stores an entry of some kind."""
    aim(world, world.clock.rng.choice(KINDS))
    return True


def at_a_takeover(world: LeadingWorld) -> bool:
    """The leader is killed, and its successor is struck around its first transaction."""
    aim(world, TAKING)
    return leader_killed(world)


def aim(world: LeadingWorld, kind: str) -> None:
    """Strike somebody around the next one that stores an entry of this kind."""
    how = world.clock.rng.choice(list(AIMED))
    before, after = AIMED[how]

    def strike(request: Request, then: Callable[[LeadingWorld, Request], bool]) -> bool:
        if not is_of(request, kind):
            return False
        world.etcd.before = world.etcd.after = lambda _request: False
        world.aims[how] = world.aims.get(how, 0) + 1
        return then(world, request)

    if before is not None:
        world.etcd.before = lambda request: strike(request, before)
    if after is not None:
        world.etcd.after = lambda request: strike(request, after)


def _kill_writer(world: LeadingWorld, request: Request) -> bool:
    _down(world, _writer(request))
    return False


def _kill_unheard(world: LeadingWorld, request: Request) -> bool:
    _down(world, _writer(request))
    return True


def _lose(world: LeadingWorld, request: Request) -> bool:
    return True


def _break_for_long(world: LeadingWorld, request: Request) -> bool:
    """Whichever member it asks again."""
    for_us = world.clock.rng.choice([20_000, 300_000, 1_500_000])
    world.etcd.faults.breaking[request.asker.name] = world.clock.now_us + for_us
    return False


def _pause_writer(world: LeadingWorld, request: Request) -> bool:
    _writer(request).stop(world.clock.rng.choice(world.times.away_us))
    return False


def _done_late(world: LeadingWorld, request: Request) -> bool:
    """Long after it was repeated, and its successors were done."""
    world.clock.after(world.clock.rng.choice([2_500_000, 5_000_000]), world.etcd.do, request)
    return True


def _done_late_by_the_dead(world: LeadingWorld, request: Request) -> bool:
    """Its writer is killed, and it is done when another one leads."""
    _down(world, _writer(request))
    return _done_late(world, request)


def _no_quorum_after(world: LeadingWorld, request: Request) -> bool:
    world.etcd.lose_quorum(world.clock.rng.choice(world.times.away_us))
    return True


def _lease_ends(world: LeadingWorld, request: Request) -> bool:
    """Before it is done the leader's key goes, as it does where leases run fast."""
    for lease in list(world.etcd.store.leases):
        world.etcd.store.expire(lease)
    world.etcd._tell_watches()
    return False


def _writer(request: Request) -> CoordinatorProcess:
    assert isinstance(request.asker, CoordinatorProcess)
    return request.asker


Aimed = Callable[[LeadingWorld, Request], bool]
AIMED: dict[str, tuple[Aimed | None, Aimed | None]] = {
    "killed before": (_kill_unheard, None),
    "killed on the way": (_kill_writer, None),
    "killed after": (None, _kill_unheard),
    "answer lost": (None, _lose),
    "connections break": (None, _break_for_long),
    "paused before": (_pause_writer, None),
    "paused after": (None, _pause_writer),
    "done late": (_done_late, None),
    "done late by the dead": (_done_late_by_the_dead, None),
    "no quorum after": (None, _no_quorum_after),
    "lease ends before": (_lease_ends, None),
}

STRIKES: dict[str, Callable[[LeadingWorld], bool]] = {
    "leader killed": leader_killed,
    "leader terminated": leader_terminated,
    "leader steps down": leader_steps_down,
    "leader paused": leader_paused,
    "leader paused often": leader_paused_often,
    "standby killed": standby_killed,
    "all killed": all_killed,
    "etcd cut off": etcd_cut_off,
    "standby cut off": standby_cut_off,
    "quorum lost": quorum_lost,
    "quota full": quota_full,
    "answers lost": answers_lost,
    "requests late": requests_late,
    "leases late": leases_late,
    "watches end": watches_end,
    "colleagues cut off": colleagues_cut_off,
    "targets cut off": targets_cut_off,
    "clients cut off": clients_cut_off,
    "clocks jump": clocks_jump,
    "at a transaction": at_a_transaction,
    "at a takeover": at_a_takeover,
    "at a transaction, again": at_a_transaction,
    "at a transaction, often": at_a_transaction,
    "quota full, again": quota_full,
}
TAKES_OVER = (
    "leader killed", "leader terminated", "leader steps down", "leader paused", "etcd cut off",
    "quorum lost", "at a takeover", "at a transaction",
)  # fmt: skip
"""What may bring another one to lead: one of them strikes in each history, in its phase."""
ONCE = frozenset({"clients cut off"})
"""Twice in a row may be longer than a stager may be away: then its attempt ends."""
HEARD = frozenset({"targets cut off", "quota full", "quota full, again"})
"""Who saves must hear of it: of a leader that reaches no target, and of an etcd without room."""
