"""Entries of the catalog: what counts for the cluster until another one is said or settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckpt.base.ids import RunName, TargetId
from ckpt.format.messages.keeping import Retention
from ckpt.format.messages.repairs import RepairRules


@dataclass(frozen=True, slots=True)
class RetentionSaid:
    """What stays of a run from now on; None: as the cluster keeps."""

    run: RunName
    retention: Retention | None


@dataclass(frozen=True, slots=True)
class RepairSaid:
    """What people say of repair, all of it."""

    rules: RepairRules


@dataclass(frozen=True, slots=True)
class UpgradeFinished:
    """Nobody who speaks less is let in any more, and never again."""

    protocol: int


@dataclass(frozen=True, slots=True)
class TargetsGrouped:
    """In which placement group each target is from now on, all of them; empty: there are none."""

    groups: Mapping[TargetId, int]


Said = RetentionSaid | RepairSaid | UpgradeFinished | TargetsGrouped
