"""What a cluster decides once, and its coordinator goes by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ckpt.erasure.code import Code
from ckpt.format.messages.repairs import RepairLimits
from ckpt.plan.placement import Level

REPAIR_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of the space that targets may use."""

    low: float = 0.70
    high: float = 0.85
    """1 or more never evicts by itself; a save without room still does."""

    def __post_init__(self) -> None:
        assert 0.0 <= self.low <= self.high


@dataclass(frozen=True, slots=True)
class FillMarks:
    """Shares of a device, less its reserve, at which its checks begin to stand."""

    near: float = 0.85
    full: float = 0.95

    def __post_init__(self) -> None:
        assert 0.0 < self.near <= self.full


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """How the columns of one payload are spread (P13)."""

    level: Level
    max_per_domain: int = 1
    spare_count: int = 1
    repair_share: float = 0.0
    """Of each target's space, that saves do not get: what is lost is made again there."""


@dataclass(frozen=True, slots=True)
class CoordinatorPolicy:
    """What a cluster decides once."""

    cluster: str
    code: Code
    cell_bytes: int | None = None
    """Of new payloads; None: what suits each of them, and all clients that may come."""
    level: Level = "host"
    """Columns of a payload are spread over domains of this level."""
    max_per_domain: int = 1
    spare_count: int = 1
    orphan_grace_us: int = 60_000_000
    """How long streams may use reservations that an earlier coordinator gave out, where none of its
    saves is under way."""
    rebuild_after_us: int | None = 300_000_000
    """The columns of a target that is away for so long are made again elsewhere; None: nothing that
    is lost is."""
    repair: RepairLimits = field(default_factory=RepairLimits)
    keep: int | None = None
    """How many steps of a run stay; None keeps all."""
    mend: str = "ckpt catalog rebuild DIR"
    """The command that rebuilds an old catalog; `{targets}` becomes the targets' addresses."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    fill: FillMarks = field(default_factory=FillMarks)
    balance_above: float | None = None
    """A device of which a larger share is taken sheds columns to emptier ones; None: none does by
    itself."""

    @property
    def spread(self) -> SpreadRule:
        share = 0.0 if self.rebuild_after_us is None else REPAIR_SHARE
        return SpreadRule(self.level, self.max_per_domain, self.spare_count, share)

    @property
    def report_level(self) -> Level:
        """What `domains_survivable` counts: a target alone is no failure domain."""
        return "device" if self.level == "target" else self.level
