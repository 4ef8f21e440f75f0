"""`ioengine=s3`: an object store through obstore, `url=s3://BUCKET/PREFIX` (gs://, az://, file://).

Credentials and endpoint come from the environment, as obstore reads it: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION, AWS_ALLOW_HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import obstore
from obstore.store import from_url

from ckpt.base.units import MiB
from ckptbench.engines.base import EnginePlan
from ckptbench.engines.object_engine import ObjectEngine

PART_BYTES_MIN: Final = 5 * MiB
"""S3 takes no smaller ones."""


class ObstoreObjects:
    """Objects below a URL."""

    def __init__(self, url: str, part_bytes: int = PART_BYTES_MIN) -> None:
        local = url.startswith("file://")
        self._part_bytes = max(PART_BYTES_MIN, part_bytes)
        self._store = from_url(url, mkdir=True) if local else from_url(url)

    def put(self, name: str, data: memoryview) -> None:
        obstore.put(self._store, name, data, chunk_size=self._part_bytes)

    def get(self, name: str, into: memoryview, offset: int) -> None:
        found = obstore.get_range(self._store, name, start=offset, end=offset + len(into))
        into[:] = memoryview(found).cast("B")

    def remove(self, names: Sequence[str]) -> None:
        if names:
            obstore.delete(self._store, list(names))

    def names(self) -> list[str]:
        return [str(one["path"]) for page in obstore.list(self._store) for one in page]


class S3Engine(ObjectEngine):
    """See ObjectEngine."""

    def __init__(self, plan: EnginePlan) -> None:
        super().__init__(plan, ObstoreObjects(plan.url, int(plan.settings["bs"])))
