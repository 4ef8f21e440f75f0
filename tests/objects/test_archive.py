"""Small tensors lie in ZIP files that any ZIP reader opens and that are Zarr groups; large enough
here that elements cross the borders of chunks, and that one archive does not hold them all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import ml_dtypes
import numpy as np
import pytest

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank, RunName
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.objects import names
from ckpt.objects.archive import layout
from ckpt.objects.documents import Manifest, decode
from ckpt.objects.planning import WriteOptions, make_plan
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Array, Wish
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.foreign import seen_by
from tests.objects.sources import HEADER, MemorySource, same_bits

RUN: Final = RunName(HEADER.run)
PREFIX: Final = names.generation_prefix(*HEADER.key)
OPTIONS: Final = WriteOptions(chunk_bytes=4 << 20, shard_bytes=64 << 20)
LIMITS: Final = WriteLimits(threads=1, memory_bytes=128 << 20)
COUNT: Final = 70


class ManyRanks(MemorySource):
    """Each of some ranks has its own of each array: the array, its first byte changed by one."""

    def __init__(self, ranks: Sequence[int], own: Mapping[str, Array]) -> None:
        super().__init__({}, own)
        self._tensors = [
            IndexTensor(
                name, Meaning.OWN, dtype_name(array.dtype), array.shape,
                tuple(IndexBox(Rank(r), (0,) * array.ndim, array.shape, ()) for r in ranks),
            )
            for name, array in own.items()
        ]  # fmt: skip

    def of(self, name: str, rank: int) -> Array:
        array = self.own[name].copy()
        if array.size:
            array.reshape(-1).view(np.uint8)[0] = rank % 128
        return array

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        for wish in wishes:
            assert wish.rank is not None
            part = tuple(
                slice(o, o + n) for o, n in zip(wish.offset, wish.memory.shape, strict=True)
            )
            wish.memory[...] = self.of(wish.tensor.name, wish.rank)[part]


RANKS: Final = (3, 0, *range(7, 12))


@pytest.fixture(scope="module")
def own() -> ManyRanks:
    """Rows that share a chunk, rows of a chunk each, rows by twos, none, and no rows at all."""
    arrays: dict[str, Array] = {
        "step": np.array(5), "chunk": np.arange(200_000, dtype="<f4"),
        "two": np.arange(100_000, dtype="<f4"), "none": np.zeros((0, 2), "f4"),
        "text": np.array(["a", "züge"], "U4"), "bf16": np.arange(3).astype(ml_dtypes.bfloat16),
    }  # fmt: skip
    return ManyRanks(RANKS, arrays)


def test_ranks_own_small_arrays_are_rows_of_one(own: ManyRanks, tmp_path: Path) -> None:
    write_checkpoint(FileSink(tmp_path / "store"), own, OPTIONS, LIMITS)
    stored = open_stored(FileSink(tmp_path / "store"), RUN)
    for tensor in stored.tensors():
        for box in tensor.boxes:
            memory = np.empty(tensor.global_shape, dtype_of(tensor.dtype))
            stored.read([Wish(tensor, box.rank, (0,) * memory.ndim, memory)])
            assert same_bits(memory, own.of(tensor.name, box.rank)), (tensor.name, box.rank)
    stored.close()
    seen = seen_by("zarr", tmp_path / "store" / PREFIX, tmp_path)
    assert seen.keys() == {f"ranks/each/{name}" for name in own.own}
    for name in own.own:
        assert seen[f"ranks/each/{name}"].holds(np.stack([own.of(name, r) for r in RANKS])), name
    import zarr

    store = zarr.storage.ZipStore(tmp_path / "store" / PREFIX / "packed/0.zip", mode="r")
    step = zarr.open_array(store, path="ranks/each/step", mode="r")
    assert step.attrs["ranks"] == list(RANKS)
    store.close()


def test_what_all_ranks_have_of_their_own_together_may_be_too_much_for_one_array() -> None:
    many = range(layout.STACK_BYTES_MAX // 800_000 + 1)
    source = ManyRanks(many, {"half": np.zeros(100_000)})
    plan = make_plan(HEADER, source.tensors(), OPTIONS, list)
    (tensor,) = plan.tensors
    assert [place.path for place in tensor.places] == [f"ranks/{n}/half" for n in many]


def content() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """70 MB in tensors just under a mebibyte."""
    return {f"w{n}": np.arange(n, n + 250_001, dtype="<i4") for n in range(COUNT)}


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> FileSink:
    """They are drained."""
    made = FileSink(tmp_path_factory.mktemp("store"))
    write_checkpoint(made, MemorySource(content()), OPTIONS, LIMITS)
    return made


@pytest.fixture(scope="module")
def folder(sink: FileSink) -> Path:
    """Of the checkpoint."""
    return Path(sink.url.removeprefix("file://")) / PREFIX


def test_every_tensor_is_in_one_archive_aligned_and_proved_by_its_crc(folder: Path) -> None:
    found: list[str] = []
    for path in sorted((folder / "packed").iterdir()):
        raw = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            for info in archive.infolist():
                assert info.compress_type == zipfile.ZIP_STORED
                if info.filename.endswith("/c/0"):
                    found.append(info.filename)
                    start = info.header_offset + 30 + len(info.filename)
                    start += int.from_bytes(raw[info.header_offset + 28 :][:2], "little")
                    assert start % layout.ALIGN_BYTES == 0
                    wanted = content()[info.filename.split("/")[1]]
                    assert raw[start : start + info.file_size] == wanted.tobytes()
    assert len(list((folder / "packed").iterdir())) == 2
    assert sorted(found) == sorted(f"tensors/w{n}/c/0" for n in range(COUNT))


def test_zarr_reads_both_archives(folder: Path, tmp_path: Path) -> None:
    seen = seen_by("zarr", folder, tmp_path)
    assert seen.keys() == {f"tensors/{name}" for name in content()}
    assert all(seen[f"tensors/{name}"].holds(array) for name, array in content().items())


def test_a_load_reads_only_the_chunks_that_hold_its_tensors(sink: FileSink) -> None:
    stored = open_stored(sink, RUN)
    (tensor,) = [each for each in stored.tensors() if each.name == "w69"]
    memory = np.empty(250_001, "<i4")
    stored.read([Wish(tensor, None, (0,), memory)])
    assert same_bits(memory, content()["w69"])
    assert stored.statistics().fetched_bytes <= 2 * OPTIONS.chunk_bytes
    stored.close()


def test_no_archive_has_more_members_than_its_documents_are_made_for() -> None:
    many = {f"s{n}": np.zeros(1, "u1") for n in range(layout.MEMBERS_MAX + 1)}
    plan = make_plan(HEADER, MemorySource(many).tensors(), OPTIONS, list)
    assert [array.path for array in plan.arrays] == ["packed/0.zip", "packed/1.zip"]
    assert [len(layout.members_of(plan, number)) for number in (0, 1)] == [layout.MEMBERS_MAX, 1]


def test_without_small_tensors_there_is_no_archive() -> None:
    source = MemorySource({"large": np.zeros(1 << 18)})
    plan = make_plan(HEADER, source.tensors(), WriteOptions(compression="none"), list)
    assert [array.path for array in plan.arrays] == ["tensors/large"]


@pytest.mark.parametrize("field", ["start", "length"])
def test_a_manifest_that_points_outside_of_an_archive_is_refused(
    sink: FileSink, field: str
) -> None:
    document = json.loads(sink.get(PREFIX + names.MANIFEST))
    document["tensors"][3]["places"][0][field] = document["arrays"][0]["shape"][0]
    with pytest.raises(Corrupt, match="w3: it lies in an array that is not there"):
        decode(Manifest, json.dumps(document).encode(), "manifest")


def test_a_flipped_bit_of_an_archive_is_told_by_its_name(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    source = MemorySource({"small": np.arange(100)})
    write_checkpoint(sink, source, OPTIONS, LIMITS)
    key = PREFIX + "packed/0.zip"
    raw = bytearray(sink.get(key))
    raw[raw.index(np.arange(100).tobytes())] ^= 1
    sink.put(key, raw)
    stored = open_stored(sink, RUN)
    memory = np.empty(100, "<i8")
    with pytest.raises(Corrupt, match=r"packed/0\.zip"):
        stored.read([Wish(stored.tensors()[0], None, (0,), memory)])
    with pytest.raises(Corrupt, match=r"packed/0\.zip"):
        stored.verify()
    stored.close()
