"""What stands above a file that is written: text, a compressor.

Whoever holds the layer ends the file with it. So a layer closes what is below, which not every
compressor does; and one whose `with` block raises, or that is forgotten, stores nothing, as the
file itself would.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from fsspec.compression import compr
from fsspec.core import get_compression

from ckpt_client.fs.files import WriteFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, slots=True)
class TextOptions:
    """As the built-in `open` takes them."""

    encoding: str | None = None
    errors: str | None = None
    newline: str | None = None

    @classmethod
    def taken_from(cls, options: dict[str, object]) -> Self:
        """Take them out of the options, as fsspec's `open` does. Raises TypeError."""
        names = ("encoding", "errors", "newline")
        found = {name: options.pop(name) for name in names if name in options}
        texts = {name: text for name, text in found.items() if isinstance(text, str | None)}
        if len(texts) < len(found):
            raise TypeError(f"encoding, errors and newline are text: {found}")
        return cls(**texts)


class Compressor(Protocol):
    """A file object of the library that compresses."""

    def write(self, data: ReadableBuffer, /) -> int: ...

    def close(self) -> None: ...


def above(
    file: WriteFile, mode: str, compression: str | None, text: TextOptions
) -> CompressedFile | TextFile | WriteFile:
    """The layers that a mode and a compression ask for. Raises ValueError, LookupError."""
    below: CompressedFile | WriteFile = file
    name = get_compression(file.path, compression)
    if name is not None:
        below = CompressedFile(file, compr[name](file, mode="w"))
    return below if "b" in mode else TextFile(file, below, text)


class _Layer(io.IOBase):
    """I end my file as I end."""

    _file: WriteFile

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._file.spoil()
        self.close()

    def __del__(self) -> None:
        # One whose making failed has no state to ask for.
        with suppress(ValueError, AttributeError):
            if not self.closed:
                self._file.spoil()
                self.close()


class CompressedFile(_Layer, io.BufferedIOBase):
    """I close my compressor, then the file that it writes to."""

    def __init__(self, file: WriteFile, compressor: Compressor) -> None:
        self._file = file
        self._compressor = compressor

    @property
    def name(self) -> str:
        """Its file's path."""
        return self._file.path

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        return self._compressor.write(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._compressor.close()
        except BaseException:
            self._file.spoil()
            raise
        finally:
            super().close()
            self._file.close()


class TextFile(_Layer, io.TextIOWrapper):
    """I encode text."""

    def __init__(
        self, file: WriteFile, below: CompressedFile | WriteFile, options: TextOptions
    ) -> None:
        self._file = file
        super().__init__(below, options.encoding, options.errors, options.newline)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
        except BaseException:
            self._file.spoil()
            raise
        finally:
            super().close()
