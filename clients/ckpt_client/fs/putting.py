"""`put`: local files go into the tier as they were when it began, or not at all.

fsspec's own copied half of the old and half of the new bytes of a file that somebody wrote
meanwhile, and never ended with one that was cut.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.implementations.local import LocalFileSystem

from ckpt_client.exchange.seen_file import SeenFile, check_all
from ckpt_client.fs.base import LiveFileSystem
from ckpt_client.fs.together import are_many, one_commit

Paths = str | list[str]


class PuttingFileSystem(LiveFileSystem):
    """I take in local files."""

    def put(self, lpath: Paths, rpath: Paths, recursive: bool = False, **options: object) -> None:
        """As fsspec's; files of a step are one commit (together.py). Raises ChangedMeanwhile, and
        commits nothing of it, when somebody has written one of several files since this began.
        """
        many = are_many(lpath, recursive)
        paths = _found(lpath, rpath, recursive, options) if many else []
        seen = [SeenFile.see(Path(path)) for path in paths if os.path.isfile(path)]
        with one_commit(self, many):
            super().put(lpath, rpath, recursive=recursive, **options)
            check_all(seen)

    def put_file(
        self, lpath: str, rpath: str, callback: Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite", **options: object,
    ) -> None:  # fmt: skip
        """One file. Raises FileNotFoundError, FileExistsError for mode="create", ChangedMeanwhile
        when somebody has written it since this began.
        """
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(rpath)
        if os.path.isdir(lpath):
            return  # Directories are what their files make them.
        if not os.path.exists(lpath):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), lpath)
        seen = SeenFile.see(Path(lpath))
        callback.set_size(seen.size)
        memory = np.empty(min(self.blocksize, seen.size), np.uint8)
        with seen.opened() as file, self.open(rpath, "wb", **options) as target:
            for start in range(0, seen.size, self.blocksize):
                block = memory[: seen.size - start]
                file.fill(start, block)
                target.write(block.data)
                callback.relative_update(len(block))
            file.check()


def _found(
    lpath: Paths, rpath: Paths, recursive: bool, options: Mapping[str, object]
) -> Sequence[str]:
    """What fsspec will take; two lists are taken as they are."""
    if isinstance(lpath, list) and isinstance(rpath, list):
        return lpath
    depth = options.get("maxdepth")
    return list(LocalFileSystem().expand_path(lpath, recursive=recursive, maxdepth=depth))
