"""Which table does a catalog's entry go into?"""

from __future__ import annotations

import sqlite3

from ckpt.protocol.coordinator.catalog import (
    AttemptOpened,
    CatalogEntry,
    CatalogOutdated,
    CatalogReached,
    CheckpointDeleted,
    CheckpointLabeled,
    CheckpointTombstoned,
    ColumnsMoved,
    LabelsSent,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    LaunchResolved,
    RowForgotten,
    StepForgotten,
    TargetSeen,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import (
    RepairSaid,
    RetentionSaid,
    TargetsGrouped,
    UpgradeFinished,
)
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
)
from ckptd.catalog import (
    checkpoint_tables,
    drain_tables,
    label_tables,
    launch_tables,
    move_tables,
    retention_tables,
    standing_tables,
    target_tables,
)


def apply_entry(connection: sqlite3.Connection, entry: CatalogEntry) -> None:
    """Store it, in the open transaction. Raises KeyError for a checkpoint that was never opened."""
    match entry:
        case AttemptOpened():
            image = CatalogImage(0)
            image.apply(entry)
            checkpoint_tables.insert(connection, image.rows[entry.checkpoint])
        case RowForgotten():
            checkpoint_tables.forget(connection, entry.checkpoint)
            move_tables.store(connection, entry)
            label_tables.store(connection, entry)
            standing_tables.store(connection, entry)
        case CheckpointTombstoned():
            label_tables.store(connection, entry)
            checkpoint_tables.move(connection, entry.checkpoint, entry)
        case CheckpointDeleted():
            move_tables.store(connection, entry)
            checkpoint_tables.move(connection, entry.checkpoint, entry)
        case ColumnsMoved():
            move_tables.store(connection, entry)
        case LabelsSent() | CheckpointLabeled():
            label_tables.store(connection, entry)
        case RetentionSaid():
            retention_tables.store(connection, entry)
        case CatalogReached() | CatalogOutdated():
            standing_tables.store(connection, entry)
        case RepairSaid() | TargetsGrouped() | UpgradeFinished():
            standing_tables.store(connection, entry)
        case LaunchNumbered() | LaunchEntered() | LaunchForgotten():
            launch_tables.store(connection, entry)
        case LaunchResolved() | StepForgotten():
            launch_tables.store(connection, entry)
        case StoreOpened() | StoreHolds() | CheckpointDrained() | StoreForgotten():
            drain_tables.store(connection, entry)
        case TargetSeen():
            target_tables.store(connection, entry)
        case _:
            checkpoint_tables.move(connection, entry.checkpoint, entry)
