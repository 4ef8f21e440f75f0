"""A fake object store: what it holds outlives its clients, and each operation may strike.

A strike happens before or after an operation's effect: the client is killed, or the answer is an
error, or somebody else gets his turn in between.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ckpt.base.errors import NotFound, Unavailable
from ckpt.format.checksum import Buffer
from ckpt.objects.sinks.sink import PendingUpload, at_once

Strike = Callable[[str, bool], None]
"""Called around every operation, with what it is about and whether it has had its effect; may raise
Killed or Unavailable.
"""


class Killed(BaseException):
    """The process ends here. No handler of errors may see it."""


class AskedAgain(Unavailable):
    """The client heard nothing, asked again, and was told (409, 412) that the object is there."""


def calm(_key: str, _is_done: bool) -> None:
    """Nothing happens."""


@dataclass
class Bucket:
    """What lies in one store."""

    url: str
    conditional: bool
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, str] = field(default_factory=dict)
    """The store's name of an upload that was begun -> its key."""
    created: Callable[[str], None] = lambda _key: None
    """Told of every object, when it is there."""
    changes: int = 0
    """How often a key has come or gone."""
    _uploads_begun: int = 0

    def begin_upload(self, key: str) -> str:
        self._uploads_begun += 1
        self.uploads[f"u{self._uploads_begun}"] = key
        return f"u{self._uploads_begun}"

    def set(self, key: str, content: bytes) -> None:
        self.changes += key not in self.objects
        self.objects[key] = content
        self.created(key)

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self.changes += 1


class FakeSink:
    """One process's view of a bucket; a Sink. Dead once it was killed."""

    def __init__(self, bucket: Bucket, strike: Strike) -> None:
        self.bucket = bucket
        self.url = bucket.url
        self.conditional = bucket.conditional
        self.strike = strike

    def put(self, key: str, data: Buffer) -> None:
        self.strike(key, False)
        self.bucket.set(key, bytes(data))
        self.strike(key, True)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self.strike(key, False)
        if key in self.bucket.objects and self.conditional:
            return False
        self.bucket.set(key, bytes(data))
        try:
            self.strike(key, True)
        except AskedAgain:
            return not self.conditional
        return True

    def settle(self, key: str) -> None:
        """Nothing here is lost."""

    def upload(self, key: str) -> FakeUpload:
        return FakeUpload(self, key)

    def get(self, key: str) -> bytes:
        self.strike(key, False)
        try:
            return self.bucket.objects[key]
        except KeyError:
            raise NotFound(f"there is no {key}") from None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.get(key)[start:end]

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        wait_turn()
        content = self.get(key)
        return len(content), zlib.crc32(content)

    def head(self, key: str) -> int | None:
        self.strike(key, False)
        content = self.bucket.objects.get(key)
        return None if content is None else len(content)

    def list(self, prefix: str) -> Iterator[str]:
        self.strike(prefix, False)
        yield from sorted(key for key in self.bucket.objects if key.startswith(prefix))

    def children(self, prefix: str) -> Sequence[str]:
        self.strike(prefix, False)
        below = [key[len(prefix) :] for key in self.bucket.objects if key.startswith(prefix)]
        return sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in below})

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.strike(key, False)
            self.bucket.remove(key)
            self.strike(key, True)

    def pending_uploads(self, prefix: str) -> Sequence[PendingUpload]:
        self.strike(prefix, False)
        found = self.bucket.uploads.items()
        return [PendingUpload(key, name, 0.0) for name, key in found if key.startswith(prefix)]

    def abort_upload(self, upload: PendingUpload) -> None:
        self.strike(upload.key, False)
        self.bucket.uploads.pop(upload.upload, None)

    def close(self) -> None:
        """Nothing is held."""


class FakeUpload:
    """An object in parts. A killed process aborts nothing."""

    def __init__(self, sink: FakeSink, key: str) -> None:
        self._sink = sink
        self._key = key
        self._content = bytearray()

    def __enter__(self) -> Self:
        self._sink.strike(self._key, False)
        self._name = self._sink.bucket.begin_upload(self._key)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Killed):
            self._sink.bucket.uploads.pop(self._name, None)

    def part(self, data: Buffer) -> None:
        self._content += data

    def complete(self) -> None:
        self._sink.strike(self._key, False)
        if self._name not in self._sink.bucket.uploads:
            raise Unavailable(f"{self._key}: the upload is gone")
        del self._sink.bucket.uploads[self._name]
        self._sink.bucket.set(self._key, bytes(self._content))
        self._sink.strike(self._key, True)
