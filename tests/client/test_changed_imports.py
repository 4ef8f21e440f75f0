"""Files that somebody writes or cuts while `ckpt import` reads them: refused, and nothing is left.

One that was cut ended the command by SIGBUS; of one that was written, half was old and half new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zarr

import ckpt
from ckpt.base.errors import Busy
from ckpt_client.cli.verbs import import_
from ckpt_client.exchange import stored_array
from ckpt_client.exchange.arrays import Incoming, box
from ckpt_client.exchange.npz_file import read_npz
from ckpt_client.exchange.safetensors_export import write_safetensors
from ckpt_client.exchange.seen_file import ChangedMeanwhile
from ckpt_client.exchange.tensors import named_arrays
from tests.client.clikit import Ended, run
from tests.objects.incomings import Harm
from tests.objects.sources import MemorySource

ARRAYS = 3
Write = Callable[[Path, int], None]


def state_of(value: int) -> dict[str, np.ndarray]:
    return {f"w{n}": np.full((300, 1000), value, "<f4") for n in range(ARRAYS)}


def as_npz(place: Path, value: int) -> None:
    with place.open("r+b" if place.exists() else "wb") as file:
        np.savez(file, **state_of(value))  # type: ignore[arg-type]


def as_packed_npz(place: Path, value: int) -> None:
    with place.open("r+b" if place.exists() else "wb") as file:
        np.savez_compressed(file, **state_of(value))  # type: ignore[arg-type]


def as_safetensors(place: Path, value: int) -> None:
    """Three files and their index; each gets its name when it is whole."""
    source = MemorySource(state_of(value))
    sum(write_safetensors(source, named_arrays(source, "", "."), place, 1_000_000))


def as_zarr(place: Path, value: int) -> None:
    group = zarr.open_group(place, mode="a")
    for name, array in state_of(value).items():
        if name not in group:
            group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(100, 1000))
        group[name][...] = array


FORMATS: dict[str, Write] = {
    "in.npz": as_npz, "packed.npz": as_packed_npz, "safetensors": as_safetensors, "zarr": as_zarr,
}  # fmt: skip


def cut(place: Path, _: int) -> None:
    """The largest file loses its second half."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    for largest in sorted(files, key=lambda path: path.stat().st_size)[-ARRAYS:]:
        os.truncate(largest, largest.stat().st_size // 2)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, list[str], Harm], Ended]:
    """Import a place, and let something happen while its arrays are read."""

    def run_harmed(place: Path, options: list[str], harm: Harm) -> Ended:
        with monkeypatch.context() as patch:
            real = import_.incoming

            def harmed(place: str, kind: str) -> Sequence[Incoming]:
                return harm.around(real(place, kind))

            patch.setattr(import_, "incoming", harmed)
            return run("import", str(place), "in@0", *options)

    return run_harmed


Imports = Callable[[Path, list[str], Harm], Ended]


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("opened", [2, 8])
@pytest.mark.parametrize("again", [cut, None])
@pytest.mark.parametrize("name", FORMATS)
def test_what_changes_on_its_way_into_a_store_is_refused_and_nothing_is_left(
    tmp_path: Path, imports: Imports, name: str, again: Write | None, opened: int
) -> None:
    """While the digest is made, and while the second of three arrays is written."""
    place, store = tmp_path / name, tmp_path / "store"
    write = FORMATS[name]
    write(place, 1)
    harm = Harm(lambda: (again or write)(place, 2), opened)
    ended = imports(place, ["--to", f"file://{store}"], harm)
    assert harm.countdown <= 0, "else this test shows nothing"
    assert ended.code == Busy.exit_code, ended.err
    assert "was changed while it was read" in ended.err
    assert str(place) in ended.err
    assert files_below(store) == []
    if again is None:
        assert run("import", str(place), "in@0", "--to", f"file://{store}").code == 0
        state = ckpt.load(f"file://{store}/in@0")
        assert isinstance(state, dict)
        assert all(np.all(array == 2) for array in state.values())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("changed") / "burst"
    yield f"ckpt+local://{directory}?targets=3&code=2+1"
    run("local", "stop", str(directory))


@pytest.mark.parametrize("again", [cut, None])
@pytest.mark.parametrize("name", FORMATS)
def test_what_changes_on_its_way_into_the_cluster_is_refused(
    tmp_path: Path, url: str, imports: Imports, name: str, again: Write | None
) -> None:
    place, write = tmp_path / name, FORMATS[name]
    write(place, 1)
    ended = imports(place, ["--store", url], Harm(lambda: (again or write)(place, 2), 2))
    assert ended.code == Busy.exit_code, ended.err
    assert "was changed while it was read" in ended.err
    with ckpt.open(url) as store:
        assert store.steps("in") == []


def test_an_import_into_the_cluster_brings_every_array(tmp_path: Path, url: str) -> None:
    """Of each format, those without axes or elements too."""
    state = {"scalar": np.array(2.5), "none": np.zeros((0, 4), "f4"), "big": np.arange(9, dtype=">u2")}  # fmt: skip
    np.savez(tmp_path / "in.npz", **state_of(3), **state)  # type: ignore[arg-type]
    assert run("import", str(tmp_path / "in.npz"), "odd@1", "--store", url).code == 0
    found = ckpt.open(url).load("odd", 1)
    assert isinstance(found, dict)
    for key, array in {**state_of(3), **state}.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        assert found[key].tobytes() == array.tobytes()


def test_what_cannot_be_read_as_a_file_is_refused(tmp_path: Path) -> None:
    """An import of a pipe waited for ever."""
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz"):
        ended = run("import", str(tmp_path / name), "in@0", "--to", f"file://{tmp_path}/store")
        assert (ended.code, "is no file" in ended.err) == (2, True), ended.err


def test_a_file_that_another_has_taken_the_place_of_is_not_mixed_with_it(tmp_path: Path) -> None:
    """Also while it is open, and the first one has not changed."""
    place = tmp_path / "in.npz"
    as_npz(place, 1)
    as_npz(tmp_path / "next", 2)
    (tmp_path / "kept").hardlink_to(place)
    arrays = read_npz(place)
    memory = np.empty((300, 1000), "<f4")
    with closing(arrays[0].opened()) as elements:
        elements.read((0, 0), memory)
        (tmp_path / "next").rename(place)
        with pytest.raises(ChangedMeanwhile):
            elements.read((0, 0), memory)
    with closing(arrays[1].opened()) as elements, pytest.raises(ChangedMeanwhile):
        elements.read((0, 0), memory)


PARTS = (
    ((1, 0, 0), (6, 5, 6)),
    ((2, 1, 2), (4, 3, 3)),
    ((0, 4, 5), (7, 1, 1)),
    ((3, 2, 0), (1, 2, 6)),
)
"""(offset, shape) in an array of 7 x 5 x 6."""


@pytest.mark.parametrize("rows_bytes", [1, 24, 100, 1000, 1 << 20])
def test_a_part_of_an_array_is_read_as_numpy_cuts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_bytes: int
) -> None:
    """Also where rows are larger than the memory for rows."""
    whole = np.random.default_rng(1).random((7, 5, 6)).astype("f4")
    np.savez(tmp_path / "in.npz", w=whole)
    (array,) = read_npz(tmp_path / "in.npz")
    monkeypatch.setattr(stored_array, "ROWS_BYTES_MAX", rows_bytes)
    with closing(array.opened()) as elements:
        for offset, shape in PARTS:
            memory = np.empty(shape, "f4")
            elements.read(offset, memory)
            assert np.array_equal(memory, whole[box(offset, shape)])
