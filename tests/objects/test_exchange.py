"""Export and import: what other programs' readers see, and what comes back."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr
from msgspec.structs import replace

import ckpt
from ckpt.base.errors import Corrupt, NotFound, Refused, Unavailable
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Wish
from ckpt.objects.writer import WriteJob, WriteLimits, write_checkpoint
from ckpt_client.cli.main import main
from ckpt_client.exchange.incoming_source import IncomingSource
from ckpt_client.exchange.npz_file import read_npz, write_npz
from ckpt_client.exchange.safetensors_export import write_safetensors
from ckpt_client.exchange.safetensors_file import INDEX_NAME, read_directory
from ckpt_client.exchange.tensors import named_arrays, pieces
from ckpt_client.exchange.zarr_group import read_zarr
from tests.objects.incomings import whole
from tests.objects.sources import HEADER, MemorySource, random_bits, same_bits

WEIGHTS = {
    "model/embed": random_bits(ml_dtypes.bfloat16, (2000, 1001)),
    "model/layers.0.weight": random_bits("<f4", (300, 20)),
    "model/scale": np.array(0.5, "f4"),
    "model/none": np.zeros((0, 4), "f4"),
    "optimizer/m": random_bits("<f4", (500, 700)),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("bucket")
    source = MemorySource(WEIGHTS, {"rng": np.arange(4)})
    write_checkpoint(FileSink(place), source, WriteOptions(), WriteLimits())
    return f"file://{place}//team/llama 7b@500"


def contents(folder: Path) -> dict[str, object]:
    return {array.name: whole(array) for array in read_directory(folder)}


def test_weights_are_exported_below_a_prefix_as_hugging_face_names_them(
    url: str, tmp_path: Path
) -> None:
    line = ["export", url, "--format", "safetensors", "--prefix", "model/", str(tmp_path)]
    assert main(line) == 0
    found = contents(tmp_path)
    expected = {k.removeprefix("model/"): v for k, v in WEIGHTS.items() if k.startswith("model/")}
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], array) for name, array in expected.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_several_files_have_an_index(tmp_path: Path) -> None:
    source = MemorySource(WEIGHTS)
    arrays = named_arrays(source, "", ".")
    written = sum(write_safetensors(source, arrays, tmp_path, file_bytes=2 << 20))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == written == sum(a.nbytes for a in WEIGHTS.values())
    files = set(index["weight_map"].values())
    assert files == {f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)}  # fmt: skip
    assert len(files) > 1
    found = contents(tmp_path)
    assert all(same_bits(found[k.replace("/", ".")], v) for k, v in WEIGHTS.items())


def exported(source: MemorySource, folder: Path, file_bytes: int = 1 << 30) -> None:
    sum(write_safetensors(source, named_arrays(source, "", "."), folder, file_bytes))


def source_of(step: int, *, arrays: int = 4) -> MemorySource:
    """Every array has the same bytes as long as it is of this step, and no others have them."""
    content = {f"w{n}": np.full(1000, step, "<f4") for n in range(arrays)}
    return MemorySource(content, header=replace(HEADER, step=step))


@pytest.mark.parametrize("before", [1 << 30, 4000, 8000])
@pytest.mark.parametrize("after", [1 << 30, 4000, 8000])
def test_an_export_in_place_of_another_leaves_nothing_of_it(
    tmp_path: Path, before: int, after: int
) -> None:
    """One file, four or two. A reader takes `model.safetensors` where it is there."""
    (tmp_path / "config.json").write_text("{}")
    exported(source_of(100), tmp_path, before)
    exported(source_of(200), tmp_path, after)
    found = contents(tmp_path)
    assert len(found) == 4
    assert all(np.all(array == 200) for array in found.values())
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == {1 << 30: 1, 4000: 4, 8000: 2}[after]
    assert (tmp_path / INDEX_NAME).exists() == (after < 1 << 30)
    assert (tmp_path / "config.json").exists()


class EndsEarly(MemorySource):
    """Lost after two arrays."""

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        if self.read_count == 2:
            raise Unavailable("the targets are gone")
        super().read(wishes, go_on)


def test_an_export_that_fails_leaves_the_one_before_as_it_was(tmp_path: Path) -> None:
    """Two of its four files were those of another step, and the index of the first named them."""
    exported(source_of(100), tmp_path, 4000)
    ended = EndsEarly({f"w{n}": np.full(1000, 200, "<f4") for n in range(4)})
    with pytest.raises(Unavailable):
        exported(ended, tmp_path, 4000)
    found = contents(tmp_path)
    assert len(found) == 4
    assert all(np.all(array == 100) for array in found.values())
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00003.safetensors"])
def test_weights_that_no_export_made_are_not_replaced(tmp_path: Path, name: str) -> None:
    text = b"{}      "
    (tmp_path / name).write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(Refused, match=f"{name} is there, and no export made it"):
        exported(source_of(200), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_weights_that_are_there_twice_are_not_imported(tmp_path: Path) -> None:
    """Hugging Face's own reader takes the one file; this one took what the index names."""
    exported(source_of(100), tmp_path / "one")
    exported(source_of(200), tmp_path / "four", 4000)
    (tmp_path / "one" / "model.safetensors").rename(tmp_path / "four" / "model.safetensors")
    with pytest.raises(Refused, match="has weights twice"):
        read_directory(tmp_path / "four")


def test_an_array_may_not_have_the_name_that_the_format_keeps(tmp_path: Path) -> None:
    """It was left out without a word."""
    with pytest.raises(Refused, match="__metadata__"):
        exported(MemorySource({"__metadata__": np.zeros(4, "<f4")}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_memory_holds_a_piece_at_a_time() -> None:
    source = MemorySource({"w": random_bits("<f4", (1000, 1000))})
    (array,) = named_arrays(source, "", ".")
    found = [bytes(piece) for piece in pieces(source, array, 1 << 18)]
    assert max(map(len, found)) <= 1 << 18
    assert b"".join(found) == source.whole["w"].tobytes()


def test_a_type_that_the_format_lacks_is_refused_by_name(tmp_path: Path) -> None:
    source = MemorySource({"when": random_bits("<M8[s]", (4,))})
    arrays = named_arrays(source, "", ".")
    with pytest.raises(Refused, match=r"when: safetensors has no <M8\[s\]"):
        list(write_safetensors(source, arrays, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_archive_of_numpy(url: str, tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    assert main(["export", url, "--format", "npz", str(path)]) == 0
    with np.load(path) as archive:
        assert same_bits(archive["optimizer.m"], WEIGHTS["optimizer/m"])
        assert same_bits(archive["rng"], np.arange(4))
        assert same_bits(archive["model.embed"].view(ml_dtypes.bfloat16), WEIGHTS["model/embed"])
        logical = json.loads(archive["__logical_dtypes__.json"])
    assert logical == {"model.embed": "bfloat16"}


@pytest.mark.parametrize(("names", "lost"), [(("w\0x", "w\0y"), r"w\x00x"), (("w", "w.npy"), "w")])
def test_what_readers_of_an_archive_would_not_find_is_refused_by_name(
    tmp_path: Path, names: tuple[str, ...], lost: str
) -> None:
    """A zero byte cut the name, so that one array was lost; numpy gave `w` for `w.npy`."""
    source = MemorySource({name: random_bits("<f4", (4,)) for name in names})
    with pytest.raises(Refused, match=f"would not find '{re.escape(lost)}'"):
        list(write_npz(source, named_arrays(source, "", "."), tmp_path / "a.npz"))
    assert list(tmp_path.iterdir()) == []


def test_only_a_file_is_replaced_by_an_export(url: str, tmp_path: Path) -> None:
    """A rename put a file in the place of a device node."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        assert main(["export", url, "--format", "npz", "--prefix", "model/", str(place)]) == 2
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_checkpoint_is_copied_to_another_store(url: str, tmp_path: Path) -> None:
    assert main(["export", url, "--format", "zarr", f"file://{tmp_path}"]) == 0
    copied = ckpt.load(f"file://{tmp_path}//team/llama 7b@500", whole=True)
    assert isinstance(copied, dict)
    assert same_bits(copied["model/embed"], WEIGHTS["model/embed"])


def test_an_export_of_other_types_than_those_that_are_there_is_not_said_to_be_done(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", url, "--format", "zarr", str(tmp_path)]
    assert main(line) == 0
    assert main([*line, "--portable-dtypes"]) == Refused.exit_code
    assert "is there already, begun without --portable-dtypes" in capsys.readouterr().err
    assert main(line) == 0


def test_import_into_a_store_and_back(tmp_path: Path) -> None:
    source = MemorySource(WEIGHTS)
    hf = tmp_path / "hf"
    sum(write_safetensors(source, named_arrays(source, "", "."), hf, file_bytes=2 << 20))
    store = f"file://{tmp_path}/store"
    assert main(["import", str(hf), "pretrained@0", "--to", store]) == 0
    state = ckpt.load(f"{store}/pretrained@0")
    assert isinstance(state, dict)
    assert {name.replace(".", "/", 1): 0 for name in state}.keys() == WEIGHTS.keys()
    assert all(same_bits(state[k.replace("/", ".")], v) for k, v in WEIGHTS.items())


def imported(place: Path, store: Path, *options: str) -> dict[str, object]:
    """What a load finds behind `ckpt import --to`."""
    url = f"file://{store}"
    assert main(["import", str(place), "in@0", "--to", url, *options]) == 0
    state = ckpt.load(f"{url}/in@0")
    assert isinstance(state, dict)
    return state


def filled(path: Path, value: int) -> Path:
    np.savez(path, **{f"w{n}": np.full((300, 1000), value, "<f4") for n in range(3)})
    return path


@pytest.mark.parametrize("ended", [True, False])
def test_an_import_of_other_bytes_is_neither_taken_for_done_nor_mixed_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ended: bool
) -> None:
    """The first of them is there as a whole, or was killed after its first item."""
    one, other = filled(tmp_path / "one.npz", 1), filled(tmp_path / "other.npz", 2)
    if ended:
        imported(one, tmp_path / "store")
    else:
        source = IncomingSource(read_npz(one), "in", 0, "npz")
        limits = WriteLimits()
        job = WriteJob.begin(FileSink(tmp_path / "store"), source, WriteOptions(), limits)
        assert job is not None
        job.write_item(0)
    line = ["import", str(other), "in@0", "--to", f"file://{tmp_path}/store"]
    capsys.readouterr()
    assert main(line) == Refused.exit_code
    assert f"delete file://{tmp_path}/store/in@0/0.1/ first" in capsys.readouterr().err
    state = imported(one, tmp_path / "store")
    assert all(np.all(array == 1) for array in state.values())
    shutil.rmtree(tmp_path / "store/in@0/0.1")
    state = imported(other, tmp_path / "store")
    assert all(np.all(array == 2) for array in state.values())


def test_an_import_in_the_place_of_a_clusters_step_is_refused(url: str, tmp_path: Path) -> None:
    """It would be older than that, so nobody would ever read it."""
    one, (place, checkpoint) = filled(tmp_path / "one.npz", 1), url.rsplit("//", 1)
    assert main(["import", str(one), checkpoint, "--to", place]) == Refused.exit_code


def test_an_archive_that_was_exported_comes_back_with_its_types(url: str, tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    assert main(["export", url, "--format", "npz", str(path)]) == 0
    state = imported(path, tmp_path / "store")
    assert all(same_bits(state[k.replace("/", ".")], v) for k, v in WEIGHTS.items())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_that_numpy_wrote_is_taken_in(tmp_path: Path, save: Callable[..., None]) -> None:
    arrays = {
        "c": random_bits("<f4", (300, 400)),
        "fortran": np.asfortranarray(random_bits("<i8", (70, 50))),
        "big": random_bits(">u2", (9,)),
        "scalar": np.array(3.5),
        "none": np.zeros((0, 3)),
    }
    save(tmp_path / "a.npz", **arrays)
    state = imported(tmp_path / "a.npz", tmp_path / "store")
    assert all(same_bits(state[name], array) for name, array in arrays.items())


def test_python_objects_and_damage_in_an_archive_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, store = tmp_path / "a.npz", f"file://{tmp_path}/store"
    np.savez(path, o=np.array([{}], object))
    assert main(["import", str(path), "in@0", "--to", store]) == Refused.exit_code
    assert "o holds Python objects" in capsys.readouterr().err
    path.write_bytes(b"PK nothing")
    assert main(["import", str(path), "in@0", "--to", store]) == Corrupt.exit_code
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_group_of_another_writer_is_taken_in(tmp_path: Path, version: int) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=version)
    group.create_array("w", data=random_bits("<f4", (300, 400)), chunks=(64, 64))
    group.create_group("deep").create_array("b", data=np.arange(10))
    group.create_array("scalar", data=np.array(2.5))
    assert {one.name: whole(one).shape for one in read_zarr(str(tmp_path / "g"))} == {
        "w": (300, 400),
        "deep/b": (10,),
        "scalar": (),
    }
    state = imported(tmp_path / "g", tmp_path / "store")
    assert same_bits(state["w"], group["w"][...])
    assert same_bits(state["deep/b"], np.arange(10))
    assert same_bits(state["scalar"], np.array(2.5))


def test_a_drained_checkpoint_is_no_foreign_group(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", url, "--format", "zarr", f"file://{tmp_path}"]) == 0
    (marker,) = tmp_path.rglob("COMMITTED.json")
    line = ["import", str(marker.parent), "in@0", "--to", f"file://{tmp_path}/store"]
    assert main(line) == Refused.exit_code
    assert "ckpt fetch" in capsys.readouterr().err


def test_a_checkpoint_of_plain_values_alone_says_that_it_has_no_tensor() -> None:
    with pytest.raises(
        NotFound, match=r"has no tensor: what it holds are plain values; ckpt\.load"
    ):
        named_arrays(MemorySource({}, values={"lr": 0.5}), "", "/")


def test_export_of_nothing_is_told(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", url, "--format", "npz", "--prefix", "nope", str(tmp_path / "x.npz")]
    assert main(line) == NotFound.exit_code
    assert "no tensor below 'nope'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "header",
    [
        b"",
        struct.pack("<Q", 1 << 40),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 9) + b'{"a": {}}',
        struct.pack("<Q", 57) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}   ',
        struct.pack("<Q", 57) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}  ',
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(header)
    with pytest.raises(Corrupt, match=r"bad\.safetensors"):
        read_directory(tmp_path)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    source = MemorySource(WEIGHTS)
    sum(write_safetensors(source, named_arrays(source, "", "."), tmp_path, file_bytes=2 << 20))
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises((Corrupt, NotFound), match=r"ghost|model-00001"):
        read_directory(tmp_path)
    index["weight_map"]["ghost"] = "../elsewhere.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(Corrupt, match="outside"):
        read_directory(tmp_path)


def test_pending_uploads_are_shown_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = FileSink(tmp_path)
    upload = sink.upload("run@1/half")
    upload.__enter__().part(b"half")
    line = ["gc", "--multipart", sink.url, "--older-than", "0"]
    assert main(line) == 0
    assert "1 upload would be ended" in capsys.readouterr().out
    assert sink.pending_uploads("")
    assert main([*line, "--yes"]) == 0
    assert not sink.pending_uploads("")
    upload.__exit__(None, None, None)


def test_a_group_in_a_store_that_cannot_be_reached_is_no_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["import", "http://127.0.0.1:1/g", "run@1", "--format", "zarr"]) == 75
    assert "ckpt: http://127.0.0.1:1/g: ClientConnectorError: " in capsys.readouterr().err
