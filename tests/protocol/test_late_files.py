"""Writers that come back with a file that is not wanted any more."""

from __future__ import annotations

from ckpt.format import messages as m
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_members import Writer, committed


def test_a_file_that_was_replaced_does_not_come_back_to_who_dropped_it() -> None:
    bench = Bench()
    writer = Writer(bench)
    older, newer = writer.write("x", b"old"), writer.write("x", b"new")
    other = writer.write("y")
    writer.reconnect()
    (answer,) = older.resume()
    assert isinstance(answer, m.Failed)
    assert (answer.code, "discarded" in answer.message) == ("aborted", True)
    for file in (newer, other):
        assert isinstance(file.resume()[0], m.PayloadPlanned)
    committed(writer.commit(newer.checkpoint, newer, other))
