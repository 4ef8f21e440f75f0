"""How far a catalog has come, and what it has forgotten. Compared with what targets keep, this
shows an old copy (ckpt/protocol/coordinator/cluster/vouching.py). Beside it what people have said
of repair, as JSON, and in which group each target is; what cannot be read of that, as a later
version's, counts as not said. And which protocol the cluster needs, which the file's schema says as
well: an earlier version does not open the catalog of a cluster whose upgrade is finished.

Rows of `meta`, and a table beside those of checkpoints, made when they are missing: catalogs of
schema 1 may lack them, and a version that does not know them leaves them be.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from ckpt.base.ids import CatalogPosition, CheckpointId, Generation, RunName, Step
from ckpt.format.messages.hello import MOVES_VERSION, OLDEST_VERSION
from ckpt.format.messages.repairs import decode_repair_rules
from ckpt.protocol.coordinator.catalog import (
    NO_GENERATION,
    CatalogOutdated,
    CatalogReached,
    RowForgotten,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import RepairSaid, TargetsGrouped, UpgradeFinished
from ckptd.catalog.groups import decode_groups, encode_groups

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS passed_over (
    run TEXT NOT NULL, step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    PRIMARY KEY (run, step, term, counter));
"""
_FORGOTTEN: Final = "forgotten"
_REPAIR: Final = "repair"
_GROUPS: Final = "groups"
_PROTOCOL: Final = "protocol"
SCHEMA_VERSION: Final = 3
SCHEMA_UNFINISHED: Final = 2
"""Of a catalog that an earlier version made, and may go on with: it has the same tables."""

StandingEntry = (
    CatalogReached | CatalogOutdated | RowForgotten | RepairSaid | TargetsGrouped | UpgradeFinished
)


def store(connection: sqlite3.Connection, entry: StandingEntry) -> None:
    """Fold one entry into the rows, as `CatalogImage.apply` does."""
    match entry:
        case CatalogReached(position):
            _set(connection, "position", position)
        case CatalogOutdated(reason):
            _set(connection, "outdated", reason)
        case RepairSaid(rules):
            _set(connection, _REPAIR, msgspec.json.encode(rules).decode())
        case TargetsGrouped(groups):
            _set(connection, _GROUPS, encode_groups(groups).decode())
        case UpgradeFinished(protocol):
            _set(connection, _PROTOCOL, str(protocol))
            connection.execute(f"PRAGMA user_version = {schema_of(protocol)}")
        case RowForgotten(checkpoint):
            known = _generation(connection) or NO_GENERATION
            if checkpoint.generation > known:
                _set(connection, _FORGOTTEN, checkpoint.generation)


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """To be called after the checkpoints' rows are loaded: where a catalog has no note of what it
    has forgotten, the newest of them bounds that.
    """
    position = _get(connection, "position")
    if position is not None:
        term, _, ticket = position.partition(".")
        image.position = CatalogPosition(int(term), int(ticket))
    forgotten = _generation(connection)
    if forgotten is None:
        forgotten = max((id.generation for id in image.rows), default=NO_GENERATION)
    image.forgotten = forgotten
    image.rebuilt_term = int(_get(connection, "rebuilt_term") or 0)
    image.rebuilt_from = int(_get(connection, "rebuilt_from") or 0)
    image.protocol = int(_get(connection, _PROTOCOL) or OLDEST_VERSION)
    image.outdated = _get(connection, "outdated") or ""
    image.repair = decode_repair_rules((_get(connection, _REPAIR) or "{}").encode())
    image.groups = decode_groups((_get(connection, _GROUPS) or "{}").encode())
    for run, step, term, counter in connection.execute("SELECT * FROM passed_over"):
        id = CheckpointId(RunName(run), Step(step), Generation(term, counter))
        image.passed_over.add(id)


def note(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """All of it: of a catalog that is made, or that had no note of what it has forgotten."""
    _set(connection, "position", image.position)
    _set(connection, _FORGOTTEN, image.forgotten)
    store(connection, RepairSaid(image.repair))
    store(connection, TargetsGrouped(image.groups))
    store(connection, UpgradeFinished(image.protocol))
    _set(connection, "rebuilt_term", str(image.rebuilt_term))
    _set(connection, "rebuilt_from", str(image.rebuilt_from))
    for id in sorted(image.passed_over):
        key = (id.run, id.step, id.generation.term, id.generation.counter)
        connection.execute("INSERT OR REPLACE INTO passed_over VALUES (?, ?, ?, ?)", key)


def schema_of(protocol: int) -> int:
    """Of a cluster that needs it."""
    return SCHEMA_VERSION if protocol >= MOVES_VERSION else SCHEMA_UNFINISHED


def _generation(connection: sqlite3.Connection) -> Generation | None:
    text = _get(connection, _FORGOTTEN)
    return None if text is None else Generation.parse(text)


def _get(connection: sqlite3.Connection, key: str) -> str | None:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else str(found[0])


def _set(
    connection: sqlite3.Connection, key: str, value: str | CatalogPosition | Generation
) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, str(value)))
