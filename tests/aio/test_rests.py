"""Rests grow, begin again, and are no crowd's rests at one moment, forked daemons' neither."""

from __future__ import annotations

import os

import pytest

from ckpt.aio.clock import draw
from ckpt.base.rests import Rests


def test_a_rest_is_twice_the_one_before_up_to_the_longest_and_begins_again() -> None:
    rests = Rests(0.1, 1.0, lambda: 1.0)
    assert [rests.next_s() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    rests.begin_again()
    assert rests.next_s() == pytest.approx(0.1)


def test_a_rest_is_shortened_by_half_at_most() -> None:
    rests = Rests(0.1, 1.0, lambda: 0.0)
    assert [rests.next_s() for _ in range(2)] == pytest.approx([0.05, 0.1])


def test_a_longer_rest_that_was_asked_for_is_shortened_too_and_changes_none_after_it() -> None:
    rests = Rests(0.1, 1.0, lambda: 0.0)
    assert rests.next_s(at_least_s=60.0) == pytest.approx(30.0)
    assert [rests.next_s(at_least_s=0.01) for _ in range(2)] == pytest.approx([0.1, 0.2])


def drawn_by_a_fork() -> str:
    """What a process that is forked from this one draws first."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, repr(draw()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def test_forks_of_one_process_do_not_draw_the_same() -> None:
    """A supervisor forks its targets: they would come back to their coordinator at one moment."""
    assert len({drawn_by_a_fork() for _ in range(4)}) == 4
