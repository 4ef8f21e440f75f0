"""F12: the leader of a large cluster is killed, or asked to step down: what its successor hears and
does before the first commit, and what that costs a burst in whose middle it happens.
"""

from __future__ import annotations

import faulthandler
from itertools import product

import pytest

from ckpt.erasure.code import Code
from ckpt.format.messages.targets import (
    Attest,
    ColumnsListed,
    HoldingsListed,
    ListHoldings,
    RegisterTarget,
)
from tests.landing import in_turn
from tests.sim.leading.bursts import MOMENTS, Burst, Way, cost
from tests.sim.leading.takeovers import Takeover, takeover

SMALL, WIDE = Code(4, 2), Code(8, 2)
COMMIT_S = 1.5
TAKEOVER_S = 1.0
"""Of virtual time, until all have come; who dials again rests half a second at most, and may search
a moment more, or not look for the successor while it streams."""
LISTED_COLUMN, LISTED_GENERATION, LISTED_FRAME = 24, 40, 300
"""Bytes, of what a target lists; a generation's are those of its documents as well."""
LINES_MORE = 1.1


def _check(found: Takeover, targets: int, generations: int) -> None:
    assert found.commit_s <= COMMIT_S
    frames, sizes = found.frames, found.frame_bytes
    assert frames[RegisterTarget] == frames[ListHoldings] == frames[HoldingsListed] == targets
    assert frames[ColumnsListed] == 0, "no column is proved by itself"
    assert frames[Attest] <= 2 * targets, "its term, and whether it is in force"
    # A target lists a generation once, however many of its columns it has.
    lists = min(targets, found.columns // generations) * generations
    most = LISTED_COLUMN * found.columns + LISTED_GENERATION * lists + LISTED_FRAME * targets
    documents = 3 * 2 * generations * LISTED_GENERATION
    assert sizes[HoldingsListed] <= most + documents


def test_a_successor_hears_each_target_once_and_commits_soon() -> None:
    few, many = (takeover(targets, 50, 20, count_lines=True) for targets in (48, 144))
    _check(few, 48, 50)
    _check(many, 144, 50)
    assert many.lines / 144 <= LINES_MORE * few.lines / 48, "no target costs a look at all others"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_so_it_does_of_a_thousand_targets_and_half_a_million_columns() -> None:
    faulthandler.cancel_dump_traceback_later()  # It takes minutes.
    _check(takeover(1024, 1000, 80), 1024, 1000)


def _check_burst(burst: Burst, moment: str, way: Way = Way.KILLED) -> None:
    usual, struck = cost(burst), cost(burst, moment, way)
    assert struck.takeover_s <= TAKEOVER_S
    assert struck.seconds <= 1.05 * usual.seconds + struck.takeover_s
    assert struck.next_seconds <= 1.2 * usual.next_seconds
    assert struck.sent == 1, "no byte is sent again"
    assert struck.moved == struck.missing == 0


@pytest.mark.parametrize(
    ("code", "moment"),
    in_turn([*product((SMALL,), MOMENTS), *product((WIDE,), list(MOMENTS)[::3])], every=5),
    ids=str,
)
def test_a_burst_takes_a_takeover_longer_and_nothing_is_sent_again(code: Code, moment: str) -> None:
    _check_burst(Burst(16, 12, code, 20), moment)


@pytest.mark.parametrize("moment", in_turn(list(MOMENTS)[::2], every=5))
def test_so_it_does_when_the_leader_is_asked_to_step_down(moment: str) -> None:
    _check_burst(Burst(16, 12, SMALL, 20), moment, Way.ASKED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("code", [SMALL, WIDE], ids=str)
def test_so_it_is_of_a_burst_of_hundreds(code: Code, moment: str, way: Way) -> None:
    faulthandler.cancel_dump_traceback_later()
    _check_burst(Burst(256, 32, code, 10), moment, way)
