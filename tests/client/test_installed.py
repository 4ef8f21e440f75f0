"""What an installation leaves on the path is enough: commands alone start a cluster, save and load.

`.ci/run` runs this against the built wheel, too, where the source tree cannot be imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.clikit import TIMEOUT_S, environment, run_installed
from tests.waiting import wait_until

ADAPTED = {
    "torch", "jax", "lightning", "orbax", "tensorstore", "obstore", "safetensors", "matplotlib",
}  # fmt: skip
"""What a user of an adapter, a store or a format has anyway."""
SCRIPTS = Path(sys.executable).parent
ARRAYS = {
    "layer.0.w": np.random.default_rng(7).standard_normal((512, 1024)).astype("f4"),
    "layer.0.b": np.zeros(0),
    "step": np.array(41),
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """DIR of a cluster that `ckptd local` serves."""
    made = tmp_path / "burst"
    flags = ("--targets", "3", "--code", "2+1", "--restart", "never")
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(
            [SCRIPTS / "ckptd", "local", made, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
        )
    try:
        wait_until(lambda: (made / "ready.json").exists() or supervisor.poll() is not None, "ready")
        yield made
    finally:
        supervisor.terminate()
        assert supervisor.wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()


def test_the_commands_alone_save_a_state_and_load_it_with_a_target_dead(
    directory: Path, tmp_path: Path
) -> None:
    environ = environment(CKPT_STORE=f"ckpt+local://{directory}")
    np.savez(tmp_path / "in.npz", **ARRAYS)

    def command(*words: object) -> str:
        ended = run_installed(*map(str, words), environ=environ)
        assert ended.code == 0, (words, ended.err)
        return ended.out

    command("import", tmp_path / "in.npz", "weights@41")
    (step,) = json.loads(command("ls", "--json"))["steps"]
    assert (step["run"], step["step"], step["state"]) == ("weights", 41, "committed")
    command("verify", "weights@41")
    ready = json.loads((directory / "ready.json").read_text())
    os.kill(ready["targets"][0]["pid"], signal.SIGKILL)
    command("export", "weights@41", tmp_path / "out.npz", "--format", "npz")
    with np.load(tmp_path / "out.npz") as loaded:
        assert set(loaded) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)


_TRAINER = """
import numpy as np
import ckpt
with ckpt.open() as store:
    state = {"own": np.arange(300_000.0), "same": ckpt.Replicated({"lr": 0.1})}
    store.save("api", 1, state, rank=0, world_size=1).wait(60)
    again = store.load("api", rank=0, world_size=1)
    assert again["same"] == {"lr": 0.1} and (again["own"] == state["own"]).all()
"""


def test_a_script_saves_and_loads_with_what_is_installed(directory: Path) -> None:
    environ = environment(CKPT_STORE=f"ckpt+local://{directory}")
    ended = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", _TRAINER],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("ckpt", "demo"),
        ("ckptd", "target"),
        ("ckptd", "coordinator"),
        ("ckptd", "local"),
        ("ckptd", "drain"),
        ("ckptbench", "burst"),
    ],
    ids=" ".join,
)
def test_every_program_that_is_installed_says_what_it_is_for(words: tuple[str, ...]) -> None:
    command, program = words
    ended = subprocess.run(
        [SCRIPTS / command, program, "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"{command} {program}" in ended.stdout
    assert "example" in ended.stdout


_EVERY_MODULE = """
import importlib, pkgutil

def modules(name):
    yield name
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        if not module.name.endswith(".__main__"):
            yield module.name

for package in ("ckpt", "ckptd", "ckpt_client", "ckptbench", "ckpt_torch", "ckpt_jax"):
    try:
        for module in modules(package):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                print(error.name)
    except ModuleNotFoundError as error:
        print(error.name)
"""


def test_every_module_needs_only_what_is_installed_with_it_or_what_it_adapts() -> None:
    """Beside the packages of the test group, which this environment has."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _EVERY_MODULE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert set(ended.stdout.split()) <= ADAPTED
