"""A checkpoint that was written comes back bit by bit, by us and by Zarr; what was harmed does
not."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ckpt.base.errors import Corrupt, NotFound, Refused, Unavailable
from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.format.dtypes import dtype_of
from ckpt.objects import names
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.sink import Sink, Upload, at_once
from ckpt.objects.source import Array, Wish
from ckpt.objects.stored_steps import remains, stored_steps
from ckpt.objects.writer import WriteJob, WriteLimits, write_checkpoint
from tests.objects.sources import HEADER, MemorySource, many_kinds, random_bits, read_all, same_bits

RUN, STEP = RunName(HEADER.run), Step(HEADER.step)
SMALL = WriteOptions(chunk_bytes=4 << 20, shard_bytes=64 << 20)
LIMITS = WriteLimits(threads=2, memory_bytes=128 << 20)
PREFIX = names.generation_prefix(RUN, STEP, Generation(1, 3))


@pytest.fixture(scope="module")
def source() -> MemorySource:
    kinds = many_kinds()
    values = {"lr": 0.1, "nan": float("nan"), "big": 1 << 200, "z": 1 - 2j, "raw": b"\0\xff"}
    return MemorySource(kinds, {"model/big": kinds["model/bf16"][:400]}, values=values)


@pytest.fixture(scope="module")
def written(source: MemorySource, tmp_path_factory: pytest.TempPathFactory) -> FileSink:
    """The source as it lies in a directory; tests that harm it make a copy."""
    sink = FileSink(tmp_path_factory.mktemp("store"))
    write_checkpoint(sink, source, SMALL, LIMITS)
    return sink


@pytest.fixture
def stored(written: FileSink) -> Iterator[StoredCheckpoint]:
    found = open_stored(written, RUN, STEP)
    yield found
    found.close()


def test_every_tensor_comes_back_bit_by_bit(source: MemorySource, stored: StoredCheckpoint) -> None:
    found = read_all(stored)
    for name, array in source.whole.items():
        assert same_bits(found.pop((name, None)), array), name
    assert same_bits(found.pop(("model/big", Rank(1))), source.own["model/big"])
    assert not found


def test_trees_come_back_with_every_value(source: MemorySource, stored: StoredCheckpoint) -> None:
    assert repr(stored.trees()) == repr(source.trees())
    assert stored.header == HEADER


def test_a_part_is_read_by_its_chunks_alone(source: MemorySource, stored: StoredCheckpoint) -> None:
    (tensor,) = [t for t in stored.tensors() if t.name == "model/bf16"]
    memory = np.empty((3, 10), dtype_of(tensor.dtype))
    stored.read([Wish(tensor, None, (700, 1490), memory)])
    assert same_bits(memory, source.whole["model/bf16"][700:703, 1490:])
    assert 0 < stored.statistics().fetched_bytes <= 5 << 20


def test_several_readers_of_one_chunk_fetch_it_once(stored: StoredCheckpoint) -> None:
    (tensor,) = [t for t in stored.tensors() if t.name == "model/bf16"]
    wishes = [
        Wish(tensor, None, (row, 0), np.empty((1, 1500), dtype_of(tensor.dtype)))
        for row in range(50)
    ]
    stored.read(wishes)
    assert stored.statistics().fetched_bytes <= 5 << 20


def test_compression_is_chosen_by_a_sample_of_each_array(stored: StoredCheckpoint) -> None:
    chosen = {array.path: array.compressed for array in stored.manifest.arrays}
    assert chosen["tensors/model/zeros"]
    assert not chosen["tensors/model/big"]


@pytest.mark.parametrize("compression", ["none", "always"])
@pytest.mark.parametrize("portable", [False, True])
def test_every_form_reads_back(
    source: MemorySource, tmp_path: Path, compression: str, portable: bool
) -> None:
    sink = FileSink(tmp_path)
    options = WriteOptions(portable=portable, compression=compression)
    write_checkpoint(sink, source, options, LIMITS)
    stored = open_stored(sink, RUN)
    found = read_all(stored)
    assert all(same_bits(found[name, None], array) for name, array in source.whole.items())
    assert {a.data_type for a in stored.manifest.arrays if a.path.endswith("bf16")} == {
        "uint16" if portable else "bfloat16"
    }
    stored.close()


def test_zarr_opens_it_bit_by_bit(source: MemorySource, written: FileSink) -> None:
    import zarr

    import ckpt.objects.dtypes  # noqa: F401  # zarr 3.1 loads no entry points

    # Each array's own document: the consolidated ones name twins of types that zarr lacks.
    place = f"{written.url.removeprefix('file://')}/{PREFIX}"
    group = zarr.open_group(place, mode="r", use_consolidated=False)
    for name in ("model/big", "model/big_endian", "model/bf16", "model/f8", "model/zeros"):
        found = group[f"tensors/{name}"]
        assert isinstance(found, zarr.Array)
        content = np.asarray(found[...])
        if name == "model/big_endian":  # zarr gives numbers in the machine's own order.
            content = content.byteswap().view(">f4")
        assert same_bits(content, source.whole[name]), name
    own = group["ranks/1/model/big"]
    assert isinstance(own, zarr.Array)
    assert same_bits(own[...], source.own["model/big"])
    assert group.attrs["ckpt"]["generation"] == "1.3"  # type: ignore[index,call-overload]
    assert sorted(group["tensors/model"].array_keys()) == [  # type: ignore[union-attr]
        "bf16", "big", "big_endian", "f8", "zeros",
    ]  # fmt: skip


def test_chunks_of_zeros_are_stored_so_that_an_absent_one_is_damage(
    stored: StoredCheckpoint,
) -> None:
    number = [a.path for a in stored.manifest.arrays].index("tensors/model/zeros")
    grid = stored.manifest.arrays[number].grid
    inside = [region is not None for region in grid.chunks(grid.shard_at(0))]
    chunks = stored.manifest.objects[number][0].chunks()
    assert [(crc != 0, end > start) for crc, start, end in chunks] == [(i, i) for i in inside]


def test_nothing_but_the_checkpoint_is_left(written: FileSink) -> None:
    keys = set(written.list(""))
    assert not [key for key in keys if names.DRAIN in key]
    assert not written.pending_uploads("")
    manifest = json.loads(written.get(PREFIX + names.MANIFEST))
    named = {PREFIX + file["key"] for file in manifest["files"]}
    shards = sum(len(objects) for objects in manifest["objects"])
    assert len(keys - named) == shards + 2, "the shards, the manifest and the marker"


def test_steps_are_listed_by_their_markers(source: MemorySource, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    small = {"a": np.arange(5)}
    for step, generation in ((7, "1.1"), (9, "1.2"), (9, "2.1"), (11, "2.2")):
        header = msgspec.structs.replace(HEADER, step=step, generation=generation)
        write_checkpoint(sink, MemorySource(small, header=header), SMALL, LIMITS)
    sink.delete([names.generation_prefix(RUN, 11, Generation(2, 2)) + names.COMMITTED])
    assert stored_steps(sink, RUN) == [(7, Generation(1, 1)), (9, Generation(2, 1))]
    with pytest.raises(NotFound, match="never finished"):
        open_stored(sink, RUN, Step(11))
    with pytest.raises(NotFound, match="no committed checkpoint of"):
        open_stored(sink, RunName("nobody"))


# --------------------------------------------------------------------------- again and together


def begin(sink: Sink, source: MemorySource) -> WriteJob:
    job = WriteJob.begin(sink, source, SMALL, LIMITS)
    assert job is not None
    return job


def test_an_interrupted_writing_goes_on_where_it_was(source: MemorySource, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    first = begin(sink, source)
    first.write_item(0)
    written: list[int] = []
    second = begin(sink, source)
    assert set(second.receipts()) == {0}
    write_checkpoint(sink, source, SMALL, LIMITS, written.append)
    parts = [part for item in first.plan.items[1:] for part in item]
    assert len(written) == sum(count for _, _, count in parts), "item 0 was not written again"


def test_two_workers_share_a_checkpoint_under_the_first_ones_plan(
    source: MemorySource, tmp_path: Path
) -> None:
    sink = FileSink(tmp_path)
    first = begin(sink, source)
    other = WriteJob.begin(sink, source, WriteOptions(compression="always"), LIMITS)
    assert other is not None
    assert other.plan == first.plan
    for number in range(len(first.plan.items)):
        (first if number % 2 else other).write_item(number)
    marker = other.finish()
    assert first.finish() == marker
    assert WriteJob.begin(sink, source, SMALL, LIMITS) is None
    open_stored(sink, RUN).verify()


class Overtaken(MemorySource):
    """Another writer begins the same checkpoint while an upload of this one is under way; its tier
    goes away when it has read `until` arrays.
    """

    def __init__(self, sink: FileSink, until: int) -> None:
        content = {f"w{n}": random_bits("<f4", (400, 1000)) for n in range(4)}
        super().__init__(content)
        self._sink = sink
        self._other: Stopping | None = Stopping(content, until)

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        if self._other is not None and self._sink.pending_uploads(PREFIX):
            other, self._other = self._other, None
            with suppress(Unavailable):
                write_checkpoint(self._sink, other, WriteOptions(), WriteLimits(threads=1))
        super().read(wishes, go_on)


class Stopping(MemorySource):
    """It has no more than `until` arrays."""

    def __init__(self, content: Mapping[str, Array], until: int) -> None:
        super().__init__(content)
        self._until = until

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        if self.read_count == self._until:
            raise Unavailable("the targets are gone")
        super().read(wishes, go_on)


@pytest.mark.parametrize("until", [0, 1, 3, 99])
def test_two_exports_of_a_checkpoint_at_once_both_end_well(tmp_path: Path, until: int) -> None:
    """Each takes the other's uploads for those of a worker that died."""
    sink = FileSink(tmp_path)
    source = Overtaken(sink, until)
    write_checkpoint(sink, source, WriteOptions(), WriteLimits(threads=1))
    assert not [name for name in sink.list("") if "drain" in name]
    stored = open_stored(sink, RUN, STEP)
    found = read_all(stored)
    stored.close()
    assert all(same_bits(found[name, None], array) for name, array in source.whole.items())


def test_finishing_needs_every_item(source: MemorySource, tmp_path: Path) -> None:
    job = begin(FileSink(tmp_path), source)
    with pytest.raises(Refused, match="items are not written"):
        job.finish()


def test_anothers_place_is_left_alone(source: MemorySource, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    write_checkpoint(sink, source, SMALL, LIMITS)
    before = {key: sink.get(key) for key in sink.list("") if key.endswith(".json")}
    foreign = MemorySource({}, header=msgspec.structs.replace(HEADER, cluster="other"))
    with pytest.raises(Refused, match=r"cluster c0ffee.*cluster other"):
        write_checkpoint(sink, foreign, SMALL, LIMITS)
    assert {key: sink.get(key) for key in before} == before


class Watched(FileSink):
    """How many shards are written and read back at once? Reading back waits for another upload."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.most_written = self.most_proved = 0
        self._written = self._proved = 0
        self._overlapped = threading.Event()

    def upload(self, key: str) -> Upload:
        begun = super().upload(key)
        if "/c/" in key:
            self._written += 1
            self.most_written = max(self.most_written, self._written)
            if self._proved:
                self._overlapped.set()
            begun.complete = lambda complete=begun.complete: self._complete(complete)
        return begun

    def _complete(self, complete: Callable[[], None]) -> None:
        complete()
        self._written -= 1

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        self._proved += 1
        self.most_proved = max(self.most_proved, self._proved)
        assert self._overlapped.wait(30.0), "nothing is written while this is read back"
        found = super().checksum(key, wait_turn)
        self._proved -= 1
        return found


def test_a_shard_is_read_back_while_another_is_written_and_never_more(tmp_path: Path) -> None:
    sink = Watched(tmp_path)
    zeros = np.broadcast_to(np.zeros(1, "u1"), (256 << 20,))
    options = WriteOptions(shard_bytes=64 << 20, compression="always")
    limits = WriteLimits(threads=1, memory_bytes=128 << 20)
    write_checkpoint(sink, MemorySource({"w": zeros}), options, limits)
    assert (sink.most_written, sink.most_proved) == (1, 1), "what one thread's memory is for"


# --------------------------------------------------------------------------- harm


def harmed(written: FileSink, tmp_path: Path) -> FileSink:
    copy = tmp_path / "copy"
    shutil.copytree(written.url.removeprefix("file://"), copy)
    return FileSink(copy)


def flip(sink: FileSink, key: str, at: int) -> None:
    content = bytearray(sink.get(key))
    content[at] ^= 1
    sink.put(key, content)


def a_shard(sink: FileSink, array: str) -> str:
    return next(key for key in sink.list(PREFIX + array) if not key.endswith("zarr.json"))


ZEROS, PLAIN = "tensors/model/zeros", "tensors/model/bf16"
"""Compressed, and not."""
WHAT_TO_DO = ".*take another step of the run"
"""Whoever stands before a training that cannot begin hears it."""


@pytest.mark.parametrize(("array", "at"), [(PLAIN, 1000), (ZEROS, 10)])
def test_a_flipped_bit_is_told_by_the_objects_name(
    written: FileSink, tmp_path: Path, array: str, at: int
) -> None:
    sink = harmed(written, tmp_path)
    key = a_shard(sink, array)
    flip(sink, key, at)
    stored = open_stored(sink, RUN)
    with pytest.raises(Corrupt, match=f"{array}/c/0{WHAT_TO_DO}"):
        read_all(stored)
    with pytest.raises(Corrupt, match=f"{array}/c/0{WHAT_TO_DO}"):
        stored.verify()
    stored.close()


@pytest.mark.parametrize("at", [-1, -20])
@pytest.mark.parametrize("array", [PLAIN, ZEROS])
def test_an_index_that_only_zarr_needs_harms_no_load_and_is_found_by_verify(
    source: MemorySource, written: FileSink, tmp_path: Path, array: str, at: int
) -> None:
    sink = harmed(written, tmp_path)
    flip(sink, a_shard(sink, array), at)
    stored = open_stored(sink, RUN)
    found = read_all(stored)
    assert all(same_bits(found[name, None], array) for name, array in source.whole.items())
    with pytest.raises(Corrupt, match=f"{array}/c/0.* is not what was committed;{WHAT_TO_DO}"):
        stored.verify()
    stored.close()


@pytest.mark.parametrize("array", ["packed/0.zip", "tensors/model/zeros"])
def test_a_missing_or_cut_object_is_told(written: FileSink, tmp_path: Path, array: str) -> None:
    sink = harmed(written, tmp_path)
    key = a_shard(sink, array)
    content = sink.get(key)
    sink.put(key, content[: len(content) // 2])
    stored = open_stored(sink, RUN)
    with pytest.raises(Corrupt, match=f"{array}{WHAT_TO_DO}"):
        read_all(stored)
    stored.close()
    sink.delete([key])
    stored = open_stored(sink, RUN)
    with pytest.raises(Corrupt, match=f"{array}.*is gone{WHAT_TO_DO}"):
        read_all(stored)
    stored.close()


@pytest.mark.parametrize("name", [names.MANIFEST, names.COMMITTED, names.TREES])
def test_a_document_that_was_changed_is_refused(
    written: FileSink, tmp_path: Path, name: str
) -> None:
    sink = harmed(written, tmp_path)
    content = sink.get(PREFIX + name).replace(b"1.3", b"1.4").replace(b'"lr"', b'"lx"')
    sink.put(PREFIX + name, content)
    with pytest.raises((Corrupt, Refused), match=f"{name}{WHAT_TO_DO}"):
        open_stored(sink, RUN).trees()


def test_a_checkpoint_in_another_ones_place_is_refused(written: FileSink, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    for key in written.list(""):
        sink.put(key.replace("@500/", "@501/"), written.get(key))
    wrong = r"@500#1\.3: it was put in a wrong place; move it to .*@500/1\.3/, or take another step"
    with pytest.raises(Refused, match=wrong):
        open_stored(sink, RUN, Step(501))


def test_a_store_that_changes_bytes_is_found_before_the_commit(
    source: MemorySource, tmp_path: Path
) -> None:
    class Rotting(FileSink):
        """One object is not what was written."""

        def upload(self, key: str) -> Upload:
            begun = super().upload(key)
            if "model/f8" in key:
                begun.part = lambda data, part=begun.part: part(bytes(data)[:-1] + b"?")
            return begun

    sink = Rotting(tmp_path)
    with pytest.raises(Corrupt, match="model/f8/c/0/0 does not hold what was written"):
        write_checkpoint(sink, source, SMALL, LIMITS)
    assert sink.head(PREFIX + names.COMMITTED) is None


def test_a_newer_format_is_refused_with_its_version(written: FileSink, tmp_path: Path) -> None:
    sink = harmed(written, tmp_path)
    marker: Mapping[str, object] = json.loads(sink.get(PREFIX + names.COMMITTED))
    sink.put(PREFIX + names.COMMITTED, json.dumps({**marker, "version": 2}).encode())
    with pytest.raises(Refused, match=r"of version 2, this program reads 1\.x"):
        open_stored(sink, RUN)


def test_what_an_interrupted_deletion_left_is_known(written: FileSink, tmp_path: Path) -> None:
    sink = harmed(written, tmp_path)
    assert remains(sink, RUN) == []
    sink.delete([PREFIX + names.COMMITTED])
    assert remains(sink, RUN) == [(STEP, Generation(1, 3))]
    sink.put(PREFIX + names.PLAN, b"{}")
    assert remains(sink, RUN) == [], "somebody writes it"
