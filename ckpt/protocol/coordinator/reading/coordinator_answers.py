"""The records that say which coordinators run, who of them leads, and where their catalog is.

They are kept as those of answers.py are: fields are added, never renamed, and nothing of the
coordinator is imported.
"""

from __future__ import annotations

from msgspec import Struct


class CoordinatorView(Struct, frozen=True):
    """Who answers; its shell says so at start."""

    address: str = ""
    """HOST:PORT at which other hosts reach it."""
    pid: int = 0
    http: str = ""
    """HOST:PORT of its page and metrics, as it is bound; empty without one."""
    wire: str = ""
    """As of a TargetView."""


class CoordinatorRow(Struct, frozen=True):
    """One coordinator of those that run."""

    id: str
    address: str
    state: str
    """`leads` or `stands by`."""
    term: int | None = None
    """In which it leads."""
    led_s: float | None = None
    """So long it leads."""
    pid: int = 0
    host: str = ""
    http: str = ""
    version: str = ""
    runs_s: float | None = None
    """So long its process runs, by its own wall clock."""
    lag: int | None = None
    """So many revisions of etcd its copy of the catalog lacks of the newest that who leads has
    written; None: it has no copy, or did not say in time."""


class CatalogMember(Struct, frozen=True):
    """One member of the etcd that has the catalog, as who leads reaches it."""

    address: str
    healthy: bool
    answered_s: float | None = None
    reason: str = ""
    """Why not."""


class CoordinatorsView(Struct, frozen=True):
    """Who leads, who stands by, and where their catalog is."""

    catalog: str
    """The URL of an etcd without its options, or the directory of a file."""
    coordinators: tuple[CoordinatorRow, ...]
    members: tuple[CatalogMember, ...] = ()
    takeovers: int = 0
    """Terms that were begun."""
