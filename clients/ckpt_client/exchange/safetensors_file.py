"""Hugging Face's weights: `model-00001-of-000NN.safetensors` and their index.

    file    header length (u64, little-endian) | JSON {name: {dtype, shape, data_offsets}} | data
    index   {"metadata": {"total_size": N}, "weight_map": {name: file}}

Our own few lines instead of the package: it wants a whole file in memory to write one.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from ckpt.aio.durable import is_there
from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.units import MiB
from ckpt.format.dtypes import dtype_of
from ckpt_client.exchange.seen_file import SeenFile
from ckpt_client.exchange.stored_array import StoredArray

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
NAME: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
PART_NAME: Final = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
METADATA: Final = "__metadata__"
"""The name under which a header says something of the file."""
HEADER_BYTES_MAX: Final = 100 * MiB
"""The format's own limit."""
CODES: Final = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<i2": "I16", "<u2": "U16", "<i4": "I32",
    "<u4": "U32", "<i8": "I64", "<u8": "U64", "<f2": "F16", "<f4": "F32", "<f8": "F64",
    "<c8": "C64", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""Our types, and what the format calls them."""
_NAMES: Final = {code: name for name, code in CODES.items()}


def read_directory(folder: Path) -> list[StoredArray]:
    """Every array of a Hugging Face directory, by its index, its one file, or all `*.safetensors`.

    Raises NotFound, Corrupt naming the file and what is wrong, Refused for weights that are there
    twice, ChangedMeanwhile when somebody writes them.
    """
    index = folder / INDEX_NAME
    seen = SeenFile.see(index) if is_there(index) else None
    paths, expected = _paths(folder)
    found: dict[str, StoredArray] = {}
    for path in paths:
        for array in read_header(path):
            if array.name in found:
                raise Corrupt(
                    f"{array.name} is in {found[array.name].file.path.name} and {path.name}"
                )
            found[array.name] = array
    for name, file in expected.items():
        if name not in found or found[name].file.path.name != file:
            raise Corrupt(f"{index} has {name} in {file}, where it is not")
    if seen is not None:
        seen.check()
    return [found[name] for name in sorted(found)]


def read_header(path: Path) -> list[StoredArray]:
    """The arrays of one file. Raises NotFound, Corrupt."""
    seen = SeenFile.see(path)
    header, base = _header(seen)
    return [_stored(seen, name, entry, base) for name, entry in header.items() if name != METADATA]


def read_metadata(path: Path) -> Mapping[str, object]:
    """What its writer said of the file itself. Raises NotFound, Corrupt."""
    found = _header(SeenFile.see(path))[0].get(METADATA)
    return found if isinstance(found, dict) else {}


def _header(seen: SeenFile) -> tuple[dict[str, object], int]:
    """The names, and where the bytes begin. Raises Corrupt, ChangedMeanwhile."""
    path, size = seen.path, seen.size
    with seen.opened() as file:
        start = np.zeros(8, np.uint8)
        length = size + 1
        if size >= len(start):
            file.fill(0, start)
            length = struct.unpack("<Q", start.tobytes())[0]
        if length > min(HEADER_BYTES_MAX, size - 8):
            raise Corrupt(f"{path}: a header of {length} bytes in a file of {size}")
        text = np.empty(length, np.uint8)
        file.fill(8, text)
        file.check()
    try:
        header = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path}: its header does not parse: {error}") from None
    if not isinstance(header, dict):
        raise Corrupt(f"{path}: its header is no JSON object")
    return header, 8 + length


def _stored(seen: SeenFile, name: str, entry: object, base: int) -> StoredArray:
    path, size = seen.path, seen.size
    with suppress(KeyError, TypeError, ValueError):
        assert isinstance(entry, Mapping)
        shape = tuple(int(n) for n in entry["shape"])
        start, end = (int(n) for n in entry["data_offsets"])
        if entry["dtype"] not in _NAMES:
            raise Refused(f"{path}: {name} is of type {entry['dtype']!r}, which is not known here")
        dtype = _NAMES[entry["dtype"]]
        wanted = int(np.prod(shape, dtype=object)) * dtype_of(dtype).itemsize
        if 0 <= start <= end <= size - base and end - start == wanted and min((0, *shape)) == 0:
            return StoredArray(name, seen, dtype, shape, base + start, base + end)
    raise Corrupt(f"{path}: {name}: its entry cannot be: {entry!r:.80}")


def weight_files(folder: Path) -> list[Path]:
    """What `read_directory` and other readers of a Hugging Face directory may take for its weights:
    what its index names, and files of the names that Hugging Face gives. Raises Corrupt for an
    index that does not parse.
    """
    files = {path for path in folder.glob("model*.safetensors") if NAME.fullmatch(path.name)}
    if is_there(folder / INDEX_NAME):
        files.update(_indexed(folder)[0])
    return sorted(path for path in files if is_there(path))


def _paths(folder: Path) -> tuple[list[Path], Mapping[str, str]]:
    if is_there(folder / INDEX_NAME):
        files, weight_map = _indexed(folder)
        if is_there(folder / SINGLE_NAME) and folder / SINGLE_NAME not in files:
            raise Refused(
                f"{folder} has weights twice: in {SINGLE_NAME}, and in what {INDEX_NAME} names",
                hint="name the file itself, or move one of the two away",
            )
        return files, weight_map
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{folder} has no {INDEX_NAME} and no *.safetensors")
    _check_all_there(folder, paths)
    return paths, {}


def _check_all_there(folder: Path, paths: Sequence[Path]) -> None:
    """Files that are called parts of one whole are all there. Raises Corrupt: the index comes last,
    so an export, or a download, was interrupted.
    """
    counts = Counter(match.groups() for path in paths if (match := PART_NAME.fullmatch(path.name)))
    for (name, total), count in counts.items():
        if count != int(total):
            raise Corrupt(
                f"{folder} has {count} of the {int(total)} files {name}-*-of-{total}.safetensors, "
                f"and no {INDEX_NAME}: somebody began to write them and did not end",
                hint="export or fetch them again, or name one file itself",
            )


def _indexed(folder: Path) -> tuple[list[Path], Mapping[str, str]]:
    """The files that the index names, and which array is in which. Raises Corrupt."""
    index = folder / INDEX_NAME
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        files = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{index} does not parse: {error!r}") from None
    if any("/" in name or name.startswith(".") for name in files):
        raise Corrupt(f"{index} names files outside of {folder}")
    return [folder / name for name in files], weight_map
