"""What a target does not seal."""

from __future__ import annotations

from ckpt.format.messages.hello import Failed
from ckpt.format.messages.writing import ColumnSealed
from tests.protocol.target_world import WRITER, Column, TargetWorld, reserve, write


def test_a_column_with_a_hole_is_refused_once_and_nothing_of_it_stays() -> None:
    world, column = TargetWorld(), Column()
    stripes = list(range(column.layout.stripe_count))
    reserve(world, column)
    write(world, column, stripes=stripes[:1] + stripes[2:])
    world.messages(WRITER)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    answers = [m for m in world.messages(WRITER) if isinstance(m, Failed | ColumnSealed)]
    (failed,) = answers
    assert isinstance(failed, Failed)
    assert "1 stripes never came" in failed.message
    assert world.machine.column_count == 0
    assert world.disk.list_directory("columns") == []
