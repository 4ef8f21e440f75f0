"""What trainers say of a step: kept with the payload, then in the record, judged by `best`."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.keeping import Best, Better, Retention
from ckpt.format.messages.reading import DocumentKind
from tests.protocol.coordinating import RUN, Bench, RankFake
from tests.protocol.test_coordinator_retaining import keep, steps


def save(bench: Bench, step: int, *said: dict[str, float]) -> CheckpointId:
    """A step that so many ranks save, each with what it says."""
    ranks = [
        RankFake(bench, number, len(said), process=f"h/{step}/{number}")
        for number in range(len(said))
    ]
    for rank, metrics in zip(ranks, said, strict=True):
        rank.metrics = metrics
        rank.open(step)
    return committed(bench, ranks)


def committed(bench: Bench, ranks: list[RankFake]) -> CheckpointId:
    for rank in ranks:
        rank.seal_all()
        rank.certify()
    for rank in ranks:
        bench.close(rank.session)
    return ranks[-1].commits()[-1].info.checkpoint


def in_records(bench: Bench, id: CheckpointId) -> list[dict[str, float]]:
    key = (DocumentKind.RECORD, id)
    held = [t.documents[key] for t in bench.targets.values() if key in t.documents]
    return [decode_record(document).info.metrics for document in held]


def test_what_the_lowest_rank_said_that_said_anything_is_in_the_record() -> None:
    bench = Bench()
    id = save(bench, 1, {}, {"loss": 0.5}, {"loss": 0.25, "accuracy": 1.0})
    assert in_records(bench, id) == [{"loss": 0.5}] * 2
    (view,) = bench.ask("steps", RUN)  # type: ignore[misc]
    assert view["metrics"] == {"loss": 0.5}
    assert in_records(bench, save(bench, 2, {}, {}, {})) == [{}] * 2


def test_the_best_steps_stay() -> None:
    bench = Bench()
    keep(bench, Retention(last=1, best=Best("loss", Better.MIN, 2)))
    losses = {1: 0.5, 2: 0.1, 3: 0.9, 4: 0.4, 5: 0.8}
    for step, loss in losses.items():
        save(bench, step, {"loss": loss})
    assert steps(bench) == [2, 4, 5]
    save(bench, 6, {})
    assert steps(bench) == [2, 4, 6]
    bench.restart("t0", "t1", "t2", "t3")
    save(bench, 7, {"loss": 0.05})
    assert steps(bench) == [2, 7]


def test_what_was_said_outlives_the_coordinator_before_the_commit() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.metrics = {"loss": 0.5}
    rank.open(1)
    assert rank.plan is not None
    id = rank.plan.payload.checkpoint
    bench.restart("t0", "t1", "t2", "t3")
    rank.reconnect()
    rank.resume(1, id)
    assert in_records(bench, committed(bench, [rank])) == [{"loss": 0.5}] * 2


@pytest.mark.parametrize("bad", [{"loss": float("nan")}, {"": 0.0}, {"x": 0.0, "a\tb": 0.0}])
def test_what_cannot_be_in_a_record_is_refused_and_opens_nothing(bad: dict[str, float]) -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.metrics = bad
    (answer,) = rank.open(1)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert bench.states() == {}
