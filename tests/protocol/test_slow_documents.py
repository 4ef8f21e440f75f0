"""A target that takes many times what others take for a small document is a last choice then."""

from __future__ import annotations

from ckpt.base.ids import TargetId
from ckpt.format.messages.targets import PutDocument, Reserve
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.cluster.slowness import SLOW_US
from ckpt.protocol.coordinator.keeping.documents import PATIENCE_US
from tests.protocol.coordinating import SECOND_US, Bench, ready

PATIENCE_S = PATIENCE_US / SECOND_US


def slow_targets(bench: Bench) -> list[str]:
    known = candidates_of(bench.machine.members)
    return [one.target for one in known if one.slow]


def one_late(bench: Bench, others_s: float) -> str:
    """Who is asked for the index last has not answered when the save is committed."""
    (rank,) = ready(bench)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    rank.certify()
    asked = [id for id, target in bench.targets.items() if target.unanswered]
    *prompt, late = asked
    bench.tick(others_s)
    for id in bench.targets:
        if id != late:
            bench.let_answer(id)
    assert prompt
    bench.tick(others_s + 0.1)
    assert bench.states() == {"run@1#1.1": "committed"}
    return late


def test_a_target_that_got_company_and_then_took_far_longer_is_slow() -> None:
    bench = Bench()
    late = one_late(bench, 0.01)
    assert slow_targets(bench) == []
    bench.tick(PATIENCE_S)
    bench.let_answer(late)
    assert slow_targets(bench) == [late]


def test_one_that_answers_within_the_patience_is_not() -> None:
    bench = Bench()
    late = one_late(bench, 0.01)
    bench.tick(PATIENCE_S / 2)
    bench.let_answer(late)
    assert slow_targets(bench) == []


def test_one_that_was_slow_gets_no_document_while_others_are_there_and_columns_again() -> None:
    """It is the least loaded: else documents find it slow again, and all ranks wait for that."""
    bench = Bench(5)
    bench.machine.members.note_slow(TargetId("t0"))
    bench.tick(SLOW_US / SECOND_US)
    assert slow_targets(bench) == []
    bench.save(1)
    assert bench.asked("t0", PutDocument) == []
    assert bench.asked("t0", Reserve)
