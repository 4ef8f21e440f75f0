"""`ckpt export --format dcp`: stock torch loads what it wrote, bit by bit."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckpt
from ckpt.base.errors import Busy, Corrupt, NoSpace, Refused, Unavailable
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Wish
from ckpt_client.cli.main import main
from ckpt_client.cli.verbs import import_
from ckpt_client.exchange.claims import FolderClaim
from ckpt_client.exchange.dcp_directory import write_dcp
from ckpt_client.exchange.tensors import named_arrays
from tests.frameworks.warm import Warm
from tests.objects.incomings import Harm
from tests.objects.sources import MemorySource, random_bits
from tests.small_disk import small_files

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

torch = pytest.importorskip("torch")

WEIGHTS = {
    "model/embed": random_bits(ml_dtypes.bfloat16, (200, 101)),
    "model/f8": random_bits(ml_dtypes.float8_e4m3fn, (30, 7)),
    "model/weight": random_bits("<f4", (300, 20)),
    "model/scale": np.array(0.5, "f8"),
    "model/none": np.zeros((0, 4), "f4"),
    "model/mask": random_bits("?", (9,)),
}


def test_stock_dcp_loads_every_tensor(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    source = MemorySource(WEIGHTS)
    arrays = named_arrays(source, "model/", ".")
    size = write_dcp(source, arrays, tmp_path / "dcp")
    assert size == sum(array.nbytes for array in WEIGHTS.values())
    metadata = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().state_dict_metadata
    state = {
        name: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: that no process group is meant
        dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert set(state) == {name.removeprefix("model/") for name in WEIGHTS}
    for name, array in WEIGHTS.items():
        found = state[name.removeprefix("model/")]
        assert tuple(found.shape) == array.shape
        assert found.flatten().view(torch.uint8).numpy().tobytes() == array.tobytes(), name


def test_a_type_that_torch_lacks_is_refused_by_name(tmp_path: Path) -> None:
    source = MemorySource({"when": random_bits("<M8[s]", (4,))})
    with pytest.raises(Refused, match=r"when: torch has no <M8\[s\]"):
        write_dcp(source, named_arrays(source, "", "."), tmp_path / "dcp")
    assert not (tmp_path / "dcp").exists()


def test_what_torch_saved_is_imported_without_a_gpu(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    state = {
        "model": {
            "w": torch.arange(600, dtype=torch.float32).reshape(30, 20),
            "b": torch.arange(7).to(torch.bfloat16),
            "f8": torch.arange(8).to(torch.float8_e4m3fn),
            "scale": torch.tensor(0.5, dtype=torch.float64),
            "none": torch.zeros((0, 4)),
        },
        "epoch": 3,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    store = f"file://{tmp_path}/store"
    line = ["import", str(tmp_path / "dcp"), "in@0", "--to", store, "--allow-pickle"]
    assert main(line) == 0
    found = ckpt.load(f"{store}/in@0")
    assert isinstance(found, dict)
    assert set(found) == {f"model.{name}" for name in state["model"]}
    for name, tensor in state["model"].items():
        array = found[f"model.{name}"]
        assert array.shape == tuple(tensor.shape)
        assert array.tobytes() == tensor.flatten().view(torch.uint8).numpy().tobytes(), name


def test_a_directory_that_is_damaged_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = MemorySource(WEIGHTS)
    write_dcp(source, named_arrays(source, "model/", "."), tmp_path / "dcp")
    for data in (tmp_path / "dcp").glob("*.distcp"):
        data.write_bytes(data.read_bytes()[:100])
    line = ["import", str(tmp_path / "dcp"), "in@0", "--to", f"file://{tmp_path}/store"]
    line += ["--allow-pickle"]
    assert main(line) == Corrupt.exit_code
    assert "dcp" in capsys.readouterr().err
    (tmp_path / "dcp" / ".metadata").write_bytes(b"no pickle")
    assert main(line) == Corrupt.exit_code


@pytest.mark.parametrize("opened", [2, 5])
def test_a_directory_that_is_written_again_meanwhile_is_not_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: int
) -> None:
    """Half of it was old, and half new."""
    folder, store = tmp_path / "dcp", tmp_path / "store"
    source = MemorySource({f"w{n}": np.full(1000, n, "<f4") for n in range(3)})
    arrays = named_arrays(source, "", ".")
    write_dcp(source, arrays, folder)

    def again() -> None:
        for data in folder.glob("*.distcp"):
            data.write_bytes(data.read_bytes())

    harm = Harm(again, opened)
    real = import_.incoming
    monkeypatch.setattr(import_, "incoming", lambda *place: harm.around(real(*place)))
    line = ["import", str(folder), "in@0", "--to", f"file://{store}", "--allow-pickle"]
    assert main(line) == Busy.exit_code
    assert harm.countdown <= 0, "else this test shows nothing"
    assert not [path for path in store.rglob("*") if path.is_file()]


def test_a_pickle_that_nobody_allowed_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "ran"
    folder = tmp_path / "dcp"
    folder.mkdir()
    # What unpickles to os.mkdir(trap).
    (folder / ".metadata").write_bytes(b"cos\nmkdir\n(V" + bytes(trap) + b"\ntR.")
    line = ["import", str(folder), "in@0", "--to", f"file://{tmp_path}/store"]
    assert main(line) == Refused.exit_code
    assert "--allow-pickle" in capsys.readouterr().err
    assert not trap.exists()
    assert main([*line, "--allow-pickle"]) == Corrupt.exit_code
    assert trap.exists(), "else this test shows nothing"


def small_source() -> MemorySource:
    return MemorySource({f"w{n}": np.full(1000, n, "<f4") for n in range(4)})


class Interrupted(MemorySource):
    """Ctrl-C, or whatever is given, when the third array is read."""

    error: Callable[[str], BaseException] = KeyboardInterrupt

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        if self.read_count == 2:
            raise self.error("the third")
        super().read(wishes, go_on)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Unavailable])
def test_what_ends_an_export_is_said_as_it_was_and_nothing_is_left(
    tmp_path: Path, error: type[BaseException]
) -> None:
    source = Interrupted({f"w{n}": np.full(1000, n, "<f4") for n in range(4)})
    source.error = error
    arrays = named_arrays(source, "", ".")
    with pytest.raises(error, match="the third"):
        write_dcp(source, arrays, tmp_path / "dcp")
    assert not (tmp_path / "dcp").exists()
    write_dcp(small_source(), arrays, tmp_path / "dcp")


def test_a_second_ctrl_c_leaves_what_the_next_export_takes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the first one's half is removed."""
    source = Interrupted({f"w{n}": np.full(1000, n, "<f4") for n in range(4)})
    arrays = named_arrays(source, "", ".")

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt("again")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt, match="again"):
            write_dcp(source, arrays, tmp_path / "dcp")
    assert list((tmp_path / "dcp").glob("*.distcp")), "else this test shows nothing"
    write_dcp(small_source(), arrays, tmp_path / "dcp")
    assert len(list((tmp_path / "dcp").iterdir())) == 5


class Ending(io.FileIO):
    """Ctrl-C comes while its second block is written."""

    def write(self, data: ReadableBuffer) -> int:
        if self.tell():
            raise KeyboardInterrupt("in a file")
        return super().write(data)


def test_ctrl_c_in_the_middle_of_a_file_is_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own writer then finds that its file ends early, and says that instead."""
    monkeypatch.setattr(Path, "open", lambda path, mode: Ending(path, mode))
    source = small_source()
    with pytest.raises(KeyboardInterrupt, match="in a file"):
        write_dcp(source, named_arrays(source, "", "."), tmp_path / "dcp")
    assert not (tmp_path / "dcp").exists()


def test_a_disk_without_room_is_named_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = f"file://{tmp_path}/stored", tmp_path / "dcp"
    np.savez(tmp_path / "in.npz", w=random_bits("|u1", (300_001,)))
    assert main(["import", str(tmp_path / "in.npz"), "r@1", "--to", store]) == 0
    line = ["export", f"{store}/r@1", "--format", "dcp", str(to)]
    with small_files(100_003):
        assert main(line) == NoSpace.exit_code
    assert str(to) in capsys.readouterr().err
    assert not to.exists()
    assert main(line) == 0
    (tmp_path / "plain").write_text("mine")
    assert main([*line[:-1], str(tmp_path / "plain")]) == Refused.exit_code
    assert (tmp_path / "plain").read_text() == "mine"


class Killed(Interrupted):
    """As by `kill -9`."""

    def error(self, _: str) -> BaseException:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


KILLED_EXPORT = """
import importlib
import torch
importlib.import_module("{module}").killed_export("{folder}")
"""
"""A server of warm starts imports no module of tests."""


def killed_export(folder: str) -> None:
    """It ends this process."""
    killed = Killed({f"w{n}": np.full(1000, n, "<f4") for n in range(4)})
    write_dcp(killed, named_arrays(killed, "", "."), Path(folder))


def test_what_a_killed_export_left_is_no_obstacle(warm: Warm, tmp_path: Path) -> None:
    folder, script = tmp_path / "dcp", tmp_path / "export.py"
    # Not forked here: another test of this process may have had JAX.
    script.write_text(KILLED_EXPORT.format(module=__name__, folder=folder))
    assert subprocess.run(warm.command(script)).returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.distcp"))) >= 2, "else this test shows nothing"
    assert not (folder / ".metadata").exists()
    source = small_source()
    write_dcp(source, named_arrays(source, "", "."), folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [".metadata", *(f"__0_{n}.distcp" for n in range(4))]
    with pytest.raises(Refused, match="not empty"):
        write_dcp(source, named_arrays(source, "", "."), folder)
    assert sorted(path.name for path in folder.iterdir()) == names


def test_two_exports_into_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    source, arrays = small_source(), named_arrays(small_source(), "", ".")
    with FolderClaim(tmp_path / "dcp"), pytest.raises(Busy, match="dcp"):
        write_dcp(source, arrays, tmp_path / "dcp")
    write_dcp(source, arrays, tmp_path / "dcp")
