"""Entries of the catalog: what counts for the cluster until another one is said or settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ckpt.base.ids import RunName, TargetId
from ckpt.format.messages.keeping import Retention
from ckpt.format.messages.repairs import RepairRules


class Settled:
    """One of these entries."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RetentionSaid(Settled):
    """What stays of a run from now on; None: as the cluster keeps."""

    run: RunName
    retention: Retention | None


@dataclass(frozen=True, slots=True)
class RepairSaid(Settled):
    """What people say of repair, all of it."""

    rules: RepairRules


@dataclass(frozen=True, slots=True)
class UpgradeFinished(Settled):
    """Nobody who speaks less is let in any more, and never again."""

    protocol: int


@dataclass(frozen=True, slots=True)
class TargetsGrouped(Settled):
    """In which placement group each target is from now on, all of them; empty: there are none."""

    groups: Mapping[TargetId, int]


Said = RetentionSaid | RepairSaid | UpgradeFinished | TargetsGrouped


class SaidImage(Protocol):
    """Where that is known."""

    repair: RepairRules
    groups: dict[TargetId, int]
    protocol: int
    retentions: dict[RunName, Retention]


def note_said(image: SaidImage, said: Said) -> None:
    """Fold it into an image."""
    match said:
        case RepairSaid():
            image.repair = said.rules
        case TargetsGrouped():
            image.groups = dict(said.groups)
        case UpgradeFinished():
            image.protocol = max(image.protocol, said.protocol)
        case RetentionSaid(retention=None):
            image.retentions.pop(said.run, None)
        case RetentionSaid(retention=retention):
            assert retention is not None
            image.retentions[said.run] = retention
