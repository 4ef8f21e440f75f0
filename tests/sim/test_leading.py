"""F12, F13, F15, F16, F17, F26 of several coordinators over one etcd: whichever of them dies,
wakes, is cut off or loses its answers, in whichever phase of a save, what was said stays so.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections import Counter
from functools import partial

import pytest

from ckpt.aio import clock
from ckpt.base.limits import LEASE_US, RENEW_US
from ckpt.base.units import US_PER_S
from ckpt.protocol.coordinator.desk import Action
from ckpt.protocol.coordinator.machine import Event
from ckpt.protocol.events import Ticked
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.words import Range
from ckptd.coordinator import contender
from tests.landing import at_turn, in_turn
from tests.sim.leading.campaign import Campaign, run_campaign, run_chunk
from tests.sim.leading.cluster import Request
from tests.sim.leading.effects import simulated
from tests.sim.leading.history import NAMES, run_seed
from tests.sim.leading.strikes import AIMED, STRIKES
from tests.sim.leading.world import LeadingWorld
from tests.sim.oracles import Violation

PARTS = in_turn(range(5), every=5)
SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) * 2 // 5
"""Of each part."""
MANY_SEEDS = 5_000


def _check(found: Campaign) -> None:
    assert not found.failures, found.failures[:5]
    assert all(found.phases[phase] for phase in NAMES), found.phases
    counts = found.counts
    assert all(counts.values()), counts
    assert counts["terms"] > 2 * found.seeds, "leaders are followed by others"
    assert counts["warm"] > counts["terms"] / 2, "by those who stood by"
    assert counts["warm"] < counts["terms"], "and by some whose copy was of no use"


@at_turn(2, every=4)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS)
def test_whoever_leads_what_was_acknowledged_is_there_once(part: int) -> None:
    found = run_chunk(part * SEEDS, SEEDS)
    _check(found)
    # Some may be missed by one part, and another one has them.
    assert len(found.strikes) > 2 * len(STRIKES) / 3, found.strikes
    assert len(found.aims) > len(AIMED) / 3, found.aims


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_so_it_is_in_many_histories() -> None:
    found = run_campaign(100_000, MANY_SEEDS, os.cpu_count() or 1)
    _check(found)
    assert set(found.strikes) == set(STRIKES), found.strikes
    assert set(found.aims) == set(AIMED), found.aims


def test_equal_seeds_run_equally() -> None:
    assert run_seed(5) == run_seed(5)


def test_no_code_of_a_coordinator_asks_the_machine_for_the_time_or_for_luck() -> None:
    """What failed under a seed fails again under it."""
    clocks = (clock.now_us, clock.wall_us, time, time.time, time.monotonic)
    real = (*clocks, clock.draw, random, secrets)
    with simulated():
        asked = [
            f"{room}.{name}"
            for room, module in sorted(sys.modules.items())
            if room.startswith(("ckptd.catalog.etcd.", "ckptd.coordinator."))
            for name, value in vars(module).items()
            if any(value is each for each in real)
        ]
    assert not asked


def _lines_of(world: LeadingWorld, text: str) -> list[dict[str, object]]:
    return [fields for one in world.several.all for said, fields in one.lines if said == text]


def test_a_killed_leader_is_followed_before_its_lease_ends() -> None:
    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        leader = world.several.leader
        assert leader is not None
        leader.crash()
        began_us = world.clock.now_us
        assert world.clock.run(lambda: world.several.up, 5_000_000)
        took_us = world.clock.now_us - began_us
        first, second = _lines_of(world, "leads")
        world.end()
    assert took_us < 1_000_000
    assert Counter([first["term"], second["term"]]) == Counter([1, 2])
    assert second["warm"] == "yes"


def test_a_leader_that_slept_is_deposed_and_follows() -> None:
    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        leader = world.several.leader
        assert leader is not None
        leader.stop(6_000_000)
        world.clock.pass_time(5_000_000)
        successor = world.several.leader
        assert successor is not None
        assert successor is not leader
        assert leader.leads, "as it thinks while it sleeps"
        world.clock.pass_time(3_000_000)
        leads = [one.leads for one in (leader, successor)]
        world.end()
    assert leads == [False, True]


def test_a_leader_of_whom_nobody_wants_anything_is_woken_twice_a_second() -> None:
    """It renews its lease, hears its targets, and ends the lease of one that is silent, in time."""
    with simulated(rests=True):
        world = LeadingWorld.made(1)
        world.start()
        world.clock.pass_time(20 * US_PER_S)
        machine, ticks = world.several.machine, 0
        handle, targets = machine.handle, len(machine.members.live())

        def counted(event: Event) -> list[Action]:
            nonlocal ticks
            ticks += isinstance(event, Ticked)
            return handle(event)

        machine.handle = counted  # type: ignore[method-assign]
        world.clock.pass_time(60 * US_PER_S)
        idle = ticks
        for target in world.targets.values():
            target.stopped = True
        world.clock.pass_time(LEASE_US + RENEW_US + US_PER_S // 5)
        left = len(machine.members.live())
        world.end()
    assert 100 < idle < 150
    assert (targets, left) == (len(world.targets), 0)


def test_a_page_whose_answer_is_lost_is_asked_for_again_soon() -> None:
    """Who comes back has its copy long before another one may have to lead."""
    lost: list[Request] = []

    def loses(request: Request) -> bool:
        is_page = isinstance(request.said, Range) and request.said.limit > 1
        if is_page and request.asker is standby and not lost:
            lost.append(request)
            return True
        return False

    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        standby = next(one for one in world.several.all if not one.leads)
        standby.crash()
        world.etcd.after = loses
        standby.start()
        while not lost:
            world.clock.pass_time(1_000)
        began_us = world.clock.now_us
        while not standby.contender._mirror.revision:
            world.clock.pass_time(50_000)
        took_us = world.clock.now_us - began_us
        world.end()
    assert lost
    assert took_us < 3_000_000


def test_what_was_overwritten_goes_however_short_the_terms_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here after five seconds, of which no term has more than two."""
    monkeypatch.setattr(contender, "RevisionHistory", partial(RevisionHistory, 5.0, 0.5))
    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        began = world.etcd.store.revision
        for _ in range(8):
            leader = world.several.leader
            assert leader is not None
            leader.step_down()
            world.clock.pass_time(2 * US_PER_S)
        terms, compacted = len(_lines_of(world, "leads")), world.etcd.store.compacted
        world.end()
    assert terms == 9
    assert compacted > began


def test_who_renews_its_lease_does_not_say_that_etcd_is_silent() -> None:
    """Only answers about the leader's key are lost: a majority is there."""
    silent: list[str] = []
    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        leader = world.several.leader
        assert leader is not None
        world.etcd.after = lambda request: (
            isinstance(request.said, Range) and request.asker is leader
        )
        for _ in range(100):
            world.clock.pass_time(100_000)
            silent.append(leader.contender.silence)
        still_leads = leader.leads
        world.end()
    assert still_leads
    assert not any(silent)


def test_the_book_knows_a_catalog_that_lacks_what_was_stored() -> None:
    with simulated():
        world = LeadingWorld.made(1)
        world.start()
        world.book.check_keys()
        lost = next(key for key in world.etcd.store.keys if b"target/" in key)
        del world.etcd.store.keys[lost]
        with pytest.raises(Violation, match="etcd has other targets"):
            world.book.check_keys()
        world.end()
