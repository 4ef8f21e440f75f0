"""Where do columns lie that have moved? A reader has all others from the index."""

from __future__ import annotations

from ckpt.base.errors import NotFound
from ckpt.base.ids import CheckpointId
from ckpt.format.documents.moves import encode_moves, page_of
from ckpt.format.messages.loading import Whereabouts
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint


def moved(checkpoints: Checkpoints, chosen: KeptCheckpoint) -> tuple[Whereabouts, ...]:
    """Of what a reader of it reads: its own, and that of its homes."""
    known = (chosen, *checkpoints.homes_of(chosen))
    return tuple(one for one in (_moved(checkpoints, each) for each in known) if one is not None)


def _moved(checkpoints: Checkpoints, one: KeptCheckpoint) -> Whereabouts | None:
    """None: all is where it was put."""
    pages = tuple(sorted({page_of(rank) for rank, _ in one.moved}))
    indexes = tuple(target.id for target in checkpoints.index_copies(one))
    if not pages and set(indexes) <= set(one.index_targets):
        return None
    return Whereabouts(one.id.generation, pages, indexes)


def moves_of_page(checkpoints: Checkpoints, id: CheckpointId, page: int) -> bytes:
    """The document. Raises NotFound."""
    checkpoint = checkpoints.get(id)
    if checkpoint is None:
        raise NotFound(f"{id} is not there any more")
    moves = {at: target for at, target in checkpoint.moved.items() if page_of(at[0]) == page}
    return encode_moves(page, moves)
