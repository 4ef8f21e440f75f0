"""Bringing what an object store holds back into the tier: every rank's tree is saved again."""

from __future__ import annotations

from ckpt.objects.reader import StoredCheckpoint
from ckpt_client.load.from_store import declared_tree
from ckpt_client.save.handle import Save
from ckpt_client.store import Store


def save_again(stored: StoredCheckpoint, store: Store) -> list[Save]:
    """As the ranks that saved it, of `store`'s launch: one Save for each, all of them staged.

    One rank's tree is in memory at a time; the staging memory holds all until the commit. When this
    process ends before the last one is staged, the others are aborted. Raises what reading the
    object store and `Store.save` raise.
    """
    run, step, _ = stored.header.key
    for rank in sorted(stored.trees()):
        store.join(run, rank=rank, world_size=stored.header.world_size)
    return [
        store.save(
            run,
            step,
            declared_tree(stored, rank),
            rank=rank,
            world_size=stored.header.world_size,
            metrics=stored.metrics,
        )
        for rank in sorted(stored.trees())
    ]
