"""Open files: one that reads verified ranges through a cache, one that writes to memory and hands
over when it is closed.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from ckpt_client.fs.spool import Spool
from ckpt_client.fs.steps import HeldStep

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_BLOCK_BYTES: Final = 16 << 20
STREAM_BUFFER_BYTES: Final = 1 << 20
READ_BLOCKS_MAX: Final = 8
"""Of one open file, in memory."""
WRITE_BUFFER_BYTES: Final = 1 << 20


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec ships no types.
    """I read one file of one generation, whatever is committed meanwhile."""

    DEFAULT_BLOCK_SIZE = READ_BLOCK_BYTES

    def __init__(
        self,
        fs: AbstractFileSystem,
        path: str,
        step: HeldStep,
        name: str,
        size: int,
        *,
        block_size: int | None,
        cache_type: str | None,
        cache_options: dict[str, object] | None,
    ) -> None:
        self._step = step
        self._name = name
        options = dict(cache_options or {})
        if cache_type in (None, "blockcache"):
            options.setdefault("maxblocks", READ_BLOCKS_MAX)
        super().__init__(
            fs,
            path,
            "rb",
            block_size=block_size,
            cache_type=cache_type or "blockcache",
            cache_options=options,
            size=size,
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._step.read(self._name, start, min(end, self.size))

    def close(self) -> None:
        if not self.closed:
            self._step.close()
        super().close()


class RangeStream(io.RawIOBase):
    """I read one file of one generation, each range straight into the caller's memory."""

    def __init__(self, step: HeldStep, name: str, size: int) -> None:
        self._step = step
        self._name = name
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, begin + offset)
        return self._place

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        count = max(0, min(target.nbytes, self._size - self._place))
        self._step.read_into(self._name, self._place, target[:count])
        self._place += count
        return count

    def readall(self) -> bytes:
        content = self._step.read(self._name, min(self._place, self._size), self._size)
        self._place += len(content)
        return content

    def close(self) -> None:
        if not self.closed:
            self._step.close()
        super().close()


class WriteFile(io.BufferedRandom):
    """I am memory with a descriptor until `close`, which calls `deliver` once with all of it; when
    that raises, so does `close`. A `with` block that raises, or `discard`, delivers nothing.
    """

    def __init__(self, path: str, deliver: Callable[[WriteFile, Spool], None]) -> None:
        self.path = path
        self._spool = Spool(path)
        self._deliver = deliver
        self._unwanted = False
        self.failure: BaseException | None = None
        """Why `close` has not delivered it; who called that may have kept silent."""
        super().__init__(io.FileIO(self._spool.duplicate(), "r+"), buffer_size=WRITE_BUFFER_BYTES)

    def readable(self) -> bool:
        """False, as for every file that is opened for writing."""
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.spoil()
        self.close()

    def spoil(self) -> None:
        """Nothing of it will be stored, whoever closes it."""
        self._unwanted = True

    def discard(self) -> None:
        """Close it, and store nothing."""
        self.spoil()
        self.close()

    def commit(self) -> None:
        """Of a transaction; its end commits what was closed."""
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        deliver, self._deliver = self._deliver, _nothing
        super().close()  # What could not be flushed is not delivered.
        # At the interpreter's end nobody is left to bring it anywhere.
        if not self._unwanted and not sys.is_finalizing():
            try:
                deliver(self, self._spool)
            except BaseException as error:
                self.failure = error
                raise

    def __del__(self) -> None:
        # Forgotten without close: nobody said that it is complete.
        if not getattr(self, "closed", True):
            self.discard()


def _nothing(_file: WriteFile, _spool: Spool) -> None:
    return
