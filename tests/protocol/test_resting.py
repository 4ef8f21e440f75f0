"""How long a machine may be left alone: nothing that is due waits for longer than it may."""

from __future__ import annotations

from ckpt.base.ids import Epoch
from ckpt.base.limits import LEASE_US
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.keeping import KeepSteps, Retention
from ckpt.format.messages.targets import LeaseRenewed, RenewLease
from ckpt.protocol.events import CloseSession, Ticked
from ckpt.protocol.resting import PART_OF_QUIET, REST_US, Resting
from tests.protocol.coordinating import RUN, Bench, RankFake
from tests.protocol.target_world import COORDINATOR, WRITER, Column, TargetWorld, reserve, write

TICK_US = 50_000
QUIET_S = REST_US * PART_OF_QUIET / 1e6 + 1


def rest_of(bench: Bench) -> int:
    return bench.machine.resting.rest_us(TICK_US)


def test_the_longer_nothing_happened_the_longer_one_may_rest() -> None:
    resting = Resting()
    resting.stirred_us = 1_000_000
    assert resting.rest_us(1_000_000, TICK_US) == TICK_US
    assert resting.rest_us(2_600_000, TICK_US) == 200_000
    assert resting.rest_us(60_000_000, TICK_US) == REST_US
    assert resting.rest_us(60_000_000, TICK_US, 60_300_000) == 300_000
    assert resting.rest_us(60_000_000, TICK_US, 59_000_000) == TICK_US


def test_a_coordinator_of_which_nobody_wants_anything_rests() -> None:
    bench = Bench()
    assert rest_of(bench) == TICK_US, "targets have just come"
    bench.tick(QUIET_S)
    assert rest_of(bench) == REST_US, "leases are renewed"
    bench.ask("status")
    person = bench.session()
    assert rest_of(bench) == TICK_US, "somebody came"
    bench.tick(QUIET_S)
    bench.tell(person, Ask("status"))
    assert rest_of(bench) == REST_US, "a question changes nothing"


def test_a_coordinator_is_awake_while_a_save_is_under_way() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(QUIET_S)
    assert rest_of(bench) == TICK_US
    rank.seal_all()
    rank.certify()
    assert rank.commits()
    bench.tick(QUIET_S)
    assert rest_of(bench) == REST_US


def test_a_coordinator_is_awake_while_an_entry_or_an_answer_is_awaited() -> None:
    bench = Bench()
    bench.tick(QUIET_S)
    bench.persist_at_once = False
    bench.tell(bench.session(), KeepSteps(RUN, Retention(last=2)))
    bench.tick(QUIET_S)
    assert rest_of(bench) == TICK_US, "it is not durable"
    bench.persist_at_once = True
    bench.sync()
    bench.tick(QUIET_S)
    assert rest_of(bench) == REST_US


def test_who_rests_ends_a_lease_in_time() -> None:
    bench = Bench()
    bench.tick(QUIET_S)
    silent, *others = bench.targets.values()
    assert silent.session is not None
    renewed_us, session = bench.now_us, silent.session
    ended_us = 0
    # Ticks do not fall on the lease's end by themselves.
    bench.now_us += 4 * TICK_US
    while not ended_us:
        bench.now_us += rest_of(bench)
        for other in others:
            assert other.session is not None
            bench.tell(other.session, other.renewal)
        mark = bench.mark()
        bench.feed(Ticked(bench.now_us))
        closed = [each for each in bench.log[mark:] if isinstance(each, CloseSession)]
        ended_us = bench.now_us if any(each.session == session for each in closed) else 0
    assert LEASE_US <= ended_us - renewed_us <= LEASE_US + TICK_US


def turn(world: TargetWorld) -> int:
    """It is left alone for as long as it may; its renewals, which are answered."""
    world.tick(world.machine.resting.rest_us(TICK_US))
    renewals = sum(isinstance(each, RenewLease) for each in world.messages(COORDINATOR))
    for _ in range(renewals):
        world.tell(COORDINATOR, LeaseRenewed(Epoch(1), None, 0))
    return renewals


def test_a_target_that_nobody_uses_rests_and_renews_its_lease_in_time() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    for _ in range(200):
        turn(world)
    assert world.machine.resting.rest_us(TICK_US) == TICK_US, "a stream is open"
    world.tell(WRITER, column.seal, column.manifest, request=20)
    for _ in range(200):
        turn(world)
    began_us, renewals, turns = world.now_us, 0, 0
    while world.now_us - began_us < 60_000_000:
        renewals += turn(world)
        turns += 1
    assert 57 <= renewals <= 60
    assert turns <= 150
    while not turn(world):
        continue
    world.tick(700_000)
    assert world.machine.resting.rest_us(TICK_US) == 300_000, "the next one is due then"
    reserve(world, Column(column=2), 2)
    assert world.machine.resting.rest_us(TICK_US) == TICK_US, "somebody wants something"
