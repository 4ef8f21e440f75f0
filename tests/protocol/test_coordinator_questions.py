"""A crowd asks at once, and hears at once that it asked in vain: each costs the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import Attest
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.events import Received, Send
from tests.calls import counted
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_confirming import decide

FEW, MANY = 100, 1600
STEPS = Ask("steps", RUN)
IN_VAIN_S = 1 + GATHERING_US / SECOND_US


def unvouched() -> Bench:
    return Bench(targets_live=False)


def unconfirmed() -> Bench:
    bench = Bench()
    for id in bench.targets:
        bench.targets[TargetId(id)].silent.add(Attest)
    return bench


def owing() -> Bench:
    """A commit that the coordinator before has decided waits for a disk."""
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    decide(bench, rank)
    bench.restart(*bench.targets)
    return bench


def calls_in_vain(make: Callable[[], Bench], count: int) -> int:
    """To hear so many sessions, each for itself, and to refuse all of them."""
    bench = make()
    sessions = [bench.session() for _ in range(count)]
    mark = bench.mark()

    def ask() -> None:
        for session in sessions:
            bench.feed(Received(bench.now_us, session, 1, STEPS))
        bench.tick(IN_VAIN_S)

    _, calls = counted(ask)
    sends = [action for action in bench.log[mark:] if isinstance(action, Send)]
    refused = [send.session for send in sends if isinstance(send.message, Failed)]
    assert refused == sessions
    return calls


@pytest.mark.parametrize("make", [unvouched, unconfirmed, owing])
def test_a_crowd_that_asked_in_vain_is_refused_without_a_look_at_each_for_each(
    make: Callable[[], Bench],
) -> None:
    few, many = (calls_in_vain(make, count) / count for count in (FEW, MANY))
    assert many < 1.2 * few
