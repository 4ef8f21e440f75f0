"""What a worker has made, and is about to go, counts nothing."""

from __future__ import annotations

from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.targets import Attest, DropColumn
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_repairing import AFTER_S, LOOK_S, Worker, holders, missing


def test_a_copy_that_is_about_to_go_is_not_named() -> None:
    """Its target said that it is there before it heard that it goes; then the other one was away
    again.
    """
    bench = Bench(5)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    bench.stop(lost.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    (made,) = [bench.targets[place] for place in worker.places]
    reader = bench.session()
    (resolved,) = bench.tell(reader, Resolve(RUN, id.step))
    assert isinstance(resolved, Resolved)
    bench.start(lost)
    bench.stop(made.id)
    bench.start(made)  # It lists the copy, which the reader may know.
    made.silent |= {Attest, DropColumn}
    bench.tick()
    bench.tell(reader, ReleasePin(resolved.pin))
    assert [type(send.message) for send in made.unanswered] == [Attest, DropColumn]
    bench.stop(lost.id)
    mark = bench.mark()
    bench.let_answer(made.id)
    bench.tick(AFTER_S)
    assert not made.columns
    assert (missing(bench, id), bench.story(mark, ColumnsMoved)) == (1, [])
