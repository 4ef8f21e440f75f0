"""Launches in the catalog: which number a start of a run has, its processes, and what it loaded.

Tables beside those of checkpoints, made when they are missing: catalogs of schema 1 may lack them,
and a version that does not know them leaves them be.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, RunName, Step
from ckpt.protocol.coordinator.catalog import (
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    LaunchResolved,
    StepForgotten,
)
from ckpt.protocol.coordinator.image import TURNS_KEPT, CatalogImage, LaunchRow

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS launch (
    run TEXT NOT NULL, number INTEGER NOT NULL, key TEXT, world_size INTEGER NOT NULL,
    PRIMARY KEY (run, number));
CREATE TABLE IF NOT EXISTS process (
    run TEXT NOT NULL, number INTEGER NOT NULL, rank INTEGER NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (run, number, rank));
CREATE TABLE IF NOT EXISTS resolution (
    run TEXT NOT NULL, number INTEGER NOT NULL, turn INTEGER NOT NULL,
    step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    PRIMARY KEY (run, number, turn));
CREATE TABLE IF NOT EXISTS resolution_by_number (
    run TEXT NOT NULL, number INTEGER NOT NULL,
    step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    PRIMARY KEY (run, number, step));
"""
_TABLES: Final = ("launch", "process", "resolution", "resolution_by_number")
_LAUNCH: Final = "run = ? AND number = ?"

LaunchEntry = LaunchNumbered | LaunchEntered | LaunchResolved | StepForgotten | LaunchForgotten


def store(connection: sqlite3.Connection, entry: LaunchEntry) -> None:
    """Fold one entry into the tables, as `CatalogImage.apply` does."""
    match entry:
        case LaunchNumbered(run, number, key, world_size):
            values = (run, number, key, world_size)
            connection.execute("INSERT OR REPLACE INTO launch VALUES (?, ?, ?, ?)", values)
        case LaunchEntered(run, number, rank, process):
            held = (run, number, rank, process)
            connection.execute("INSERT OR REPLACE INTO process VALUES (?, ?, ?, ?)", held)
        case LaunchResolved() if entry.by_number:
            _store_by_number(connection, entry)
        case LaunchResolved():
            _store_resolution(connection, entry)
        case StepForgotten(run, number, step):
            of_step = f"DELETE FROM resolution_by_number WHERE {_LAUNCH} AND step = ?"
            connection.execute(of_step, (run, number, step))
        case LaunchForgotten(run, number):
            for table in _TABLES:
                connection.execute(f"DELETE FROM {table} WHERE {_LAUNCH}", (run, number))


def _store_resolution(connection: sqlite3.Connection, entry: LaunchResolved) -> None:
    id, launch = entry.checkpoint, (entry.run, entry.launch)
    connection.execute(
        "INSERT OR REPLACE INTO resolution SELECT ?, ?, ?, ?, ?, ?"
        f" WHERE EXISTS (SELECT 1 FROM launch WHERE {_LAUNCH})",
        (*launch, entry.turn, id.step, id.generation.term, id.generation.counter, *launch),
    )
    old = f"{_LAUNCH} AND 0 < turn AND turn <= ?"
    connection.execute(f"DELETE FROM resolution WHERE {old}", (*launch, entry.turn - TURNS_KEPT))


def _store_by_number(connection: sqlite3.Connection, entry: LaunchResolved) -> None:
    id, launch = entry.checkpoint, (entry.run, entry.launch)
    connection.execute(
        "INSERT OR REPLACE INTO resolution_by_number SELECT ?, ?, ?, ?, ?"
        f" WHERE EXISTS (SELECT 1 FROM launch WHERE {_LAUNCH})",
        (*launch, id.step, id.generation.term, id.generation.counter, *launch),
    )


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Every launch, with its processes and resolutions."""
    for run, number, key, world_size in connection.execute("SELECT * FROM launch"):
        launch = RunName(run), LaunchNumber(number)
        image.launches[launch] = LaunchRow(key, int(world_size))
    for run, number, rank, process in connection.execute("SELECT * FROM process"):
        image.launches[(RunName(run), LaunchNumber(number))].processes[Rank(rank)] = process
    for run, number, turn, step, term, counter in connection.execute(
        "SELECT * FROM resolution ORDER BY turn"
    ):
        id = CheckpointId(RunName(run), Step(step), Generation(term, counter))
        image.launches[(RunName(run), LaunchNumber(number))].resolved[int(turn)] = id
    for run, number, step, term, counter in connection.execute(
        "SELECT * FROM resolution_by_number ORDER BY rowid"
    ):
        id = CheckpointId(RunName(run), Step(step), Generation(term, counter))
        image.launches[(RunName(run), LaunchNumber(number))].by_number[id.step] = id
