"""What a target does not seal, and what becomes of it."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.ids import ColumnId, ColumnNumber
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import DropColumn, DropGeneration, Dropped
from ckpt.format.messages.writing import ColumnSealed
from ckpt.testing.disk import Fault
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    WRITER,
    Column,
    TargetWorld,
    reserve,
    write,
)


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


def failed_after_its_rename() -> tuple[TargetWorld, Column]:
    """A crash may bring the column back: it has its name."""
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    while not world.disk.list_directory("columns"):
        world.step()
    world.disk.sync_directory("columns")
    world.disk.faults.append(Fault("sync_directory"))
    while world.held:
        world.step()
    assert not any(isinstance(each, ColumnSealed) for each in world.messages(WRITER))
    assert world.disk.durable_names("columns") != []
    return world, column


def dropped(world: TargetWorld, message: DropGeneration | DropColumn) -> list[str]:
    """Names that are there for good when it was answered."""
    assert world.held is not None
    world.tell(COORDINATOR, message)
    while world.held:
        assert world.messages(COORDINATOR) == []
        world.step()
    assert [type(each) for each in world.messages(COORDINATOR)] == [Dropped]
    return world.disk.durable_names("columns")


def test_a_drop_takes_along_what_a_failed_seal_may_have_named() -> None:
    """Another seal had synced the name; it was said to be gone while a crash could bring it back
    (seed 1561527).
    """
    world, _ = failed_after_its_rename()
    assert dropped(world, DropGeneration(1, CHECKPOINT)) == []


@pytest.mark.parametrize("is_other", [False, True])
def test_a_drop_of_one_column_takes_along_what_its_own_failed_seal_may_have_named(
    is_other: bool,
) -> None:
    world, column = failed_after_its_rename()
    number = ColumnNumber(column.id.column + is_other)
    before = world.disk.durable_names("columns")
    after = dropped(world, DropColumn(1, ColumnId(column.id.payload, number)))
    assert after == (before if is_other else [])
