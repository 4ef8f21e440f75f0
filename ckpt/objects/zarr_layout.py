"""What Zarr readers see: the `zarr.json` of groups and arrays, and the keys of shards.

Zarr v3 core: a regular chunk grid of shards, the default chunk key encoding (`c/0/1`), one codec
`sharding_indexed` whose index is the last bytes of each object. An array in an archive is one chunk
of plain bytes.

Consolidated metadata are written besides, as zarr-python does it; they are not in the
specification. In them bfloat16 and float8 are their twins: unsigned integers with the attribute
`logical_dtype`. zarr-python and xarray read a group through them, and open none that names a type
which they lack; TensorStore reads an array's own document, and gets the type itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ckpt.objects.documents import ArrayPlan, Header
from ckpt.objects.elements import Element
from ckpt.objects.names import ZARR, groups_above

BLOSC_LEVEL: Final = 5
JsonValue = object
JsonObject = dict[str, JsonValue]
Codecs = Callable[[ArrayPlan], list[JsonObject]]


def shard_key(array: ArrayPlan, shard: int) -> str:
    """The object of a shard, numbered in C order."""
    if array.archive:
        return array.path
    coordinates = array.grid.shard_at(shard)
    return "/".join((array.path, "c", *map(str, coordinates)))


def group_documents(header: Header, arrays: Sequence[ArrayPlan]) -> dict[str, bytes]:
    """Every `zarr.json` by its key: the root's, the groups', the arrays'."""
    packed = [array.path for array in arrays if array.archive]
    attributes: JsonObject = {"ckpt": {**msgspec.to_builtins(header), "packed": packed}}
    return _documents(attributes, [array for array in arrays if not array.archive], _sharding, {})


def archived_documents(
    header: Header, arrays: Sequence[ArrayPlan], ranks: Mapping[str, Sequence[int]]
) -> dict[str, bytes]:
    """The same of the group in an archive. ranks: by an array's path, those that have a row."""
    return _documents({"ckpt": msgspec.to_builtins(header)}, arrays, _plain, ranks)


def _documents(
    attributes: JsonObject,
    arrays: Sequence[ArrayPlan],
    codecs: Codecs,
    ranks: Mapping[str, Sequence[int]],
) -> dict[str, bytes]:
    nodes: dict[str, JsonObject] = {"": _group(attributes)}
    known: dict[str, JsonObject] = {}
    twins: set[str] = {""}
    for array in arrays:
        element = Element(array.data_type, array.endian, array.item_bytes, 0, array.logical_dtype)
        above = groups_above(array.path)
        for path in above:
            known[path] = nodes.setdefault(path, _group({}))
        nodes[array.path] = _array(array, element, codecs, ranks.get(array.path, ()))
        known[array.path] = nodes[array.path]
        if element.twin != element:
            twin = _array(array, element.twin, codecs, ranks.get(array.path, ()))
            known[array.path] = twin
            twins.update(above)
    # A group below the root needs none, unless a reader that lists it would meet such a type.
    paths = sorted(known)
    whole = {path: nodes[path] | _consolidated(path, paths, known) for path in sorted(twins)}
    documents = {f"{path}/{ZARR}".lstrip("/"): node for path, node in (nodes | whole).items()}
    return {key: msgspec.json.encode(document) for key, document in sorted(documents.items())}


def _consolidated(group: str, paths: Sequence[str], known: Mapping[str, JsonObject]) -> JsonObject:
    """Of what is below a group."""
    below = paths
    if group:
        # "0" comes right after "/".
        below = paths[bisect_left(paths, f"{group}/") : bisect_left(paths, f"{group}0")]
    skipped = len(f"{group}/".lstrip("/"))
    return {
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": {path[skipped:]: known[path] for path in below},
        }
    }


def _group(attributes: Mapping[str, JsonValue]) -> JsonObject:
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def _array(array: ArrayPlan, element: Element, codecs: Codecs, ranks: Sequence[int]) -> JsonObject:
    attributes: JsonObject = {}
    if element.logical_dtype:
        attributes["logical_dtype"] = element.logical_dtype
    if ranks:
        attributes["ranks"] = list(ranks)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": element.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.shard_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": element.fill_value,
        "codecs": codecs(array),
        "attributes": attributes,
        # xarray opens no array without them. One that another array has, or a group above, must
        # have the same size; one may not be a scalar's name: so a path of its own for each axis.
        "dimension_names": [f"{array.path}/{axis}" for axis in range(len(array.shape))],
        "storage_transformers": [],
    }


def _plain(array: ArrayPlan) -> list[JsonObject]:
    return [_bytes(array.endian)]


def _sharding(array: ArrayPlan) -> list[JsonObject]:
    codecs: list[JsonObject] = [_bytes(array.endian)]
    if array.compressed:
        codecs.append(
            {
                "name": "blosc",
                "configuration": {
                    "typesize": array.item_bytes,
                    "cname": "lz4",
                    "clevel": BLOSC_LEVEL,
                    "shuffle": "bitshuffle",
                    "blocksize": 0,
                },
            }
        )
    codecs.append({"name": "crc32c"})
    configuration: JsonObject = {
        "chunk_shape": array.chunk_shape,
        "codecs": codecs,
        "index_codecs": [_bytes("little"), {"name": "crc32c"}],
        "index_location": "end",
    }
    return [{"name": "sharding_indexed", "configuration": configuration}]


def _bytes(endian: str) -> JsonObject:
    return {"name": "bytes", "configuration": {"endian": endian}} if endian else {"name": "bytes"}
