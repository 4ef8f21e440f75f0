"""What a filesystem is before it has files: names of its paths, and connections to its cluster.

Transactions and calls that write many files need no more of one; CkptFileSystemBase has the rest.
"""

from __future__ import annotations

import os
from typing import ClassVar, overload

from fsspec.spec import AbstractFileSystem

from ckpt_client.fs import paths
from ckpt_client.fs.live import Live, LiveHolder


class LiveFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types.
    """I know which cluster I am of. Files come with CkptFileSystemBase."""

    root_marker = ""
    _holder: LiveHolder
    _scheme: ClassVar[str]

    @classmethod
    def _split(cls, url: str) -> tuple[str, str]:
        """(what names the cluster, path)."""
        raise NotImplementedError

    @overload
    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str]) -> str: ...

    @overload
    @classmethod
    def _strip_protocol(cls, path: list[str]) -> list[str]: ...

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str] | list[str]) -> str | list[str]:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = paths.text_of(path)
        if paths.is_url(cls._scheme, text):
            return cls._split(text)[1]
        return paths.clean(text)

    @property
    def live(self) -> Live:
        """This process's own connections, made when they are first needed."""
        return self._holder.get()

    def close(self) -> None:
        """End all connections; what is not committed is given up. The next use connects again."""
        self._holder.close()
