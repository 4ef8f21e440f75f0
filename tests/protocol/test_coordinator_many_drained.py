"""A store that has been drained to for a year: what it has is looked up, not walked through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ckpt.base.ids import Generation, Step
from ckpt.format.messages.drains import DrainNoted, TellStored, encode_stored
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_draining import URL, WorkerFake


class Unwalkable(set[tuple[Step, Generation]]):
    """A hundred thousand generations: nobody goes through all of them."""

    def __iter__(self) -> Iterator[tuple[Step, Generation]]:
        raise AssertionError("all that the store has was walked through")


@pytest.mark.parametrize("every", [1, 2])
def test_neither_a_save_nor_a_drained_step_walks_through_what_a_store_has(every: int) -> None:
    bench = Bench(keep=2)
    worker = WorkerFake(bench, every=every)
    stored = {(Step(step), Generation(1, step)) for step in range(1, 100)}
    worker.say(TellStored(URL, worker.name, RUN, 0), encode_stored(stored))
    bench.save(100)
    store = bench.machine.drains.stores[URL]
    store.row.stored[RUN] = store.stored(RUN).generations = Unwalkable(stored)
    drained = []
    for step in range(101, 105):
        bench.save(step)
        if (id := worker.lease()) is not None:
            assert isinstance(worker.end(id), DrainNoted)
            drained.append(id.step)
    assert drained == ([100, 101, 102, 103] if every == 1 else [101, 103])
    assert worker.store()["drained"] == len(drained)
