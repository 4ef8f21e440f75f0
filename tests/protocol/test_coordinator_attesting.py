"""After a restart a file's proofs count as far as its targets still have the columns."""

from __future__ import annotations

import pytest

from ckpt.base.ids import ColumnNumber
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import AttemptCommitted, Certified
from tests.protocol.coordinating import Bench
from tests.protocol.file_writers import File, Writer


def come_back(gone: int) -> tuple[Bench, Writer, File, list[Message]]:
    """What of a file's four columns (2+2) targets said at their start is nothing, what they attest
    is all but so many.
    """
    bench = Bench(6, "2+2")
    writer = Writer(bench)
    file = writer.write("x")
    held = {id: dict(target.columns) for id, target in bench.targets.items()}
    for target in bench.targets.values():
        target.columns.clear()
    bench.restart(*bench.targets)
    for id, columns in held.items():
        kept = {c: proof for c, proof in columns.items() if c.column >= ColumnNumber(gone)}
        bench.targets[id].columns.update(kept)
    writer.reconnect()
    file.resume()
    return bench, writer, file, file.certify()


@pytest.mark.parametrize("gone", [0, 1])
def test_columns_that_stand_count_and_those_that_are_gone_do_not(gone: int) -> None:
    _, writer, file, answers = come_back(gone)
    assert any(isinstance(one, Certified) for one in answers)
    answer = writer.commit(file.checkpoint, file)[-1]
    assert isinstance(answer, AttemptCommitted), answer
    assert answer.info.columns_missing == gone
    assert answer.info.targets_survivable == 2 - gone


def test_a_file_of_which_fewer_than_the_floor_stand_is_discarded() -> None:
    bench, _, file, answers = come_back(2)
    (failed,) = answers
    assert isinstance(failed, Failed)
    assert "was discarded" in failed.message
    assert bench.states() == {str(file.checkpoint): "open"}
