"""Checkpoints in the catalog: a row of each generation that is open, committed or gone."""

from __future__ import annotations

import sqlite3
from dataclasses import fields
from operator import index
from typing import Final

from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, RunName, Step
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage, CatalogRow

SCHEMA: Final = """
CREATE TABLE checkpoint (
    run TEXT NOT NULL, step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    state TEXT NOT NULL, launch INTEGER NOT NULL, launch_key TEXT, world_size INTEGER NOT NULL,
    record BLOB NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (run, step, term, counter));
"""
KEY: Final = "run = ? AND step = ? AND term = ? AND counter = ?"
_ROW_FIELDS: Final = "state, launch, launch_key, world_size, record, reason"
FROM_SCHEMA_1: Final = f"""
ALTER TABLE checkpoint RENAME TO checkpoint_1;
{SCHEMA}
INSERT INTO checkpoint SELECT run, step, term, counter, {_ROW_FIELDS} FROM checkpoint_1;
DROP TABLE checkpoint_1;
"""
"""That had a placement in each row."""


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image, by run, step and generation."""
    for run, step, term, counter, *rest in connection.execute(
        f"SELECT run, step, term, counter, {_ROW_FIELDS} FROM checkpoint"
        " ORDER BY run, step, term, counter"
    ):
        checkpoint = checkpoint_of(run, step, term, counter)
        image.rows[checkpoint] = _row(checkpoint, rest)


def insert(connection: sqlite3.Connection, row: CatalogRow) -> None:
    """Insert a row that is new, or takes the place of another."""
    connection.execute(
        "INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key_of(row.checkpoint), *_values(row)),
    )


def move(connection: sqlite3.Connection, checkpoint: CheckpointId, entry: CatalogEntry) -> None:
    """Fold the entry into the stored row; writes only the fields that changed."""
    key = key_of(checkpoint)
    found = connection.execute(f"SELECT {_ROW_FIELDS} FROM checkpoint WHERE {KEY}", key).fetchone()
    if found is None:
        raise KeyError(f"{checkpoint} was never opened")
    before = _row(checkpoint, list(found))
    image = CatalogImage(0, {checkpoint: before})
    image.apply(entry)
    changed = [
        (name, value)
        for name, value, old in zip(
            _ROW_FIELDS.split(", "), _values(image.rows[checkpoint]), _values(before), strict=True
        )
        if value != old
    ]
    if changed:
        setters = ", ".join(f"{name} = ?" for name, _ in changed)
        connection.execute(
            f"UPDATE checkpoint SET {setters} WHERE {KEY}",
            (*(value for _, value in changed), *key),
        )


def forget(connection: sqlite3.Connection, checkpoint: CheckpointId) -> None:
    """Delete its row."""
    connection.execute(f"DELETE FROM checkpoint WHERE {KEY}", key_of(checkpoint))


def checkpoint_of(run: str, step: int, term: int, counter: int) -> CheckpointId:
    """What the four columns of a key name. Raises TypeError for what is no number."""
    numbers = map(index, (step, term, counter))
    return CheckpointId(RunName(run), Step(next(numbers)), Generation(*numbers))


def key_of(checkpoint: CheckpointId) -> tuple[str, int, int, int]:
    """The inverse, for `KEY`."""
    generation = checkpoint.generation
    return checkpoint.run, checkpoint.step, generation.term, generation.counter


def _row(checkpoint: CheckpointId, values: list[str | int | bytes | None]) -> CatalogRow:
    state, launch, launch_key, world_size, record, reason = values
    assert isinstance(launch, int)
    assert isinstance(world_size, int)
    assert isinstance(record, bytes)
    assert launch_key is None or isinstance(launch_key, str)
    try:
        known = RowState(state)
    except ValueError:
        raise sqlite3.DatabaseError(f"{checkpoint} is in the unknown state {state!r}") from None
    return CatalogRow(
        checkpoint,
        known,
        LaunchNumber(launch),
        launch_key,
        world_size,
        record,
        str(reason),
    )


def _values(row: CatalogRow) -> tuple[str | int | bytes | None, ...]:
    return (
        row.state.value, row.launch, row.launch_key, row.world_size, row.record, row.reason,
    )  # fmt: skip


assert len(_ROW_FIELDS.split(", ")) == len(fields(CatalogRow)) - 1, (
    "the fold's row and the table agree"
)
