"""Hugging Face's weights: `model-00001-of-000NN.safetensors` and their index, read and written.

    file    header length (u64, little-endian) | JSON {name: {dtype, shape, data_offsets}} | data
    index   {"metadata": {"total_size": N}, "weight_map": {name: file}}

Our own few lines instead of the package: it wants a whole file in memory to write one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.units import GiB, MiB
from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array, Source
from ckpt_client.exchange.tensors import NamedArray, pieces
from ckpt_client.exchange.whole_file import WholeFile

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
FILE_BYTES: Final = 5 * GiB
"""Hugging Face's own default for one file."""
HEADER_BYTES_MAX: Final = 100 * MiB
"""The format's own limit."""
_CODES: Final = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<i2": "I16", "<u2": "U16", "<i4": "I32",
    "<u4": "U32", "<i8": "I64", "<u8": "U64", "<f2": "F16", "<f4": "F32", "<f8": "F64",
    "<c8": "C64", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_NAMES: Final = {code: name for name, code in _CODES.items()}


def write_safetensors(
    source: Source, arrays: Sequence[NamedArray], folder: Path, file_bytes: int = FILE_BYTES
) -> Iterable[int]:
    """Write the files and, last, the index; yields the bytes that each step wrote.

    Raises Refused naming the array whose type the format has not.
    """
    for array in arrays:
        if array.tensor.dtype not in _CODES:
            raise Refused(
                f"{array.name}: safetensors has no {array.tensor.dtype}",
                hint="export with --format npz or zarr, or without it by --prefix",
            )
    files = list(_split(arrays, file_bytes))
    weight_map: dict[str, str] = {}
    for number, group in enumerate(files, start=1):
        name = SINGLE_NAME
        if len(files) > 1:
            name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        weight_map.update((array.name, name) for array in group)
        yield from _write_file(source, group, folder / name)
    if len(files) > 1:
        total = sum(array.byte_count for array in arrays)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        with WholeFile(folder / INDEX_NAME) as file:
            file.write(json.dumps(index, indent=2).encode())
            file.complete()


def _write_file(source: Source, arrays: Sequence[NamedArray], path: Path) -> Iterable[int]:
    header: dict[str, object] = {"__metadata__": {"format": "pt", "source": str(source.header)}}
    at = 0
    for array in arrays:
        end = at + array.byte_count
        header[array.name] = {
            "dtype": _CODES[array.tensor.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with WholeFile(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            for piece in pieces(source, array):
                file.write(piece)
                yield len(piece)
        file.complete()


def _split(arrays: Sequence[NamedArray], file_bytes: int) -> Iterable[list[NamedArray]]:
    group: list[NamedArray] = []
    size = 0
    # The widest elements first, so that all offsets are aligned as readers like them.
    for array in sorted(arrays, key=lambda one: (-one.dtype.itemsize, one.name)):
        if group and size + array.byte_count > file_bytes:
            yield group
            group, size = [], 0
        group.append(array)
        size += array.byte_count
    yield group


# --------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array in a file."""

    name: str
    path: Path
    dtype: str
    """Ours."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes in the file."""
    end: int

    def mapped(self) -> Array:
        """The array's bytes where they lie in the file: the page cache's memory, not ours."""
        dtype = dtype_of(self.dtype)
        if self.start == self.end:
            return np.empty(self.shape, dtype)
        raw = np.memmap(self.path, np.uint8, "r", self.start, (self.end - self.start,))
        return np.asarray(raw).view(dtype).reshape(self.shape)


def read_directory(folder: Path) -> list[StoredArray]:
    """Every array of a Hugging Face directory, by its index, its one file, or all `*.safetensors`.

    Raises NotFound, Corrupt naming the file and what is wrong.
    """
    paths, expected = _paths(folder)
    found: dict[str, StoredArray] = {}
    for path in paths:
        for array in read_header(path):
            if array.name in found:
                raise Corrupt(f"{array.name} is in {found[array.name].path.name} and {path.name}")
            found[array.name] = array
    for name, file in expected.items():
        if name not in found or found[name].path.name != file:
            raise Corrupt(f"{folder / INDEX_NAME} has {name} in {file}, where it is not")
    return [found[name] for name in sorted(found)]


def read_header(path: Path) -> list[StoredArray]:
    """The arrays of one file. Raises NotFound, Corrupt."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size + 1
            if length > min(HEADER_BYTES_MAX, size - 8):
                raise Corrupt(f"{path}: a header of {length} bytes in a file of {size}")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except ValueError as error:
        raise Corrupt(f"{path}: its header does not parse: {error}") from None
    if not isinstance(header, dict):
        raise Corrupt(f"{path}: its header is no JSON object")
    base = 8 + length
    return [
        _stored(path, name, entry, base, size)
        for name, entry in header.items()
        if name != "__metadata__"
    ]


def _stored(path: Path, name: str, entry: object, base: int, size: int) -> StoredArray:
    with suppress(KeyError, TypeError, ValueError):
        assert isinstance(entry, Mapping)
        shape = tuple(int(n) for n in entry["shape"])
        start, end = (int(n) for n in entry["data_offsets"])
        if entry["dtype"] not in _NAMES:
            raise Refused(f"{path}: {name} is of type {entry['dtype']!r}, which is not known here")
        dtype = _NAMES[entry["dtype"]]
        wanted = int(np.prod(shape, dtype=object)) * dtype_of(dtype).itemsize
        if 0 <= start <= end <= size - base and end - start == wanted and min((0, *shape)) == 0:
            return StoredArray(name, path, dtype, shape, base + start, base + end)
    raise Corrupt(f"{path}: {name}: its entry cannot be: {entry!r:.80}")


def _paths(folder: Path) -> tuple[list[Path], Mapping[str, str]]:
    index = folder / INDEX_NAME
    if index.exists():
        try:
            weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
            files = sorted({str(name) for name in weight_map.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"{index} does not parse: {error!r}") from None
        if any("/" in name or name.startswith(".") for name in files):
            raise Corrupt(f"{index} names files outside of {folder}")
        return [folder / name for name in files], weight_map
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{folder} has no {INDEX_NAME} and no *.safetensors")
    return paths, {}
