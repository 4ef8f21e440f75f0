"""What an installation leaves on the path is enough: a trainer with the base alone saves to and
loads from a cluster whose daemons have [server]. No source tree can be imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.clikit import TIMEOUT_S, environment
from tests.waiting import wait_until
from tests.wheel.environments import Environment

ADAPTED = {
    "torch", "jax", "lightning", "orbax", "tensorstore", "obstore", "safetensors", "matplotlib",
    "pytest",
}  # fmt: skip
"""What a user of an adapter, a store, a format or a contract suite has anyway."""
ARRAYS = {
    "layer.0.w": np.random.default_rng(7).standard_normal((512, 1024)).astype("f4"),
    "layer.0.b": np.zeros(0),
    "step": np.array(41),
}


@pytest.fixture
def directory(server_in_turn: Environment, tmp_path: Path) -> Iterator[Path]:
    """DIR of a cluster that `ckptd local` serves, and two tests use, under every other Python. At
    each landing every module is imported under each, which is asked below.
    """
    made = tmp_path / "burst"
    flags = ("--targets", "3", "--code", "2+1", "--restart", "never")
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(
            [server_in_turn.command("ckptd"), "local", made, *flags],
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


def test_the_wheel_is_what_runs(server: Environment) -> None:
    check_runs(server)


def test_so_it_is_with_the_base(base_in_turn: Environment) -> None:
    check_runs(base_in_turn)


def check_runs(one: Environment) -> None:
    ended = one.script("import ckpt; print(ckpt.__file__)")
    assert ended.code == 0, ended.err
    assert Path(ended.out).is_relative_to(one.folder)


def test_the_commands_of_the_base_save_a_state_and_load_it_with_a_target_dead(
    base_in_turn: Environment, directory: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **ARRAYS)

    def command(*words: object) -> str:
        ended = base_in_turn.run("ckpt", *words, CKPT_STORE=f"ckpt+local://{directory}")
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
import fsspec
import numpy as np
import ckpt
with ckpt.open() as store:
    state = {"own": np.arange(300_000.0), "same": ckpt.Replicated({"lr": 0.1})}
    store.save("api", 1, state, rank=0, world_size=1).wait(60)
    again = store.load("api", rank=0, world_size=1)
    assert again["same"] == {"lr": 0.1} and (again["own"] == state["own"]).all()
"""


def test_a_script_saves_and_loads_with_the_base(base_in_turn: Environment, directory: Path) -> None:
    ended = base_in_turn.script(_TRAINER, CKPT_STORE=f"ckpt+local://{directory}")
    assert (ended.code, ended.err) == (0, "")


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
def test_every_program_that_is_installed_says_what_it_is_for(
    server_in_turn: Environment, words: tuple[str, str]
) -> None:
    command, program = words
    ended = server_in_turn.run(command, program, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"{command} {program}" in ended.out
    assert "example" in ended.out


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


def test_every_module_needs_only_what_is_installed_with_it_or_what_it_adapts(
    server: Environment,
) -> None:
    ended = server.run("python", "-P", "-c", _EVERY_MODULE)
    assert ended.code == 0, ended.err
    assert set(ended.out.split()) <= ADAPTED
