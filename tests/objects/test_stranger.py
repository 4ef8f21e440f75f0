"""A stranger reads a drained checkpoint by docs/drain_format.md: json, struct, zlib, base64 and
numpy,
and nothing of ours. Whoever changes the format changes that page and this reader.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from itertools import accumulate, product
from pathlib import Path

import ml_dtypes
import numpy as np

from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.sources import MemorySource, many_kinds, same_bits

Json = dict  # A stranger's JSON has no types.


class Stranger:
    """The page's four steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        marker = json.loads((folder / "COMMITTED.json").read_text())
        assert (marker["format"], marker["version"]) == ("ckpt-drain", "1.0")
        header = marker["header"]
        assert folder.name == header["generation"]
        assert folder.parent.name.endswith(f"@{header['step']}")
        raw = (folder / marker["manifest"]["key"]).read_bytes()
        assert len(raw) == marker["manifest"]["bytes"]
        assert zlib.crc32(raw) == marker["manifest"]["crc32"]
        self.manifest = json.loads(raw)

    def tensor(self, name: str, rank: int | None = None) -> np.ndarray:
        for tensor in self.manifest["tensors"]:
            if tensor["name"] != name or (tensor["meaning"] == "own") != (rank is not None):
                continue
            ranks = [box["rank"] for box in tensor["boxes"]]
            place = tensor["places"][0 if rank is None else ranks.index(rank)]
            if "start" in place:
                raw = self.archived(place["array"])[place["start"] :][: place["length"]]
            else:
                raw = np.frombuffer(self.array(place["array"]).tobytes(), np.uint8)
            return raw.view(dtype_of(tensor["dtype"])).reshape(tensor["shape"])
        raise KeyError(name)

    def archived(self, number: int) -> np.ndarray:
        array = self.manifest["arrays"][number]
        assert array["archive"]
        content = (self.folder / array["path"]).read_bytes()
        (stored,) = self.manifest["objects"][number]
        assert (len(content), zlib.crc32(content)) == (stored["bytes"], stored["crc32"])
        return np.frombuffer(content, np.uint8)

    def array(self, number: int) -> np.ndarray:
        array = self.manifest["arrays"][number]
        assert not array["compressed"]
        shape, shard = array["shape"], array["shard_shape"]
        whole = np.zeros([*shape, array["item_bytes"]], np.uint8)
        counts = [range(math.ceil(n / s)) for n, s in zip(shape, shard, strict=True)]
        objects = self.manifest["objects"][number]
        for at, stored in zip(product(*counts), objects, strict=True):
            path = self.folder / array["path"] / "c" / "/".join(map(str, at))
            content = path.read_bytes()
            assert (len(content), zlib.crc32(content)) == (stored["bytes"], stored["crc32"])
            self.fill(whole, array, at, content, stored)
        return whole

    def fill(self, whole: np.ndarray, array: Json, at: tuple, content: bytes, stored: Json) -> None:
        chunk, shard = array["chunk_shape"], array["shard_shape"]
        inside = [range(s // c) for s, c in zip(shard, chunk, strict=True)]
        count = math.prod(map(len, inside))
        lengths = struct.unpack(f"<{count}I", base64.b64decode(stored["chunk_lengths"]))
        ends = [0, *accumulate(lengths)]
        assert index_of(content, count) == [
            (ends[n], length) if length else (2**64 - 1, 2**64 - 1)
            for n, length in enumerate(lengths)
        ]
        crcs = struct.unpack(f"<{count}I", base64.b64decode(stored["chunk_crcs"]))
        for number, position in enumerate(product(*inside)):
            if not lengths[number]:
                continue
            raw = content[ends[number] : ends[number + 1]]
            assert zlib.crc32(raw) == crcs[number]
            elements = np.frombuffer(raw[:-4], np.uint8).reshape(*chunk, array["item_bytes"])
            low = [a * s + p * c for a, s, p, c in zip(at, shard, position, chunk, strict=True)]
            part = tuple(slice(o, o + c) for o, c in zip(low, chunk, strict=True))
            target = whole[part]
            target[...] = elements[tuple(slice(0, n) for n in target.shape[:-1])]


def index_of(content: bytes, count: int) -> list[tuple[int, int]]:
    flat = struct.unpack(f"<{2 * count}Q", content[-(16 * count + 4) : -4])
    return list(zip(flat[::2], flat[1::2], strict=True))


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def test_a_stranger_reads_every_tensor(tmp_path: Path) -> None:
    kinds = many_kinds()
    source = MemorySource(kinds, {"mine": kinds["model/big"]}, values={"lr": 0.5})
    options = WriteOptions(compression="none", chunk_bytes=4 << 20, shard_bytes=64 << 20)
    write_checkpoint(FileSink(tmp_path), source, options, WriteLimits())
    stranger = Stranger(tmp_path / "team" / "llama=207b@500" / "1.3")
    for name, array in kinds.items():
        assert same_bits(stranger.tensor(name), array), name
    assert same_bits(stranger.tensor("mine", rank=1), kinds["model/big"])

    trees = json.loads((stranger.folder / "trees.json").read_text())["trees"]
    assert [entry["ranks"] for entry in trees] == [[[0, 0]], [[1, 1]]]
    assert ["lr", 0.5] in trees[0]["tree"]["dict"]
    assert ["mine", {"tensor": "mine"}] in trees[1]["tree"]["dict"]
