"""Entries of the catalog: what people have said that counts until they say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.ids import RunName
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
