"""Of what goes one way many times each landing runs some, and the next landing others.

Those are seeds, and cases of a campaign, never cases that show something alone. What a landing
leaves out `make soak` runs at the same commit. `CKPT_LANDING=N` is the turn of the Nth commit, as
the Makefile sets it, so that what failed at one can be run again at another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

Test = Callable[..., Any]

IS_LANDING: Final = "CKPT_LANDING" in os.environ
"""Whether make runs the tests."""
LANDING: Final = int(os.environ.get("CKPT_LANDING", "0"))
"""The number of commits."""
PLANTED: Final = 3
"""A bug planted in the simulator shows that its judge sees one, and nothing of the code: each is
tried at one of so many landings.
"""


def turn_of(seeds: int, of: int, every: int = 1) -> int:
    """The first of this landing's seeds, when it runs so many of so many; `every`: as `at_turn`'s,
    where the test has that as well.
    """
    return LANDING // every * seeds % (of - of % seeds)


def examples(most: int) -> int:
    """How many of so many Hypothesis draws of a property at a landing; `make soak` draws all."""
    return most // 4 if IS_LANDING else most


def in_turn(cases: Sequence[object], every: int, first: int = 0) -> list[ParameterSet]:
    """Parameters of a test: each `every`th of the cases has its turn, the others are `slow`. Of a
    test with several parameters a case is a tuple. `first`: the turn of the first case; fewer cases
    than turns leave landings to other tests; where make runs no tests the first one has its turn.
    """
    turn = (LANDING if IS_LANDING else first) % every
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % every == turn else pytest.mark.slow,
        )
        for number, case in enumerate(cases, first)
    ]


def has_turn(number: int, every: int) -> bool:
    """Whether this is that one of each `every` landings; always where make runs no tests."""
    return not IS_LANDING or LANDING % every == number % every


def at_turn(number: int, every: int) -> Callable[[Test], Test]:
    """Of a whole test: it is `slow` where it does not have its turn."""
    return _as_it_is if has_turn(number, every) else pytest.mark.slow


def unmarked(test: Test) -> Test:
    """A test of another file, or of another project's: here it has marks and cases of its own."""

    @wraps(test)
    def own(*given: object, **named: object) -> None:
        test(*given, **named)

    own.pytestmark = []  # type: ignore[attr-defined]
    return own


def _as_it_is(test: Test) -> Test:
    return test
