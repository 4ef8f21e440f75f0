"""Exports that are killed, meet another one or a full disk, and what the next one finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from ckpt.base.errors import Busy, Corrupt, NoSpace, Refused
from ckpt_client.cli.main import main
from ckpt_client.exchange.npz_file import write_npz
from ckpt_client.exchange.safetensors_export import write_safetensors
from ckpt_client.exchange.safetensors_file import INDEX_NAME, read_directory
from ckpt_client.exchange.tensors import named_arrays
from tests.objects.incomings import whole
from tests.objects.sources import HEADER, MemorySource
from tests.small_disk import small_files
from tests.tree import ROOT

FILE_BYTES = 4000
"""One array in each file."""


def source_of(step: int, arrays: int = 4) -> MemorySource:
    content = {f"w{n}": np.full(1000, step, "<f4") for n in range(arrays)}
    return MemorySource(content, header=replace(HEADER, step=step))


def weights(folder: Path, step: int = 1, arrays: int = 4) -> Iterable[int]:
    """An export in steps, of several files."""
    source = source_of(step, arrays)
    return write_safetensors(source, named_arrays(source, "", "."), folder, FILE_BYTES)


def archive(folder: Path, step: int = 1, arrays: int = 4) -> Iterable[int]:
    """Likewise, of one file."""
    source = source_of(step, arrays)
    return write_npz(source, named_arrays(source, "", "."), folder / "state.npz")


Export = Callable[..., Iterable[int]]
KILLED = f"""
import os, signal, sys
from pathlib import Path
from {__name__} import archive, weights
export = {{"archive": archive, "weights": weights}}[sys.argv[1]]
written = iter(export(Path(sys.argv[2]), arrays=9))
next(written), next(written)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("export", [weights, archive])
def test_what_a_killed_export_left_goes_with_the_next_one(tmp_path: Path, export: Export) -> None:
    line = [sys.executable, "-c", KILLED, export.__name__, str(tmp_path)]
    assert subprocess.run(line, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert left, "else this test shows nothing"
    assert all(name.endswith(".part") for name in left), "nothing looks whole"
    sum(export(tmp_path))
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert len(list(tmp_path.iterdir())) == (5 if export is weights else 1)


def test_a_name_as_long_as_a_file_s_may_be_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    """The name aside was longer than a name may be."""
    source = source_of(1)
    arrays = named_arrays(source, "", ".")
    names = ["é" * 125 + ".npz", "x" * 251 + ".npz", "y" * 251 + ".npz"]
    written = [iter(write_npz(source, arrays, tmp_path / name)) for name in names]
    assert [next(each) for each in written] == [4000] * 3
    with pytest.raises(Busy):
        next(iter(write_npz(source, arrays, tmp_path / names[1])))
    assert all(path.name.endswith(".part") for path in tmp_path.iterdir())
    assert [sum(each) for each in written] == [12_000] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("export", [weights, archive])
def test_two_exports_to_one_place_at_once_are_refused(tmp_path: Path, export: Export) -> None:
    """Each would give some of the files their names, and the index would name those of both."""
    first = iter(export(tmp_path, 1))
    next(first)
    with pytest.raises(Busy, match=str(tmp_path)):
        sum(export(tmp_path, 2))
    sum(first)
    sum(export(tmp_path, 3))
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    if export is weights:
        assert all(np.all(whole(array) == 3) for array in read_directory(tmp_path))


@pytest.mark.parametrize(
    "gone", ["model-00002-of-00004.safetensors", "model-00004-of-00004.safetensors"]
)
def test_a_folder_that_was_half_put_in_its_place_is_not_taken_for_whole(
    tmp_path: Path, gone: str
) -> None:
    """A kill between the new names: the index comes last."""
    sum(weights(tmp_path))
    (tmp_path / INDEX_NAME).unlink()
    assert len(read_directory(tmp_path)) == 4
    (tmp_path / gone).unlink()
    with pytest.raises(Corrupt, match=r"3 of the 4 files model-\*-of-00004\.safetensors"):
        read_directory(tmp_path)
    sum(weights(tmp_path, 2))
    assert all(np.all(whole(array) == 2) for array in read_directory(tmp_path))


@pytest.mark.parametrize("format", ["safetensors", "npz", "zarr"])
def test_a_disk_without_room_is_named_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    stored, to = tmp_path / "stored", tmp_path / "to"
    values = np.random.default_rng(1).integers(0, 255, 300_001, "u1")
    np.savez(tmp_path / "in.npz", w=values)
    assert main(["import", str(tmp_path / "in.npz"), "r@1", "--to", f"file://{stored}"]) == 0
    line = ["export", f"file://{stored}/r@1", "--format", format, str(to / "x")]
    with small_files(100_003):
        assert main(line) == NoSpace.exit_code
    said = capsys.readouterr().err
    assert str(to / "x") in said
    assert "ulimit" in said
    assert not [name for _, _, names in os.walk(to) for name in names if "part" in name]
    if format != "zarr":  # Whose items stay: the next one goes on from there.
        assert not to.exists(), "nor an empty directory"
    assert main(line) == 0


@pytest.mark.parametrize("format", ["safetensors", "npz", "zarr"])
@pytest.mark.parametrize("below", ["", "deep/x"])
def test_a_file_in_the_place_of_an_exports_directory_is_refused_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, below: str
) -> None:
    """It was a failure (1), or nothing that could be found (10)."""
    if format == "npz":
        below = below or "x"  # A file is what it replaces.
    stored, taken = tmp_path / "stored", tmp_path / "taken"
    np.savez(tmp_path / "in.npz", w=np.arange(9))
    assert main(["import", str(tmp_path / "in.npz"), "r@1", "--to", f"file://{stored}"]) == 0
    taken.write_text("mine")
    line = ["export", f"file://{stored}/r@1", "--format", format, str(taken / below)]
    assert main(line) == Refused.exit_code
    assert "a file is where a directory has to be" in capsys.readouterr().err
    assert taken.read_text() == "mine"
