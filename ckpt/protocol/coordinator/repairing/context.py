"""What every part of repairing works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.format.messages.repairs import RepairRules
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.coordinator.repairing.traffic import Traffic
from ckpt.protocol.coordinator.saving.space.reservations import Reserver


@dataclass(frozen=True, slots=True)
class RepairContext:
    """Given to who hands out what lacks columns."""

    desk: Desk
    policy: CoordinatorPolicy
    members: Membership
    checkpoints: Checkpoints
    adopter: Adopter
    reserver: Reserver
    drains: DrainQueue
    retaining: Retaining
    traffic: Traffic
    evictor: Evictor
    said: RepairRules
    wall_s: Callable[[], float]
