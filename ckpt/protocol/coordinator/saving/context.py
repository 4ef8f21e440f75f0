"""What every part of a save works with."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.keeping.placing import PlacementReader
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.coordinator.saving.space.reservations import Reserver


@dataclass(frozen=True, slots=True)
class SavingContext:
    """Given to each part of this room, and to those who show what is under way."""

    desk: Desk
    policy: CoordinatorPolicy
    members: Membership
    launches: Launches
    book: AttemptBook
    reservations: Reserver
    homes: Homes
    placing: PlacementReader
