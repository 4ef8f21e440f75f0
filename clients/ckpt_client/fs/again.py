"""Files that an object store holds become files of the cluster again: one commit of all of a step.

A file is a payload of its own (ckpt/format/members.py), so the drain has each as what one rank
saved. Saved again as ranks of a launch they would be no files any more.
"""

from __future__ import annotations

import numpy as np

from ckpt.base.errors import Corrupt, Unavailable
from ckpt.base.ids import Generation
from ckpt.format.members import NO_LAUNCH
from ckpt.objects.reader import StoredCheckpoint
from ckpt_client.fs.filesystem import CkptFileSystem, CkptLocalFileSystem
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_client.load.from_store import declared_tree
from ckpt_client.save.shards import Shard
from ckpt_client.url import LocalUrl, RemoteUrl

_TIER = "tier"


def is_of_files(stored: StoredCheckpoint) -> bool:
    """Whether it was written as files, not by ranks."""
    header = stored.header
    return header.source == _TIER and header.launch == NO_LAUNCH


def write_again(stored: StoredCheckpoint, url: LocalUrl | RemoteUrl) -> Generation:
    """Write a step from an object store into the tier again; returns its new generation. One file
    at a time is in memory.

    Raises what reading the object store and writing files raise; nothing of it is visible then.
    """
    run, step, _ = stored.header.key
    fs = _files_of(url)
    try:
        with fs.transaction:
            for rank in sorted(stored.trees()):
                name, content = _file(declared_tree(stored, rank))
                # The one file of a loose checkpoint is named as the last part of its own path.
                with fs.open(f"{run}/{name}" if "/" in name else run, "wb") as file:
                    file.write(content)
        view = fs.live.steps.newest(run, step)
    finally:
        fs.close()
    if view is None:
        raise Unavailable(f"{run}@{step} was written again, and is gone since")
    return Generation.parse(view.generation)


def _file(tree: object) -> tuple[str, memoryview]:
    """(its name below the run, its bytes)."""
    parts = []
    while isinstance(tree, dict) and len(tree) == 1:
        ((part, tree),) = tree.items()
        parts.append(str(part))
    if not isinstance(tree, Shard) or not parts:
        raise Corrupt(f"{'/'.join(parts) or 'a payload'} is stored as no file")
    return "/".join(parts), np.ascontiguousarray(tree.array).data.cast("B")


def _files_of(url: LocalUrl | RemoteUrl) -> CkptFileSystemBase:
    """With connections of its own."""
    if isinstance(url, LocalUrl):
        return CkptLocalFileSystem(url.directory, skip_instance_cache=True)
    return CkptFileSystem(url.address, skip_instance_cache=True)
