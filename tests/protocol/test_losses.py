"""A loss in words names its checkpoint once."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.protocol.losses import loss_reason, loss_text
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_judging import harm, report

ID = CheckpointId(RunName("a/run"), Step(7), Generation(1, 4))


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("a/run@7#1.4 rank 0 has 3 damaged columns", "rank 0 has 3 damaged columns"),
        ("a/run@7#1.4 has no index any more", "it has no index any more"),
        ("a/run@3#1.1 rank 0 has 3 damaged columns", "a/run@3#1.1 rank 0 has 3 damaged columns"),
        ("a/run@7#1.41 rank 0 has 3", "a/run@7#1.41 rank 0 has 3"),
        ("why ever", "why ever"),
    ],
)
def test_its_own_name_is_not_repeated_and_a_homes_is_said(reason: str, said: str) -> None:
    assert loss_reason(ID, reason) == said
    assert loss_text(ID, reason) == f"a/run@7#1.4 is lost: {said}"


def test_what_a_load_is_answered_names_a_lost_checkpoint_once() -> None:
    bench = Bench(3)
    first, second = bench.save(1), bench.save(2)
    for column in (0, 1):
        harm(bench, second, column, (0, 100))
    report(bench, second)
    reader = bench.session()
    (answer,) = bench.tell(reader, Resolve(RUN, Step(2)))
    assert isinstance(answer, Failed)
    text = "is lost: rank 0 has 2 damaged columns at one place, 2+1 mends 1"
    assert (answer.code, answer.message) == ("lost", f"{second} {text}")
    (answer,) = bench.tell(reader, Resolve(RUN, None))
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint == first
    assert answer.skipped == (f"{second}: {text.removeprefix('is lost: ')}",)
