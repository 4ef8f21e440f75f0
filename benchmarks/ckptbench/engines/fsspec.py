"""`ioengine=fsspec`: any file system that fsspec knows, `url=file:///DIR`, `memory:`, `s3://…`."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec

from ckptbench.engines.base import EnginePlan
from ckptbench.engines.object_engine import ObjectEngine


class FsspecObjects:
    """Objects as files of an fsspec file system."""

    def __init__(self, url: str) -> None:
        self._files, self._root = fsspec.core.url_to_fs(url)

    def put(self, name: str, data: memoryview) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._files.open(path, "wb") as file:
            file.write(data)

    def get(self, name: str, into: memoryview, offset: int) -> None:
        found = self._files.cat_file(f"{self._root}/{name}", start=offset, end=offset + len(into))
        into[:] = found

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._files.rm_file(f"{self._root}/{name}")

    def names(self) -> list[str]:
        if not self._files.exists(self._root):
            return []
        return [path[len(self._root) + 1 :] for path in self._files.find(self._root)]


class FsspecEngine(ObjectEngine):
    """See ObjectEngine."""

    def __init__(self, plan: EnginePlan) -> None:
        super().__init__(plan, FsspecObjects(plan.url))
