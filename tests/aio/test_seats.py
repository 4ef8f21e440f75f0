"""Seats: a young one is safe, ripe ones go by lot, from the source that holds the most."""

from __future__ import annotations

import random
import socket

import pytest

from ckpt.aio.net.serving.seats import BACKLOG, QUEUE_TURN_US, Seats, grace_us, source_of


def seats_of(count: int) -> Seats[int]:
    return Seats(count, random.Random(5))


@pytest.mark.parametrize("count", [1, 16, 128, 2048])
def test_a_full_listen_queue_is_seated_in_its_turn(count: int) -> None:
    rounds = BACKLOG // count
    assert rounds * grace_us(count) <= QUEUE_TURN_US
    assert grace_us(2048) == 250_000


def test_nobody_goes_while_all_seats_are_young() -> None:
    seats = seats_of(4)
    for who in range(4):
        seats.take(who, "a", at_us=10 * who)
    assert seats.is_full
    assert seats.victim(seats.grace_us - 1) is None
    assert seats.ripe_in_us(seats.grace_us - 1) == 1
    assert seats.victim(seats.grace_us) == 0
    assert seats.ripe_in_us(seats.grace_us) == 0


def test_a_seat_that_is_left_is_free_once_and_is_drawn_no_more() -> None:
    seats = seats_of(64)
    for who in range(64):
        seats.take(who, f"s{who % 3}", at_us=0)
    assert seats.victim(seats.grace_us) is not None
    for who in range(1, 64):
        assert seats.leave(who)
        assert not seats.leave(who)
    assert len(seats) == 1
    assert {seats.victim(seats.grace_us) for _ in range(100)} == {0}
    assert seats.leave(0)
    assert seats.victim(seats.grace_us) is None


def test_the_fullest_source_gives_way_to_a_lonely_one() -> None:
    seats = seats_of(256)
    seats.take(0, "honest", at_us=0)
    for who in range(1, 256):
        seats.take(who, f"crowd{who % 4}", at_us=0)
    # A few are drawn: that all of them were the honest one's seat is out of the question.
    assert 0 not in {seats.victim(seats.grace_us) for _ in range(5000)}


def test_among_equals_the_lot_decides() -> None:
    seats = seats_of(16)
    for who in range(16):
        seats.take(who, f"source{who}", at_us=0)
    assert {seats.victim(seats.grace_us) for _ in range(2000)} == set(range(16))


def test_a_source_is_an_address_a_network_or_the_path() -> None:
    assert source_of(socket.AF_UNIX, "") == "unix"
    assert source_of(socket.AF_INET, ("10.0.0.7", 1)) == "10.0.0.7"
    assert source_of(socket.AF_INET6, ("::ffff:10.0.0.7", 1, 0, 0)) == "10.0.0.7"
    ours = {source_of(socket.AF_INET6, (f"2001:db8:1:2::{n:x}", 1, 0, 0)) for n in (1, 2, 0xFFFF)}
    assert ours == {"2001:db8:1:2::/64"}
    assert source_of(socket.AF_INET6, ("fe80::1%eth0", 1, 0, 2)) == "fe80::/64"
