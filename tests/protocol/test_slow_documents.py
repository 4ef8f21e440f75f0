"""A target that takes many times what others take for a small document is a last choice then."""

from __future__ import annotations

from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.coordinator.keeping.documents import PATIENCE_US
from tests.protocol.coordinating import SECOND_US, Bench, ready

PATIENCE_S = PATIENCE_US / SECOND_US


def slow_targets(bench: Bench) -> list[str]:
    known = bench.machine.members.candidates(last_resort=False)
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
