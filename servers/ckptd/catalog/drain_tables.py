"""Object stores in the catalog: their policies, and what each is known to hold.

Tables beside those of checkpoints, made when they are missing: catalogs of schema 1 may lack them,
and a version that does not know them leaves them be.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.base.ids import Generation, RunName, Step
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
    StoreRow,
)

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS store (
    url TEXT PRIMARY KEY, every INTEGER NOT NULL, keep INTEGER, runs TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS drained (
    url TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL,
    term INTEGER NOT NULL, counter INTEGER NOT NULL,
    PRIMARY KEY (url, run, step, term, counter));
"""
_KNOWN: Final = "SELECT ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM store WHERE url = ?)"

DrainEntry = StoreOpened | StoreHolds | CheckpointDrained | StoreForgotten


def store(connection: sqlite3.Connection, entry: DrainEntry) -> None:
    """Fold one entry into the tables, as `stores.apply_drain` does."""
    match entry:
        case StoreOpened(policy):
            values = (policy.url, policy.every, policy.keep, ",".join(policy.runs))
            connection.execute("INSERT OR REPLACE INTO store VALUES (?, ?, ?, ?)", values)
        case StoreHolds(url, run, stored):
            connection.execute("DELETE FROM drained WHERE url = ? AND run = ?", (url, run))
            for step, generation in stored:
                _insert(connection, url, run, step, generation)
        case CheckpointDrained(url, id):
            _insert(connection, url, id.run, id.step, id.generation)
        case StoreForgotten(url):
            for table in ("store", "drained"):
                connection.execute(f"DELETE FROM {table} WHERE url = ?", (url,))


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Every store and what it holds."""
    for url, every, keep, runs in connection.execute("SELECT * FROM store ORDER BY url"):
        policy = StorePolicy(url, int(every), keep, tuple(runs.split(",")))
        image.stores[url] = StoreRow(policy)
    for url, run, step, term, counter in connection.execute("SELECT * FROM drained"):
        held = image.stores[url].stored.setdefault(RunName(run), set())
        held.add((Step(step), Generation(term, counter)))


def _insert(
    connection: sqlite3.Connection, url: str, run: RunName, step: Step, generation: Generation
) -> None:
    values = (url, run, step, generation.term, generation.counter)
    connection.execute(f"INSERT OR REPLACE INTO drained {_KNOWN}", (*values, url))
