"""An upload in parts for stores that take an object only at once: the parts are gathered."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from ckpt.format.checksum import Buffer


class GatheredUpload:
    """I hold the object in memory until it is complete; nothing is in the store before."""

    def __init__(self, put: Callable[[Buffer], None]) -> None:
        self._put = put
        self._content = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._content = bytearray()  # A put that failed may still hold a view of the old one.

    def part(self, data: Buffer) -> None:
        self._content += data

    def complete(self) -> None:
        self._put(memoryview(self._content).toreadonly())
        self._content = bytearray()
