"""What are the catalog's keys called, and what does each hold?

Below the prefix and a colon, which no prefix has, so that none is inside another's. GEN is
TERM.COUNTER; RUN, URL and ID are percent-encoded, so that a slash parts words.

    meta                      JSON: schema, cluster; there once the catalog is
    leader                    JSON: who writes, and where it listens; on a lease. Its create
                              revision and its value are the fence
    coordinator/ID            JSON: process, host, pid, address, ...; of each that runs, on its own
                              lease
    term                      the highest that was begun
    sequence                  number of the term's newest transaction
    count                     TERM COUNT: so many keys an image had when that term wrote last
    position                  TERM.TICKET of the newest entry that targets vouched for
    forgotten                 GEN of the newest row that was forgotten
    outdated                  why another catalog is newer
    rebuilt                   JSON: term, targets; of a catalog that was made from its targets
    copying                   where a copy comes from that is not whole: there is no meta then
    row/RUN/STEP/GEN          JSON: state, launch, launch_key, world_size, reason
    record/RUN/STEP/GEN       the commit record's document
    label/RUN/STEP/GEN        the labels' document
    moved/RUN/STEP/GEN/PAGE   which columns of a page of ranks lie elsewhere than the index says
    unsettled/RUN/STEP/GEN    nothing: its targets may have other labels
    passed_over/RUN/STEP/GEN  nothing: a rebuild found it without a row, and refused it
    launch/RUN/NUMBER         JSON: key, world_size; gone, all below it is gone
    launch/RUN/NUMBER/rank/R  the process that holds the rank
    launch/RUN/NUMBER/turn/T  STEP#GEN: what a turn loaded
    launch/RUN/NUMBER/step/S  STEP#GEN: what the step's number was settled to
    store/URL                 JSON: every, keep, runs; gone, all below it is gone
    store/URL/RUN             nothing: it was looked at for that run
    store/URL/RUN/PAGE        STEP#GEN by spaces, of what it holds of a run. PAGE is TERM.N: of the
                              term's generations whose counters are from 256 N on, 256 of them
    target/ID                 JSON: domain, directory, incarnation, place, standing
    retention/RUN             JSON: the rules
    repair                    JSON: what people have said of repair
    groups                    JSON: the placement group of each target; none: there are none
    protocol                  who speaks less is not let in; none: the upgrade from a version that
                              knew no such key is not finished, and meta has schema 1

Each value is whole: putting it twice is putting it once.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from ckpt.base.ids import CheckpointId, LaunchNumber, RunName, TargetId
from ckpt.format.messages.hello import MOVES_VERSION
from ckpt.protocol.coordinator.catalog import RowState, TargetStanding

META: Final = "meta"
LEADER: Final = "leader"
TERM: Final = "term"
SEQUENCE: Final = "sequence"
COUNT: Final = "count"
COORDINATORS: Final = "coordinator/"
"""What their names begin with."""
POSITION: Final = "position"
FORGOTTEN: Final = "forgotten"
OUTDATED: Final = "outdated"
REBUILT: Final = "rebuilt"
COPYING: Final = "copying"
REPAIR: Final = "repair"
GROUPS: Final = "groups"
PROTOCOL: Final = "protocol"
FIRST: Final = ""
LAST: Final = "\x7f"
"""Names are ASCII without control characters: all are between the two."""
SCHEMA_VERSION: Final = 2
SCHEMA_UNFINISHED: Final = 1
"""Of a catalog that an earlier version began, and may go on with."""

KINDS: Final = (
    META, LEADER, COORDINATORS, TERM, SEQUENCE, COUNT, POSITION, FORGOTTEN, OUTDATED, REBUILT,
    COPYING, "row/", "record/", "label/", "moved/", "unsettled/", "passed_over/", "launch/", "store/",
    "target/", "retention/", REPAIR, GROUPS, PROTOCOL,
)  # fmt: skip
"""What names begin with, or are."""

OF_CHECKPOINTS: Final = ("row", "record", "label", "unsettled", "passed_over")
"""Kinds of keys that a generation has, at most one of each."""


class RowValue(Struct, frozen=True):
    """Of `row/…`."""

    state: RowState
    launch: int
    launch_key: str | None
    world_size: int
    reason: str


class LaunchValue(Struct, frozen=True):
    """Of `launch/RUN/NUMBER`."""

    key: str | None
    world_size: int


class StoreValue(Struct, frozen=True):
    """Of `store/URL`."""

    every: int
    keep: int | None
    runs: tuple[str, ...]


class TargetValue(Struct, frozen=True):
    """Of `target/ID`."""

    domain: str
    directory: str
    incarnation: bytes
    """Base64 in the JSON."""
    place: str
    standing: TargetStanding = TargetStanding.IN


class RebuiltValue(Struct, frozen=True):
    """Of `rebuilt`."""

    term: int
    targets: int


def schema_of(protocol: int) -> int:
    """Of a cluster that needs it."""
    return SCHEMA_VERSION if protocol >= MOVES_VERSION else SCHEMA_UNFINISHED


def of_checkpoint(kind: str, id: CheckpointId) -> str:
    """One of its keys."""
    return f"{kind}/{quoted(id.run)}/{id.step}/{id.generation}"


def of_moves(id: CheckpointId, page: int) -> str:
    """Of one page of its ranks."""
    return f"{of_checkpoint('moved', id)}/{page}"


def of_launch(run: RunName, number: LaunchNumber) -> str:
    """Its own key; those below it begin with that and a slash."""
    return f"launch/{quoted(run)}/{number}"


def of_store(url: str) -> str:
    """Likewise."""
    return f"store/{quoted(url)}"


def is_of_stored_run(name: str) -> bool:
    """Whether it is the own key of what a store has of a run."""
    return name.startswith("store/") and name.count("/") == 2


def of_target(id: TargetId) -> str:
    return f"target/{quoted(id)}"


def of_coordinator(id: str) -> str:
    return f"{COORDINATORS}{quoted(id)}"


def of_retention(run: RunName) -> str:
    return f"retention/{quoted(run)}"


def quoted(word: str) -> str:
    """Without a slash."""
    return quote(word, safe="")


def unquoted(word: str) -> str:
    """The inverse."""
    return unquote(word)


class KeySpace:
    """Full keys, of one prefix."""

    def __init__(self, prefix: str) -> None:
        self._start = f"{prefix}:".encode()

    def full(self, name: str) -> bytes:
        """As etcd has it."""
        return self._start + name.encode()

    def name(self, key: bytes) -> str:
        """The inverse of `full`."""
        assert key.startswith(self._start)
        return key[len(self._start) :].decode()
