"""`ckpt.load` of a URL: no cluster, the same trees as from the tier."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ckpt
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.sources import MemorySource, same_bits

BIG = np.arange(600_000, dtype="<f4").reshape(600, 1000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where rank 0 and rank 1 drained `w` (a half each), `small` (half each) and rank 1 its
    `mine`."""
    place = tmp_path_factory.mktemp("bucket")
    source = MemorySource(
        {"w": BIG, "small": np.arange(6)}, {"mine": np.full(3, 7)}, values={"lr": 0.1}
    )
    write_checkpoint(FileSink(place), source, WriteOptions(), WriteLimits())
    return f"file://{place}//team/llama 7b"


def test_a_rank_gets_its_own_tree(url: str) -> None:
    state = ckpt.load(f"{url}@500", rank=1, world_size=2)
    assert isinstance(state, dict)
    assert list(state) == ["w", "small", "lr", "mine"]
    assert same_bits(state["w"].array, BIG[300:])
    assert (state["w"].global_shape, state["w"].offset) == ((600, 1000), (300, 0))
    assert same_bits(state["mine"], np.full(3, 7))
    assert state["lr"] == 0.1


def test_the_newest_step_is_meant_without_one(url: str) -> None:
    whole = ckpt.load(url, whole=True)
    assert isinstance(whole, dict)
    assert same_bits(whole["w"], BIG)


def test_another_sharding_is_asked_for_with_boxes(url: str) -> None:
    like = {"w": ckpt.Box((10, 990), (2, 10)), "small": np.zeros((12,), np.int64)[::2]}
    state = ckpt.load(url, like=like, strict=False, rank=5, world_size=8)
    assert isinstance(state, dict)
    assert same_bits(state["w"], BIG[10:12, 990:])
    assert state["small"].tolist() == [0, 1, 2, 3, 4, 5]


def test_another_world_size_is_told_what_to_say(url: str) -> None:
    with pytest.raises(ckpt.Refused, match=r"saved by 2 ranks; you are rank 0 of 1.*whole=True"):
        ckpt.load(f"{url}@500")


def test_what_is_not_there_is_told(url: str) -> None:
    with pytest.raises(ckpt.NotFound, match="llama 7b@501"):
        ckpt.load(f"{url}@501", whole=True)


def test_a_trainer_that_only_saves_pays_for_no_object_store() -> None:
    probe = (
        "import sys, ckpt_client.store, ckpt_client.save.stager_link, ckpt_client.default;"
        "print([m for m in ('zarr', 'fsspec', 'numcodecs', 'obstore', 's3fs', 'google_crc32c',"
        " 'ckpt.objects', 'torch') if m in sys.modules])"
    )
    line = [sys.executable, "-c", probe]
    done = subprocess.run(line, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_directory_loads_neither_zarr_nor_fsspec(url: str) -> None:
    probe = (
        f"import sys, ckpt; ckpt.load({url!r}, whole=True);"
        "print([m for m in ('zarr', 'fsspec', 's3fs') if m in sys.modules])"
    )
    line = [sys.executable, "-c", probe]
    done = subprocess.run(line, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
