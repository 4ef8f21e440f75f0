"""numpy's archive: one file, an uncompressed `.npy` for each array, written piece by piece.

Types that `.npy` cannot name (bfloat16, float8, int4) are stored as unsigned integers; the entry
`__logical_dtypes__.json` says what they are.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ckpt.objects.source import Source
from ckpt_client.exchange.tensors import NamedArray, pieces
from ckpt_client.exchange.whole_file import WholeFile


def write_npz(source: Source, arrays: Sequence[NamedArray], path: Path) -> Iterable[int]:
    """Write the archive; yields how many bytes each step wrote."""
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
            archive.writestr("__logical_dtypes__.json", json.dumps(logical, indent=1))
        archive.close()
        file.complete()


def _npy_header(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}  # fmt: skip
    np.lib.format.write_array_header_2_0(header, description)
    return header.getvalue()


class _Appending(io.RawIOBase):
    """A file that can only grow: zipfile then writes sizes behind its entries."""

    def __init__(self, file: WholeFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # zipfile gives bytes-like objects.
        self._file.write(view)
        return view.nbytes
