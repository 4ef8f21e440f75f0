"""Where do columns lie that have moved? A reader has all others from the index."""

from __future__ import annotations

from ckpt.base.errors import NotFound
from ckpt.base.ids import CheckpointId
from ckpt.format.documents.moves import encode_moves, page_of
from ckpt.format.messages.loading import MovedPages
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint


def moved_pages(checkpoints: Checkpoints, chosen: KeptCheckpoint) -> tuple[MovedPages, ...]:
    """Of what a reader of it reads: its own, and those of its homes."""
    found = []
    for one in (chosen, *checkpoints.homes_of(chosen)):
        pages = tuple(sorted({page_of(rank) for rank, _ in one.moved}))
        if pages:
            found.append(MovedPages(one.id.generation, pages))
    return tuple(found)


def moves_of_page(checkpoints: Checkpoints, id: CheckpointId, page: int) -> bytes:
    """The document. Raises NotFound."""
    checkpoint = checkpoints.get(id)
    if checkpoint is None:
        raise NotFound(f"{id} is not there any more")
    moves = {at: target for at, target in checkpoint.moved.items() if page_of(at[0]) == page}
    return encode_moves(page, moves)
