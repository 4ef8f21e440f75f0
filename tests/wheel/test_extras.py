"""With the base alone, whatever needs an extra says the command that installs it: in a script, at
the command line, and where a daemon does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.wheel.environments import Environment

SCRIPTS: Final = {
    "import ckpt_torch": "torch",
    "import ckpt_jax": "jax",
    "import ckpt; ckpt.open('ckpt+local://' + sys.argv[1])": "server",
    "import ckpt; ckpt.load('s3://bucket/prefix/run@1')": "s3",
    "import ckpt; ckpt.load('obstore+s3://bucket/prefix/run@1')": "s3",
    "import ckpt; ckpt.load('gs://bucket/prefix/run@1')": "gs",
    "import ckpt; ckpt.load('az://bucket/prefix/run@1')": "az",
}
"""What a user writes, and the extra that it needs."""
COMMANDS: Final = {
    ("ckpt", "demo", "--directory", "{}/demo"): "server",
    ("ckpt", "import", "{}", "weights@1", "--format", "zarr"): "zarr",
    ("ckpt", "import", "{}/dcp", "w@1", "--format=dcp", "--allow-pickle"): "torch",
    ("ckptd", "local", "{}/local"): "server",
    ("ckptbench", "save", "--size=1M", "--ioengine=zarr", "--directory={}"): "bench",
    ("ckptbench", "save", "--size=1M", "--plot={}/plot.png", "--directory={}"): "bench",
}


def wanted(extra: str) -> str:
    return f"pip install 'ckpt-burst[{extra}]'"


def test_an_installation_of_the_base_is_small(base_in_turn: Environment) -> None:
    listed = base_in_turn.script(
        "from importlib.metadata import distributions\n"
        "for one in distributions(): print(one.name.lower().replace('_', '-'))"
    ).out.split()
    assert {"ckpt-burst", "numpy"} <= set(listed)
    heavy = {"aiohttp", "zarr", "numcodecs", "google-crc32c", "setproctitle", "torch"}
    assert heavy.isdisjoint(listed)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_told_which_extra_it_needs(
    base_in_turn: Environment, script: str, tmp_path: Path
) -> None:
    ended = base_in_turn.script(f"import sys\n{script}", tmp_path / "cluster")
    assert ended.code == 1
    assert wanted(SCRIPTS[script]) in ended.err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_told_which_extra_it_needs(
    base_in_turn: Environment, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "dcp").mkdir()
    command, *rest = (word.format(tmp_path) for word in words)
    ended = base_in_turn.run(command, *rest, CKPT_STORE=f"ckpt+local://{tmp_path}/cluster")
    assert ended.code == 2
    assert wanted(COMMANDS[words]) in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == "", "it is told before anything is done"


def test_json_says_it_as_well(base_in_turn: Environment, tmp_path: Path) -> None:
    ended = base_in_turn.run("ckptd", "local", tmp_path / "cluster", "--json")
    assert ended.error()["hint"] == wanted("server")


def test_a_package_that_is_missing_can_be_caught_as_an_import_error(
    base_in_turn: Environment,
) -> None:
    script = """
try:
    import ckpt_jax
except ImportError as error:
    print(error.hint)
"""
    assert base_in_turn.script(script).out.strip() == wanted("jax")
