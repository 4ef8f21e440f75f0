"""Writing a folder of weights for Hugging Face, in place of an earlier export or not at all.

    claim the folder, clear what a killed export left
    every new file, aside -> the old index goes, then the old files -> new names, the index last

So readers find one export or none, never a mix: they go by `model.safetensors` where it is there,
else by the index. An export that fails leaves the earlier one as it was. Weights that no export
made are somebody else's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import Refused
from ckpt.base.units import GiB
from ckpt.objects.source import Source
from ckpt_client.exchange.claims import PART, FolderClaim
from ckpt_client.exchange.safetensors_file import (
    CODES,
    INDEX_NAME,
    METADATA,
    SINGLE_NAME,
    read_metadata,
    weight_files,
)
from ckpt_client.exchange.tensors import NamedArray, pieces
from ckpt_client.exchange.whole_file import WholeFile

FILE_BYTES: Final = 5 * GiB
"""Hugging Face's own default for one file."""
SOURCE: Final = "source"
"""What the metadata of an exported file calls the checkpoint that it is of."""


def write_safetensors(
    source: Source, arrays: Sequence[NamedArray], folder: Path, file_bytes: int = FILE_BYTES
) -> Iterable[int]:
    """Write the files, then put them in their places; yields the bytes that each step wrote.

    Raises Refused naming the array that the format cannot have, or the weights in the folder that
    no export made; before anything is written. Busy while another export writes there.
    """
    for array in arrays:
        _check(array)
    _earlier_export(folder)  # Before the folder is claimed: what is refused changes nothing.
    with FolderClaim(folder):
        yield from _written(source, arrays, folder, file_bytes)


def _written(
    source: Source, arrays: Sequence[NamedArray], folder: Path, file_bytes: int
) -> Iterable[int]:
    old = _earlier_export(folder)
    for path in folder.glob(f".model*.safetensors*{PART}"):
        path.unlink(missing_ok=True)  # Of an export that was killed: it would have the claim.
    groups = list(_split(arrays, file_bytes))
    names = [SINGLE_NAME]
    if len(groups) > 1:
        names = [
            f"model-{n:05d}-of-{len(groups):05d}.safetensors" for n in range(1, len(groups) + 1)
        ]
    with ExitStack() as stack:
        written: list[WholeFile] = []
        for name, group in zip(names, groups, strict=True):
            written.append(stack.enter_context(WholeFile(folder / name)))
            yield from _write_file(source, group, written[-1])
        if len(groups) > 1:
            index = stack.enter_context(WholeFile(folder / INDEX_NAME))
            index.write(_index(names, groups))
            index.finish()
            written.append(index)
        for path in old:
            path.unlink(missing_ok=True)
        for file in written:
            file.complete()


def _check(array: NamedArray) -> None:
    if array.tensor.dtype not in CODES:
        raise Refused(
            f"{array.name}: safetensors has no {array.tensor.dtype}",
            hint="export with --format npz or zarr, or without it by --prefix",
        )
    if array.name == METADATA:
        raise Refused(
            f"an array is called {METADATA}, which safetensors takes for its own words",
            hint="export with --format npz or zarr, or without it by --prefix",
        )


def _earlier_export(folder: Path) -> list[Path]:
    """Its index first, then its files. Raises Refused when somebody else made one of them."""
    files = weight_files(folder)
    for path in files:
        if SOURCE not in read_metadata(path):
            raise Refused(
                f"{path} is there, and no export made it: together they would be a mix",
                hint="move it away, or export to another folder",
            )
    index = folder / INDEX_NAME
    return [index, *files] if is_there(index) else files


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


def _write_file(source: Source, arrays: Sequence[NamedArray], file: WholeFile) -> Iterable[int]:
    text = json.dumps(_header(source, arrays)).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays:
        for piece in pieces(source, array):
            file.write(piece)
            yield len(piece)
    file.finish()


def _header(source: Source, arrays: Sequence[NamedArray]) -> Mapping[str, object]:
    header: dict[str, object] = {METADATA: {"format": "pt", SOURCE: str(source.header)}}
    at = 0
    for array in arrays:
        end = at + array.byte_count
        header[array.name] = {
            "dtype": CODES[array.tensor.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    return header


def _index(names: Sequence[str], groups: Sequence[Sequence[NamedArray]]) -> bytes:
    total = sum(array.byte_count for group in groups for array in group)
    files = zip(names, groups, strict=True)
    weight_map = {array.name: name for name, group in files for array in group}
    return json.dumps(
        {"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2
    ).encode()
