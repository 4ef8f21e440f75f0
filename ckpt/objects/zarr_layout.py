"""What Zarr readers see: the `zarr.json` of groups and arrays, and the keys of shards.

Zarr v3 core: a regular chunk grid of shards, the default chunk key encoding (`c/0/1`), one codec
`sharding_indexed` whose index is the last bytes of each object. Consolidated metadata are written
besides, as zarr-python does it; they are not in the specification, and no reader needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ckpt.objects.documents import ArrayPlan, Header
from ckpt.objects.elements import Element
from ckpt.objects.names import ZARR

BLOSC_LEVEL: Final = 5
JsonValue = object
JsonObject = dict[str, JsonValue]


def shard_key(array: ArrayPlan, shard: int) -> str:
    """The object of a shard, numbered in C order."""
    coordinates = array.grid.shard_at(shard)
    return "/".join((array.path, "c", *map(str, coordinates)))


def group_documents(header: Header, arrays: Sequence[ArrayPlan]) -> dict[str, bytes]:
    """Every `zarr.json`, by its key: the root's (consolidated), the groups', the arrays'."""
    nodes: dict[str, JsonObject] = {}
    for array in arrays:
        parts = array.path.split("/")
        for depth in range(1, len(parts)):
            nodes.setdefault("/".join(parts[:depth]), _group({}))
        nodes[array.path] = _array(array)
    root = _group({"ckpt": msgspec.to_builtins(header)})
    root["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {path: nodes[path] for path in sorted(nodes)},
    }
    documents = {ZARR: root} | {f"{path}/{ZARR}": node for path, node in nodes.items()}
    return {key: msgspec.json.encode(document) for key, document in sorted(documents.items())}


def _group(attributes: Mapping[str, JsonValue]) -> JsonObject:
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def _array(array: ArrayPlan) -> JsonObject:
    last = array.path.rpartition("/")[2]
    element = Element(array.data_type, array.endian, array.item_bytes, 0, array.logical_dtype)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": array.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.shard_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": element.fill_value,
        "codecs": [_sharding(array)],
        "attributes": {"logical_dtype": array.logical_dtype} if array.logical_dtype else {},
        # xarray opens no array without them; unlike sizes must have unlike names.
        "dimension_names": [f"{last}_{axis}" for axis in range(len(array.shape))],
        "storage_transformers": [],
    }


def _sharding(array: ArrayPlan) -> JsonObject:
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
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": array.chunk_shape,
            "codecs": codecs,
            "index_codecs": [_bytes("little"), {"name": "crc32c"}],
            "index_location": "end",
        },
    }


def _bytes(endian: str) -> JsonObject:
    return {"name": "bytes", "configuration": {"endian": endian}} if endian else {"name": "bytes"}
