"""`ckpt.load` of a URL: no cluster, the same trees as from the tier."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from operator import add

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt_client.load import from_store
from ckpt_client.load.batches import WholeBox, batches
from ckpt_client.load.contents import Contents, Want, shape_alone
from ckpt_client.load.stored_reading import StoredReading
from tests.no_threads import SAYS, no_threads
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


def test_a_load_that_gets_no_thread_says_which_limit_to_raise(url: str) -> None:
    with no_threads(), pytest.raises(ckpt.Unavailable, match=SAYS):
        ckpt.load(url, whole=True)


def test_another_sharding_is_asked_for_with_boxes(url: str) -> None:
    like = {"w": ckpt.Box((10, 990), (2, 10)), "small": np.zeros((12,), np.int64)[::2]}
    state = ckpt.load(url, like=like, strict=False, rank=5, world_size=8)
    assert isinstance(state, dict)
    assert same_bits(state["w"], BIG[10:12, 990:])
    assert state["small"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("rank", "names"), [(0, "small"), (1, "mine, small")])
def test_a_strict_load_names_what_of_the_rank_or_of_all_is_not_asked_for(
    url: str, rank: int, names: str
) -> None:
    like = {"w": np.zeros_like(BIG), "lr": 0.0}
    with pytest.raises(ckpt.Refused, match=f"^like does not name {names}; strict"):
        ckpt.load(url, like=like, rank=rank, world_size=2)


def test_another_world_size_is_told_what_to_say(url: str) -> None:
    with pytest.raises(ckpt.Refused, match=r"saved by 2 ranks; you are rank 0 of 1.*whole=True"):
        ckpt.load(f"{url}@500")


@pytest.mark.parametrize("step", ["", "@500"])
def test_a_run_with_a_slash_that_was_taken_for_a_folder_is_named_with_its_url(
    url: str, step: str
) -> None:
    """As `s3://bucket/team/run@12`, which is the run of `s3://bucket/team` alone."""
    store, _, run = url.rpartition("//")
    with pytest.raises(ckpt.Refused) as refused:
        ckpt.load(f"{store}/{run}{step}", whole=True)
    assert str(refused.value).endswith(f"is of run 'team/llama 7b'; name it after //: {url}@500")
    assert same_bits(ckpt.load(f"{url}@500", whole=True)["w"], BIG)  # type: ignore[index]


def test_what_is_not_there_is_told(url: str) -> None:
    with pytest.raises(ckpt.NotFound, match="llama 7b@501"):
        ckpt.load(f"{url}@501", whole=True)


def test_a_trainer_that_only_saves_pays_for_no_object_store() -> None:
    probe = (
        "import sys, ckpt_client.store, ckpt_client.save.links.stager_link, ckpt_client.default;"
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


@pytest.fixture
def contents(url: str) -> Iterator[Contents]:
    reading = StoredReading(from_store.open_url(f"{url}@500"))
    yield Contents(reading)
    reading.close()


def test_a_box_is_read_piece_by_piece(contents: Contents) -> None:
    boxes = [WholeBox((590, 990), 4), WholeBox((6,), 8)]
    targets = [np.zeros((590, 990), "<f4"), np.zeros(6, np.int64)]
    offsets = [(5, 7), (0,)]
    count = 0
    for batch in batches(boxes, 256 * 1024):
        wants = []
        for part in batch:
            where = tuple(slice(a, a + n) for a, n in zip(part.start, part.shape, strict=True))
            offset = tuple(map(add, offsets[part.box], part.start))
            wants.append(Want("w" if part.box == 0 else "small", targets[part.box][where], offset))
        contents.fill(wants)
        count += 1
    assert count > 8
    assert same_bits(targets[0], BIG[5:595, 7:997])
    assert targets[1].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("want", "shared"),
    [
        (Want("w", shape_alone((600, 1000), np.dtype("<f4")), (0, 0)), True),
        (Want("w", shape_alone((300, 1000), np.dtype("<f4")), (0, 0)), False),
        (Want("w", shape_alone((300, 1000), np.dtype("<f4")), (0, 0), replica=True), True),
        (Want("mine", shape_alone((3,), np.dtype(np.int64)), (0,), Rank(1)), False),
    ],
)
def test_whole_tensors_and_replicas_are_shared(
    contents: Contents, want: Want, shared: bool
) -> None:
    assert contents.is_shared(want) is shared


def test_a_want_that_does_not_fit_is_refused_before_it_is_read(contents: Contents) -> None:
    for shape, offset, dtype in (((2, 2), (599, 0), "<f4"), ((2, 2), (0, 0), "<f8")):
        with pytest.raises(ckpt.Refused, match="w: "):
            contents.is_shared(Want("w", shape_alone(shape, np.dtype(dtype)), offset))
    with pytest.raises(ckpt.NotFound, match="no tensor of that name"):
        contents.is_shared(Want("v", shape_alone((1,), np.dtype("<f4")), (0,)))
