"""Other people's readers, in a process that knows nothing of ours: released zarr-python, xarray and
TensorStore walk over a drained checkpoint and say what they found by which name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ckpt.format.dtypes import dtype_of
from ckpt.objects.elements import EXTENSIONS
from ckpt.objects.source import Array
from tests.objects.sources import same_bits

_PLACES: Final = """
import json, sys, warnings
import numpy, zarr
warnings.simplefilter("error")
assert not [name for name in sys.modules if name.split(".")[0].startswith("ckpt")]
folder, out = sys.argv[1:]
group = zarr.open_group(folder, mode="r")
zips = [f"{folder}/{name}" for name in group.attrs["ckpt"]["packed"]]
stores = [folder, *(zarr.storage.ZipStore(name, mode="r") for name in zips)]
found, logical = {}, {}
def see(path, content, attributes):
    path = path.strip("/")
    assert path not in found, path
    found[path], logical[path] = content, attributes.get("logical_dtype", "")
"""
_ZARR: Final = """
for store in stores:
    for path, node in zarr.open_group(store, mode="r").members(max_depth=None):
        if isinstance(node, zarr.Array):
            see(path, numpy.asarray(node[...]), node.attrs)
        else:
            alone = zarr.open_group(store, path=path, mode="r")
            below = [dict(group.members(max_depth=None)).keys() for group in (alone, node)]
            assert below[0] == below[1], path
"""
_XARRAY: Final = """
import xarray
for store in stores:
    for node in xarray.open_datatree(store, engine="zarr").subtree:
        for name, variable in node.data_vars.items():
            see(f"{node.path}/{name}", variable.values, variable.attrs)
"""
_TENSORSTORE: Final = """
import tensorstore as ts
for place in (folder, *zips):
    base = {"driver": "file", "path": place}
    if place != folder:
        base = {"driver": "zip", "base": base}
    keys = ts.KvStore.open(base).result().list().result()
    for key in sorted(key.decode().strip("/") for key in keys):
        if not key.endswith("zarr.json"):
            continue
        path = key.removesuffix("zarr.json")
        within = "/" + path if place == folder else path
        kvstore = dict(base, path=base.get("path", "") + within)
        if json.loads(ts.KvStore.open(dict(kvstore)).result().read("zarr.json").result().value)[
            "node_type"] != "array":
            continue
        array = ts.open({"driver": "zarr3", "kvstore": kvstore}).result()
        attributes = array.spec().to_json(include_defaults=False)["metadata"].get("attributes", {})
        see(path, array.read().result(), attributes)
"""
_END: Final = """
def plain(array):
    return array if array.dtype.type.__module__ == "numpy" else array.view(f"u{array.itemsize}")
numpy.savez(out, **{path: plain(array) for path, array in found.items()})
with open(out + ".json", "w") as file:
    json.dump({path: [str(array.dtype), logical[path]] for path, array in found.items()}, file)
"""
READERS: Final = {"zarr": _ZARR, "xarray": _XARRAY, "tensorstore": _TENSORSTORE}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader gives of one array."""

    array: Array
    dtype: str
    """As the reader calls it."""
    logical_dtype: str
    """Its attribute; else empty."""

    def holds(self, wanted: Array) -> bool:
        """The same bits, maybe in another byte order, or carried by another type."""
        dtype = dtype_of(self.logical_dtype) if self.logical_dtype else self._own_dtype()
        raw = np.frombuffer(self.array.tobytes(), dtype)
        if wanted.dtype.byteorder == ">":  # Each gives numbers in the machine's own order.
            raw = raw.byteswap().view(wanted.dtype)
        return same_bits(raw.reshape(wanted.shape), wanted)

    def _own_dtype(self) -> np.dtype[np.generic]:
        if self.dtype in EXTENSIONS:
            return dtype_of(self.dtype)
        return self.array.dtype


def seen_by(reader: str, folder: Path, out: Path, python: str = sys.executable) -> dict[str, Seen]:
    """Every array of a drained checkpoint by its path, as a reader without ckpt sees it."""
    script = _PLACES + READERS[reader] + _END
    # Isolated: no module of this tree is found by accident.
    line = [python, "-I", "-c", script, str(folder), str(out / reader)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = json.loads((out / f"{reader}.json").read_text())
    with np.load(out / f"{reader}.npz") as arrays:
        return {path: Seen(arrays[path], *kinds[path]) for path in arrays.files}
