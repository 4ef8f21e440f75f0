"""Bugs of moves that the main campaign must find, in histories in which targets leave and columns
are balanced (planted.py).
"""

from __future__ import annotations

from ckpt.base.ids import ColumnId, ColumnNumber, Rank, TargetId
from ckpt.plan import balancing as plan
from ckpt.protocol.coordinator.catalog import TargetStanding
from ckpt.protocol.coordinator.cluster.claims import Claims
from ckpt.protocol.coordinator.cluster.holdings import ProvedColumns
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.facts import CheckpointPlaced
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.repairing import balancing
from tests.sim.planted import Plant


def named_before_it_is_durable(
    self: Adopter, checkpoint: KeptCheckpoint, moves: dict[tuple[Rank, ColumnNumber], TargetId]
) -> None:
    """What is surplus by that is dropped, and a restart knows the old place alone."""
    self._checkpoints.move(checkpoint, moves)
    checkpoint.surplus.clear()
    self.placed(CheckpointPlaced(checkpoint.id))
    self._drop_surplus(checkpoint)


def _all_is_sorted_out_again(
    self: Adopter, checkpoint: KeptCheckpoint, rank: Rank, before: set[TargetId]
) -> None:
    """Whoever has proved any column of it, also who was asked to drop it."""
    checkpoint.surplus.clear()
    self.placed(CheckpointPlaced(checkpoint.id))


def _out_is_in(self: Checkpoints, column: ColumnId, holder: TargetId) -> bool:
    """One that is out is here, after all."""
    target = self._members.targets[holder]
    return target.standing is TargetStanding.DRAINING or column in rotten_columns(target)


def _known_as_before(self: Claims, target: TargetId, standing: TargetStanding) -> object:
    """It is answered, and nothing of it is stored."""
    return self._known[target]


PLANTS = (
    Plant("named-before-durable", "P1", ((Adopter, "_adopt", named_before_it_is_durable),), 27),
    Plant("out-is-in", "P7", ((Checkpoints, "_goes", _out_is_in),), 39),
    Plant(
        "balance-into-a-full-domain", "P13",
        # Who plans and who names are blind.
        (
            (plan, "is_safe", lambda *_: True),
            (balancing, "is_safe", lambda *_: True),
            (Adopter, "_fits", lambda *_: True),
        ),
        begin=415,
    ),
    Plant(
        "dropped-and-still-counted", "P1",
        # A move looks at those alone that are known to have a copy: both have to be wrong.
        (
            (ProvedColumns, "discard", lambda *_: None),
            (Adopter, "_sort_out_rank", _all_is_sorted_out_again),
        ),
        begin=685,
    ),
    Plant("standings-forgotten-at-restart", "P10", ((Claims, "stand", _known_as_before),), 27),
)  # fmt: skip
