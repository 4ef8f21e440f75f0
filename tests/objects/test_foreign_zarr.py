"""Released zarr-python, alone: every group opens, every tensor is there by its name."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ckpt.objects import names
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.landing import in_turn
from tests.objects.foreign import seen_by
from tests.objects.sources import HEADER, MemorySource, every_type, many_kinds, random_bits

PREFIX = names.generation_prefix(*HEADER.key)
LIMITS = WriteLimits(threads=2, memory_bytes=128 << 20)
OBJECTS_BEFORE = 12
"""Of `small_model`, when all that is small was bytes of one array."""


def small_model() -> MemorySource:
    """52 tensors, 50 of them small, of three types."""
    arrays = {
        f"model/layers/{n}/{name}": random_bits("<f4", (n + 1, 8))
        for n in range(12)
        for name in ("weight", "bias", "norm", "scale")
    }
    arrays["model/embedding"] = random_bits(ml_dtypes.bfloat16, (1000, 1000))
    arrays["model/head"] = random_bits("<f4", (600, 1000))
    arrays["step"] = np.array(7)
    arrays["model/half"] = random_bits(ml_dtypes.bfloat16, (7,))
    return MemorySource(arrays)


def written(source: MemorySource, place: Path, *, portable: bool = False) -> Path:
    """The folder of a drained checkpoint."""
    options = WriteOptions(portable=portable)
    write_checkpoint(FileSink(place), source, options, LIMITS)
    return place / PREFIX


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    "kinds", in_turn([many_kinds, every_type, lambda: small_model().whole], every=3)
)
def test_zarr_alone_reads_every_tensor_by_its_name(
    tmp_path: Path, kinds: object, portable: bool
) -> None:
    source = MemorySource(kinds(), {"rng": random_bits("<u4", (5,))})  # type: ignore[operator]
    seen = seen_by("zarr", written(source, tmp_path / "store", portable=portable), tmp_path)
    for name, array in source.whole.items():
        assert seen.pop(f"tensors/{names.node_path(name)}").holds(array), name
    assert seen.pop("ranks/each/rng").holds(source.own["rng"][np.newaxis])
    assert not seen, "and nothing that is no tensor"


def test_a_small_model_has_no_more_objects_than_before(tmp_path: Path) -> None:
    folder = written(small_model(), tmp_path)
    objects = [path for path in folder.rglob("*") if path.is_file()]
    assert len(objects) <= OBJECTS_BEFORE


def test_a_whole_array_is_its_place(tmp_path: Path) -> None:
    manifest = json.loads((written(small_model(), tmp_path) / "manifest.json").read_text())
    places = {each["name"]: each["places"] for each in manifest["tensors"]}
    (place,) = places["model/head"]
    assert place == {"array": place["array"]}
    assert manifest["arrays"][place["array"]]["path"] == "tensors/model/head"
    (place,) = places["model/half"]
    assert set(place) == {"array", "start", "length", "path"}
    assert place["path"] == "tensors/model/half"
