"""A crowd asks at once, and hears at once that it asked in vain: each costs the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from ckpt.base.ids import Rank, Step, TargetId
from ckpt.base.units import MiB
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import ConfirmLoad, Resolve, Resolved
from ckpt.format.messages.targets import Attest
from ckpt.protocol.coordinator import confirming
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.events import CloseSession, Received, Send
from tests.calls import counted
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_confirming import decide

FEW, MANY = 100, 800
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


def calls_to_meet(count: int) -> int:
    """All ranks of a launch load a step by its number that was saved again since."""
    bench = Bench()
    bench.save(1)
    sessions = [bench.session() for _ in range(count)]
    for rank, session in enumerate(sessions):
        bench.tell(session, JoinLaunch(RUN, "load", Rank(rank), count, f"p/{rank}"))
    (launch,) = {joined.launch for joined in bench.sent(LaunchJoined)[-count:]}

    def load(turn: int, by: int = count) -> None:
        for rank, session in enumerate(sessions[:by]):
            asked = Resolve(RUN, Step(1), launch, Rank(rank), count, turn=turn)
            bench.feed(Received(bench.now_us, session, 10 + turn, asked))

    load(1)
    (first,) = {one.info.checkpoint for one in bench.sent(Resolved)}
    for rank, session in enumerate(sessions):
        bench.tell(session, ConfirmLoad(RUN, launch, Rank(rank), 1, first, 0, Step(1)))
    again = bench.save(1, key="other")
    mark = bench.mark()
    _, calls = counted(lambda: load(2, count - 1))
    assert bench.sent(Resolved, mark) == [], "the last one may want the older"
    load(2)
    assert {one.info.checkpoint for one in bench.sent(Resolved, mark)} == {again}
    return calls


def test_a_crowd_that_meets_in_a_newer_generation_is_not_looked_at_whole_by_each() -> None:
    few, many = (calls_to_meet(count) / count for count in (20, 160))
    assert many < 1.2 * few


def test_who_asks_for_more_than_can_wait_for_its_confirmation_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirming, "HELD_COUNT_MAX", 2)
    bench = unconfirmed()
    patient, session = bench.session(), bench.session()
    bench.tell(patient, STEPS)
    assert bench.tell(session, STEPS) == []
    mark = bench.mark()
    assert bench.tell(session, STEPS) == []
    assert bench.log[mark:] == [
        CloseSession(session, "too much waits for the targets to confirm it")
    ]
    for id in bench.targets:
        bench.let_answer(id)
    assert [type(one) for one in bench.to(patient)] == [Answer]


def test_a_bulk_that_nobody_asked_for_is_not_kept_with_a_question() -> None:
    """Eight MiB with each of thousands would be the coordinator's end."""
    bench = unconfirmed()
    tracemalloc.start()
    try:
        for _ in range(4):
            bench.feed(Received(bench.now_us, bench.session(), 1, STEPS, bytearray(MiB)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < MiB
