"""Space that stood when another coordinator led: claimed by its stager it stands again, once."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import LaunchNumber, ReservationId, TargetId
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import ClaimSpace, PayloadPlanned, SpaceStands
from ckpt.format.messages.targets import ReleaseReservation, Reserve
from tests.protocol.coordinating import Bench, RankFake

COLUMNS = 4
"""Of 2+1, and a spare."""


def saved(bench: Bench, step: int = 1, rank: RankFake | None = None) -> RankFake:
    """A rank whose save has committed, so that space stands for its next one."""
    rank = rank or RankFake(bench)
    rank.open(step)
    rank.seal_all()
    rank.certify()
    assert rank.commits()
    return rank


def space_of(rank: RankFake) -> SpaceStands:
    """What the rank heard last; also in a session before this one."""
    return rank.bench.sent(SpaceStands)[-1]


def claim(rank: RankFake, space: SpaceStands, ago_us: int = 0) -> None:
    rank.bench.tell(rank.session, ClaimSpace(rank.launch, rank.rank, space, ago_us))


def held(bench: Bench) -> set[ReservationId]:
    """By all targets."""
    return {each for target in bench.targets.values() for each in target.reservations}


def named(space: SpaceStands | PayloadPlanned) -> set[ReservationId]:
    return {place.reservation for place in (*space.places, *space.spares)}


def standing(bench: Bench) -> set[ReservationId]:
    """What the coordinator holds for next saves."""
    of_all = bench.machine.reservations.standing.all()
    places = [place.reservation for one in of_all for place in one.places]
    assert len(places) == len(set(places)), "no place stands twice"
    return set(places)


def carried(bench: Bench) -> int:
    """What all targets seem to carry, in columns of one payload."""
    return sum(target.load_bytes > 0 for target in bench.machine.members.targets.values())


def test_a_stager_hears_where_space_stands_for_its_next_save() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    assert (space.run, space.code, space.payload_bytes) == (rank.run, "2+1", rank.payload_bytes)
    assert len(named(space)) == COLUMNS
    assert named(space) == held(bench)


def test_without_a_claim_the_next_save_asks_again_and_what_stood_is_held_for_a_minute() -> None:
    bench = Bench()
    rank = saved(bench)
    stood = held(bench)
    bench.restart(*bench.targets)
    rank.reconnect()
    mark = bench.mark()
    rank.open(2)
    assert len(bench.sent(Reserve, mark)) == COLUMNS
    assert len(held(bench)) == 2 * COLUMNS
    rank.seal_all()
    rank.certify()
    bench.tick(61)
    assert stood.isdisjoint(held(bench))


def test_what_is_claimed_stands_again_and_the_next_save_asks_nothing() -> None:
    bench = Bench()
    rank = saved(bench)
    stood = held(bench)
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space_of(rank))
    assert standing(bench) == stood == held(bench)
    assert carried(bench) == COLUMNS
    mark = bench.mark()
    rank.open(2)
    assert bench.sent(Reserve, mark) == []
    assert rank.plan is not None
    assert named(rank.plan) == stood
    bench.tick(61)
    assert held(bench) == stood, "it is no orphan any more"
    rank.seal_all()
    rank.certify()
    assert len(rank.commits()) == 1


def test_a_claim_waits_for_targets_that_are_about_to_come_and_a_save_with_it() -> None:
    bench = Bench()
    rank = saved(bench)
    stood = held(bench)
    bench.restart("t0", "t1", "t2")
    rank.reconnect()
    claim(rank, space_of(rank))
    mark = bench.mark()
    assert rank.open(2) == []
    assert (standing(bench), bench.sent(Reserve, mark)) == (set(), [])
    bench.start("t3")
    bench.tick()
    rank.take_plan()
    assert rank.plan is not None
    assert named(rank.plan) == stood
    assert bench.sent(Reserve, mark) == []


def test_a_save_does_not_wait_long_for_a_target_that_went_too() -> None:
    bench = Bench(5)
    rank = saved(bench)
    stood = held(bench)
    away = space_of(rank).places[0].target
    bench.restart(*(id for id in bench.targets if id != away))
    rank.reconnect()
    claim(rank, space_of(rank))
    rank.open(2)
    bench.tick(1)
    rank.take_plan()
    assert rank.plan is not None
    assert named(rank.plan).isdisjoint(stood)
    left = bench.targets[away].reservations
    assert held(bench) - left == named(rank.plan), "what it had elsewhere went back at once"


def test_a_claim_whose_targets_do_not_come_goes_back_without_a_save() -> None:
    bench = Bench(5)
    rank = saved(bench)
    away = space_of(rank).places[0].target
    bench.restart(*(id for id in bench.targets if id != away))
    rank.reconnect()
    claim(rank, space_of(rank))
    left = bench.targets[away].reservations
    assert held(bench) != left
    bench.tick(10)
    assert held(bench) == left
    bench.start(away)
    bench.tick(61)
    assert held(bench) == set()


def test_what_is_claimed_again_is_counted_once() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    bench.restart(*bench.targets)
    for _ in range(3):
        rank.reconnect()
        claim(rank, space)
    assert standing(bench) == named(space)
    loads = [target.load_bytes for target in bench.machine.members.targets.values()]
    assert max(loads) == min(loads)
    mark = bench.mark()
    rank.open(2)
    assert bench.sent(Reserve, mark) == [], "the session that says so now is the one that counts"
    rank.plan = None
    rank.reconnect()  # Its plan was lost on the way, as far as it knows.
    claim(rank, space)
    assert standing(bench) == set(), "a save has it"


def test_what_a_stager_has_heard_of_is_given_to_no_other() -> None:
    """It may claim it from the next coordinator, and a column belongs to one save."""
    bench = Bench()
    rank = saved(bench)
    stood = held(bench)
    other = RankFake(bench, process="another", key="later")
    other.open(2)
    assert other.plan is not None
    assert named(other.plan).isdisjoint(stood)
    assert held(bench) == named(other.plan), "what stood went back"
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space_of(rank))
    assert standing(bench) == set()


def test_space_of_a_stager_that_comes_in_another_session_is_its_own_once_it_says_so() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    bench.close(rank.session)
    rank.reconnect()
    claim(rank, space)
    mark = bench.mark()
    rank.open(2)
    assert bench.sent(Reserve, mark) == []
    assert rank.plan is not None
    assert named(rank.plan) == named(space)


def test_what_a_stager_of_an_earlier_version_left_serves_whoever_comes() -> None:
    """It has heard nothing, so it claims nothing."""
    bench = Bench(protocol=2)
    rank = RankFake(bench)
    rank.session = bench.session(Role.STAGER, version=2)
    rank.join()
    saved(bench, rank=rank)
    assert bench.sent(SpaceStands) == []
    other = RankFake(bench, process="another", key="later")
    mark = bench.mark()
    other.open(2)
    assert bench.sent(Reserve, mark) == []


def test_a_claim_of_a_launch_that_nobody_joined_takes_nothing() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    bench.restart(*bench.targets)
    stranger = bench.session(Role.STAGER)
    claims = ClaimSpace(LaunchNumber(99), rank.rank, space, 0)
    (failed,) = bench.tell(stranger, claims)
    assert isinstance(failed, Failed)
    rank.reconnect()
    bench.tell(stranger, ClaimSpace(rank.launch, rank.rank, space, 0))
    assert standing(bench) == set()


def test_a_claim_that_no_coordinator_has_said_is_refused() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    bench.restart(*bench.targets)
    rank.reconnect()
    places = space.places
    for wrong in (
        replace(space, places=places[:-1]),
        replace(space, places=(places[0], *places[:-1])),
        replace(space, spares=places[:1]),
        replace(space, cell_bytes=7),
        replace(space, payload_bytes=-1),
        replace(space, code="no code"),
    ):
        said = ClaimSpace(rank.launch, rank.rank, wrong, 0)
        (failed,) = bench.tell(rank.session, said)
        assert isinstance(failed, Failed), wrong
    assert standing(bench) == set()
    claim(rank, space)
    assert standing(bench) == named(space)


def test_a_target_that_is_not_known_any_more_holds_nothing_of_a_claim() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    bench.restart(*bench.targets)
    rank.reconnect()
    removed = replace(space.places[0], target=TargetId("t99"))
    claim(rank, replace(space, places=(removed, *space.places[1:])))
    assert standing(bench) == set()
    assert saved(bench, 2, rank).commits()


def test_a_target_that_began_anew_holds_nothing_of_a_claim() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    lost = bench.targets[space.places[0].target]
    lost.boot, lost.reservations = type(lost.boot)(lost.boot + 100), set()
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space)
    assert standing(bench) == set()
    assert held(bench) == set(), "the rest went back"


def test_claimed_space_goes_back_in_the_end_as_if_nobody_had_come_between() -> None:
    bench = Bench()
    rank = saved(bench)
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space_of(rank), ago_us=300_000_000)
    bench.tick(299)
    assert len(held(bench)) == COLUMNS
    bench.tick(2)
    assert held(bench) == set()


def test_claimed_space_gives_way_to_a_save_that_needs_it() -> None:
    bench = Bench(3)
    rank = saved(bench)
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space_of(rank))
    for one in bench.targets.values():
        one.refuses[Reserve] = Failed("no_space", "full")
        one.on_release = lambda target: target.refuses.clear()
    other = RankFake(bench, run="other")
    other.open(1)
    assert other.plan is not None


def test_claimed_space_of_a_target_that_leaves_is_planned_again() -> None:
    bench = Bench(5)
    rank = saved(bench)
    space = space_of(rank)
    bench.restart(*bench.targets)
    rank.reconnect()
    claim(rank, space)
    gone = space.places[0].target
    bench.stop(gone)
    assert standing(bench) == set()
    mark = bench.mark()
    bench.start(gone)
    assert bench.asked(gone, ReleaseReservation, mark) == [], "as any of an earlier term"
    bench.tick(61)
    assert held(bench) == set()


def test_space_is_claimed_from_one_coordinator_after_another() -> None:
    bench = Bench()
    rank = saved(bench)
    space = space_of(rank)
    for _ in range(3):
        bench.restart(*bench.targets)
        rank.reconnect()
        claim(rank, space)
        assert standing(bench) == named(space) == held(bench)
