"""What people and tools are answered of repair: as `answers.py`."""

from __future__ import annotations

from msgspec import Struct

from ckpt.format.messages.repairs import RepairMeasured


class RepairTaskView(Struct, frozen=True):
    """A payload whose lost columns are being made again."""

    payload: str
    """`RUN@STEP#GENERATION rank R`."""
    columns: tuple[int, ...]
    targets: tuple[str, ...]
    """Where each column goes."""
    worker: str
    leased_s: float
    """Seconds since it was leased."""
    read_bytes: int
    payload_bytes: int
    bytes_per_s_max: int = 0
    """Bytes of the payload that its worker may read in a second now; 0: no limit."""


class BalanceView(Struct, frozen=True):
    """Columns that go from full devices to empty ones, though nothing is lost."""

    asked: bool = False
    """Somebody asked for an even balance; False: devices that are too full shed columns."""
    columns_left: int = 0
    """Columns of the present plan that are not moved yet."""
    bytes_left: int = 0
    columns_moved: int = 0
    """Columns moved since the last balance was asked for, or the coordinator began."""
    bytes_moved: int = 0


class AwaitedTarget(Struct, frozen=True):
    """A target that is away. Where payloads can lose no more, its columns are due all the same."""

    target: str
    left_s: float
    """Seconds until all of them are due."""


class RepairView(Struct, frozen=True):
    """What lacks columns and can have them again now, and what repair has done."""

    payloads_due: int
    columns_due: int
    """Lost columns of these; neither counts what is on targets that are still waited for."""
    worker_heard_s: float | None
    """Seconds since a worker was heard last; None: never since the coordinator began."""
    tasks: tuple[RepairTaskView, ...]
    columns_made: int
    """Columns made again since the coordinator began, as all that follows."""
    bytes_made: int
    """Bytes of their files."""
    documents_made: int
    """Copies of indexes and commit records, and documents that were mended where they lie."""
    failed: int
    """Tasks that ended without all of their columns."""
    problems: tuple[tuple[str, str], ...]
    """Payloads that could not be made again when that was last tried, and why."""
    bytes_left: int = 0
    """Bytes of columns that are due or in hand, and not made yet."""
    bytes_per_s: float = 0.0
    """Rate at which they are made, while anything is in hand; 0: not known."""
    left_s: float | None = None
    """Seconds until all is made at that rate; None while nobody can say, or nothing is due."""
    floor_bytes: int = 0
    """Bytes a second that repair may take of each target while somebody saves or loads."""
    cap_bytes: int = 0
    """The same while nobody does; 0: no cap."""
    paused_at_s: float | None = None
    """When somebody paused it; None: it goes on."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Checkpoints that lack columns and are left alone, and why: they expire too soon."""
    balance: BalanceView = BalanceView()
    """Its columns are in `columns_due`, after all others."""
    rebuild_after_s: float | None = 300.0
    """How long a target that is away is waited for; None: nothing is ever made again."""
    soon: tuple[str, ...] = ()
    """Why more may be due in a moment; empty: nothing speaks for that."""
    measured: RepairMeasured | None = None
    """How fast lost columns were made again, also under earlier coordinators; None: unknown."""
    awaited: tuple[AwaitedTarget, ...] = ()
    """Whose columns are not due yet, since they may come back."""
