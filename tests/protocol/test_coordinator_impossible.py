"""What no honest peer says is refused, and changes nothing: no number stops the coordinator."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.drains import (
    BeginParts,
    DrainNoted,
    EndDrain,
    OpenStore,
    RenewDrain,
    TellStored,
    encode_parts,
    encode_stored,
)
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.keeping.drain_jobs import PARTS_MAX
from ckpt.protocol.coordinator.reading.answers import StatusView
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_draining import URL, WorkerFake, part

NO_COLUMN = 1 << 63
"""The first number that a column of a SQL table does not take."""
HUGE = (1 << 64) - 1
"""The last that a frame takes."""


def refused(bench: Bench, answers: list[Message], mark: int) -> bool:
    """It was, and nothing was stored for it."""
    (failed,) = answers
    is_stored = any(isinstance(action, Persist) for action in bench.log[mark:])
    return isinstance(failed, Failed) and failed.code == "refused" and not is_stored


def status(bench: Bench) -> StatusView:
    """As a command reads it."""
    return msgspec.convert(bench.ask("status"), StatusView)


# --------------------------------------------------------------------------- workers that drain


@pytest.mark.parametrize(
    "policy", [{"every": 0}, {"every": -1}, {"every": NO_COLUMN}, {"keep": 0}, {"keep": HUGE}]
)
def test_a_store_s_counts_are_such_as_can_be_kept(policy: dict[str, int]) -> None:
    bench = Bench()
    session, mark = bench.session(Role.DRAIN), bench.mark()
    opened = OpenStore(URL, "a", **policy)  # type: ignore[arg-type]
    assert refused(bench, bench.tell(session, opened), mark)
    assert status(bench).stores == ()


@pytest.mark.parametrize("step", [-1, NO_COLUMN, HUGE])
@pytest.mark.parametrize("generation", [Generation(1, 1), Generation(1, NO_COLUMN)])
def test_a_store_holds_no_generation_that_cannot_be(step: int, generation: Generation) -> None:
    bench = Bench()
    worker = WorkerFake(bench)
    mark = bench.mark()
    found = encode_stored([(Step(step), generation)])
    assert refused(bench, bench.tell(worker.session, TellStored(URL, "a", RUN), found), mark)
    ended = EndDrain(URL, "a", CheckpointId(RUN, Step(step), generation))
    assert refused(bench, bench.tell(worker.session, ended), mark)


def test_a_store_holds_nothing_of_what_is_no_run() -> None:
    bench = Bench()
    worker = WorkerFake(bench)
    told = TellStored(URL, "a", RunName("run@1"))
    mark = bench.mark()
    one = encode_stored([(Step(1), Generation(1, 1))])
    assert refused(bench, bench.tell(worker.session, told, one), mark)


@pytest.mark.parametrize(("count", "done"), [(-1, ()), (PARTS_MAX + 1, ()), (2, (2,)), (2, (-1,))])
def test_a_plan_that_cannot_be_is_refused_and_the_right_one_counts_then(
    count: int, done: tuple[int, ...]
) -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    assert worker.lease() == id
    mark = bench.mark()
    begun = bench.tell(worker.session, BeginParts(URL, "a", id, count), encode_parts(done))
    assert refused(bench, begun, mark)
    assert isinstance(worker.begin(id, 4), DrainNoted)
    assert worker.take(id) == part(0)


@pytest.mark.parametrize("rate", [nan, inf, -inf])
def test_a_rate_that_is_none_is_not_shown(rate: float) -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    assert worker.lease() == id
    worker.renew(id, 5, 1.5)
    assert status(bench).stores[0].bytes_per_s == 1.5
    (noted,) = bench.tell(worker.session, replace(RenewDrain(URL, "a", id, 5), bytes_per_s=rate))
    assert isinstance(noted, DrainNoted)
    assert status(bench).stores[0].bytes_per_s == 0.0
