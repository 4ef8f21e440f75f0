"""What a coordinator knows when it starts: the catalog's image, given to the parts."""

from __future__ import annotations

from ckpt.base.errors import Corrupt
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.keeping.labeling import Labeling
from ckpt.protocol.coordinator.reading.rounds import LaunchRounds
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.coordinator.saving.opening import Opening


def recover(
    image: CatalogImage,
    launches: Launches,
    opening: Opening,
    book: AttemptBook,
    checkpoints: Checkpoints,
    homes: Homes,
    deleter: Deleter,
    labeling: Labeling,
    rounds: LaunchRounds,
) -> None:
    """Open attempts wait for their stagers, decided ones go on, committed ones count as their
    targets register. Raises Corrupt naming the entry that cannot be read.
    """
    deleter.forgotten = image.forgotten
    joined = [
        (run, launches.recover(run, number, known), known)
        for (run, number), known in sorted(image.launches.items())
    ]
    for row in sorted(image.rows.values(), key=lambda row: row.checkpoint):
        launches.recover_begun(row)
        moves = image.moves.get(row.checkpoint, {})
        labels = image.labels.get(row.checkpoint, b"")
        try:
            match row.state:
                case RowState.OPEN | RowState.DECIDED:
                    opening.recover(row)
                case RowState.COMMITTED | RowState.DAMAGED:
                    checkpoint = checkpoints.recover(row, moves, labels)
                    if row.checkpoint in image.unsettled:
                        labeling.recover(checkpoint)
                case RowState.TOMBSTONED:
                    deleter.recover(checkpoints.recover(row, moves))
                case RowState.ABORTED | RowState.DELETED:
                    deleter.gone[row.checkpoint] = row.state
                    checkpoints.recover_deleted(row)
        except Corrupt as error:
            raise Corrupt(f"the catalog's entry of {row.checkpoint}: {error.message}") from None
    for checkpoint in checkpoints.all():
        if checkpoint.state is not RowState.TOMBSTONED:
            homes.hold(checkpoint.id, checkpoint.homes)
    for attempt in book.open():
        if attempt.info is not None:
            used = (home.id(attempt.checkpoint.run) for home in attempt.info.homes)
            homes.hold(attempt.checkpoint, used)
    for run, launch, known in joined:
        rounds.recover(run, launch, known)
