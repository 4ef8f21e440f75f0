"""What people ask of steps waits for targets that are on their way after a coordinator's start."""

from __future__ import annotations

import msgspec
import pytest

from ckpt.base.ids import Step, TargetId
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import ListHoldings
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.reading.answers import ShowView, StepView
from ckpt.protocol.events import Send, Session
from tests.protocol.coordinating import RUN, SECOND_US, Bench

GATHERING_S = GATHERING_US / SECOND_US
STEPS, SHOW = Ask("steps", RUN), Ask("show", RUN, Step(1))


def begun(*targets: str) -> Bench:
    """Step 1 has a column on each of three targets; a coordinator starts, and these come."""
    bench = Bench(3)
    bench.save(1)
    bench.restart(*targets)
    bench.tick()
    assert bench.machine.vouching.serves
    return bench


def asked(bench: Bench, question: Ask) -> Session:
    session = bench.session()
    bench.tell(session, question)
    return session


def columns_missing(bench: Bench, session: Session) -> list[int]:
    """Of each answer, as it says of step 1."""
    sends = [one for one in bench.log if isinstance(one, Send) and one.session == session]
    missing = []
    for send in sends:
        assert isinstance(send.message, Answer), send.message
        try:
            (step,) = msgspec.json.decode(send.bulk, type=tuple[StepView, ...])
        except msgspec.ValidationError:
            (step,) = msgspec.json.decode(send.bulk, type=ShowView).generations
        missing.append(step.columns_missing)
    return missing


@pytest.mark.parametrize("question", [STEPS, SHOW])
def test_a_step_is_answered_once_its_last_target_has_come(question: Ask) -> None:
    bench = begun("t0", "t1")
    session = asked(bench, question)
    bench.tick(GATHERING_S / 2)
    assert columns_missing(bench, session) == []
    bench.start("t2")
    bench.tick()
    assert columns_missing(bench, session) == [0]


def test_a_step_is_answered_once_the_target_that_came_has_listed_what_it_holds() -> None:
    bench = begun("t0", "t1")
    bench.targets[TargetId("t2")].silent.add(ListHoldings)
    bench.start("t2")
    session = asked(bench, STEPS)
    bench.tick(1)
    assert columns_missing(bench, session) == []
    bench.let_answer("t2")
    bench.tick()
    assert columns_missing(bench, session) == [0]


def test_a_target_that_does_not_come_is_waited_for_as_long_as_targets_are_given_to_come() -> None:
    bench = begun("t0", "t1")
    session = asked(bench, STEPS)
    bench.tick(GATHERING_S)
    assert columns_missing(bench, session) == [1]
    assert columns_missing(bench, asked(bench, STEPS)) == [1], "it is waited for once"


def test_a_target_that_went_is_not_waited_for() -> None:
    bench = begun("t0", "t1", "t2")
    bench.stop("t2")
    assert columns_missing(bench, asked(bench, STEPS)) == [1]


def test_what_speaks_of_no_target_that_is_to_come_is_answered_at_once() -> None:
    bench = Bench(4)
    id = bench.save(1)
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    holders = sorted(checkpoint.targets)
    bench.restart(*holders)
    bench.tick()
    assert columns_missing(bench, asked(bench, STEPS)) == [0]
    runs = bench.ask("runs")
    assert isinstance(runs, list)
    assert [run["latest"] for run in runs] == [1]


def test_who_waits_keeps_the_coordinator_awake_and_is_forgotten_when_it_leaves() -> None:
    bench = begun("t0", "t1")
    tick_us, is_awake = 100_000, bench.machine.asking
    session = asked(bench, STEPS)
    assert is_awake.waits
    assert bench.machine.resting.rest_us(tick_us) == tick_us
    bench.close(session)
    assert not is_awake.waits


def test_who_waits_hears_that_the_catalog_is_old() -> None:
    bench = begun("t0", "t1")
    session = asked(bench, STEPS)
    bench.targets[TargetId("t2")].term_seen = bench.term + 1
    bench.start("t2")
    bench.tick()
    (failed,) = bench.to(session)
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt"
