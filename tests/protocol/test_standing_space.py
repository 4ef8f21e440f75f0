"""Space that waits for the next save: as much as one save needs,
whatever the shapes of those before.
"""

from __future__ import annotations

from ckpt.format.messages.targets import ReleaseReservation
from tests.protocol.coordinating import Bench, RankFake

SPARES = 1


def save(rank: RankFake, step: int, payload_bytes: int) -> None:
    rank.payload_bytes = payload_bytes
    rank.open(step)
    rank.seal_all()
    rank.certify()


def held(bench: Bench) -> int:
    """Reservations on all targets."""
    return sum(len(target.reservations) for target in bench.targets.values())


def standing(bench: Bench) -> int:
    """Reservations that wait for a next save."""
    return sum(len(each.places) for each in bench.machine.reservations.standing.all())


def test_a_state_that_grows_with_every_save_leaves_no_trail_of_reservations() -> None:
    bench = Bench()
    rank = RankFake(bench)
    for step in range(1, 9):
        save(rank, step, 10_000 * step)
    assert len(rank.commits()) == 8
    assert held(bench) == bench.policy.code.n + SPARES
    assert standing(bench) == held(bench)


def test_a_save_gives_back_only_what_did_not_become_a_column() -> None:
    bench = Bench()
    rank = RankFake(bench)
    save(rank, 1, 10_000)
    plan = rank.plan
    assert plan is not None
    given_back = [message.reservation for message in bench.sent(ReleaseReservation)]
    assert given_back == [spare.reservation for spare in plan.spares]
    assert held(bench) == standing(bench)


def test_a_save_of_the_shape_of_the_one_before_takes_the_standing_space() -> None:
    bench = Bench()
    rank = RankFake(bench)
    save(rank, 1, 10_000)
    standing = {id: set(target.reservations) for id, target in bench.targets.items()}
    rank.open(2)
    for place in rank.places().values():
        assert place.reservation in standing[place.target]


def test_targets_of_one_device_that_are_full_together_are_no_space() -> None:
    bench = Bench(max_per_domain=4)
    rank = RankFake(bench)
    for target in bench.targets.values():
        target.domain = "p/r/h0/d0"
        bench.stop(target.id)
        target.bytes_free = 50_000  # Enough for one column, not for three.
        bench.start(target)
    bench.tick()
    rank.payload_bytes = 40_000
    rank.open(1)
    assert [abort.code for abort in rank.aborts()] == ["no_space"], rank.heard
