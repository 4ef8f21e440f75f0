"""numpy's archive: one file, a `.npy` for each array, written piece by piece and read in place.

Types that `.npy` cannot name (bfloat16, float8, int4) are stored as unsigned integers; the entry
`__logical_dtypes__.json` says what they are.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt, Refused
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt.objects.source import Array, Source
from ckpt_client.exchange.arrays import HeldArray, Incoming
from ckpt_client.exchange.seen_file import SeenFile
from ckpt_client.exchange.stored_array import StoredArray
from ckpt_client.exchange.tensors import NamedArray, pieces
from ckpt_client.exchange.whole_file import WholeFile

LOGICAL: Final = "__logical_dtypes__.json"
LOCAL_HEADER_BYTES: Final = 30


def write_npz(source: Source, arrays: Sequence[NamedArray], path: Path) -> Iterable[int]:
    """Write the archive; yields the bytes that each step wrote. Raises Refused naming an array that
    readers would not find; before anything is written.
    """
    names = {array.name for array in arrays}
    for name in sorted(names):
        _check(name, names)
    logical: dict[str, str] = {}
    with WholeFile(path) as file, zipfile.ZipFile(_Appending(file), "w") as archive:
        for array in arrays:
            stored = array.dtype
            if stored.type.__module__ != "numpy":
                stored = np.dtype(f"u{stored.itemsize}")
                logical[array.name] = array.tensor.dtype
            with archive.open(f"{array.name}.npy", "w", force_zip64=True) as entry:
                entry.write(_npy_header(stored, array.shape))
                for piece in pieces(source, array):
                    entry.write(piece)
                    yield len(piece)
        if logical:
            archive.writestr(LOGICAL, json.dumps(logical, indent=1))
        archive.close()
        file.complete()


def _check(name: str, names: Collection[str]) -> None:
    """The archive cuts a name at a zero byte; numpy adds `.npy` to a name that it does not find."""
    if "\0" in name or f"{name}.npy" in names:
        raise Refused(
            f"numpy's readers would not find {name!r} in an archive",
            hint="export with --format zarr, or without it by --prefix",
        )


def read_npz(path: Path) -> Sequence[Incoming]:
    """Every array, by name. Raises NotFound, Corrupt, Refused naming the entry.

    Objects are refused: numpy would have to run what the file says (pickle).
    """
    seen = SeenFile.see(path)
    with _archive_of(seen) as archive:
        entries = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        logical = {}
        if LOGICAL in archive.namelist():
            logical = json.loads(archive.read(LOGICAL))
        return [_entry(seen, archive, info, logical) for info in entries]


@contextmanager
def _archive_of(seen: SeenFile) -> Iterator[zipfile.ZipFile]:
    """The archive, and at the end: was all that was read of it as it was seen? Raises
    ChangedMeanwhile, Corrupt.
    """
    try:
        with zipfile.ZipFile(seen.path) as archive:
            yield archive
    except Corrupt:
        seen.check()
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        seen.check()
        raise Corrupt(f"{seen.path}: {error}") from None
    seen.check()


def _entry(
    seen: SeenFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo, logical: Mapping[str, str]
) -> Incoming:
    path = seen.path
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as entry:
        version = np.lib.format.read_magic(entry)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(entry)
        header_bytes = entry.tell()
    if dtype.hasobject:
        raise Refused(f"{path}: {name} holds Python objects", hint="save it as plain numbers")
    ours = logical.get(name) or dtype_name(dtype)
    if dtype_of(ours).itemsize != dtype.itemsize:
        raise Corrupt(f"{path}: {name} is called {ours} and has elements of {dtype.itemsize} bytes")
    if info.compress_type == zipfile.ZIP_STORED and not is_fortran:
        start = _data_offset(seen, info) + header_bytes
        end = start + math.prod(shape) * dtype.itemsize
        if end - start != info.file_size - header_bytes or end > seen.size:
            raise Corrupt(f"{path}: {name} has not the bytes that its header says")
        return StoredArray(name, seen, ours, shape, start, end)
    return HeldArray(name, ours, shape, partial(_loaded, seen, info.filename, ours, shape))


def _data_offset(seen: SeenFile, info: zipfile.ZipInfo) -> int:
    """Where an entry's bytes begin: its local header may be longer than the directory says."""
    with seen.opened() as file:
        header = np.empty(LOCAL_HEADER_BYTES, np.uint8)
        file.fill(info.header_offset, header)
    local = header.tobytes()
    if local[:4] != b"PK\3\4":
        raise Corrupt(f"{seen.path}: {info.filename} has no local header")
    name_bytes, extra_bytes = struct.unpack("<HH", local[26:30])
    return info.header_offset + LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)


def _loaded(seen: SeenFile, entry: str, dtype: str, shape: tuple[int, ...]) -> Array:
    with _archive_of(seen) as archive, archive.open(entry) as file:
        found = np.lib.format.read_array(file, allow_pickle=False)
    return np.ascontiguousarray(found).view(dtype_of(dtype)).reshape(shape)


def _npy_header(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}  # fmt: skip
    np.lib.format.write_array_header_2_0(header, description)
    return header.getvalue()


class _Appending(io.RawIOBase):
    """A file that can only grow: zipfile then writes sizes after its entries."""

    def __init__(self, file: WholeFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # zipfile gives bytes-like objects.
        self._file.write(view)
        return view.nbytes
