"""With an umask of 0, real processes: what a local cluster makes is its user's alone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_client.local.processes import MARK_NAME, end_marked, find_marked
from tests.client.test_end_to_end import stop

SAVE = """
import sys, numpy as np, ckpt
with ckpt.open(sys.argv[1]) as store:
    state = {"a": np.arange(9)}
    store.save("run", int(sys.argv[2]), state, rank=0, world_size=1).wait(60)
    assert (store.load("run", rank=0, world_size=1)["a"] == state["a"]).all()
    input()
"""


@pytest.fixture
def place() -> Iterator[tuple[Path, dict[str, str]]]:
    """A short directory for the cluster, and an environment whose processes end with the test."""
    mark = secrets.token_hex(8)
    base = Path(tempfile.mkdtemp(prefix="ckpt-mode-"))
    try:
        yield base, {**os.environ, MARK_NAME: mark, "XDG_RUNTIME_DIR": str(base)}
    finally:
        end_marked(mark, 30.0)
        shutil.rmtree(base)


def saved(base: Path, env: dict[str, str], step: int) -> tuple[str, ...]:
    """Save with an umask of 0; the stager's command line while it runs."""
    url = f"ckpt+local://{base}/above/dir?targets=3&code=2+1"
    with subprocess.Popen(
        [sys.executable, "-c", SAVE, url, str(step)], env=env, umask=0, stdin=subprocess.PIPE
    ) as trainer:
        assert trainer.stdin is not None
        directory = base / "above" / "dir"
        try:
            while not (directory / "logs" / "stager-0.log").exists():
                assert trainer.poll() is None
            stagers: list[tuple[str, ...]] = []
            while not stagers:
                assert trainer.poll() is None
                found = find_marked(env[MARK_NAME])
                stagers = [one.command for one in found if "--store" in one.command]
        finally:
            trainer.stdin.write(b"\n")
            trainer.stdin.close()
        assert trainer.wait(60) == 0
    return stagers[0]


def modes(base: Path) -> dict[str, int]:
    """Of everything below the base."""
    paths = [Path(folder, name) for folder, ds, fs in os.walk(base) for name in (*ds, *fs)]
    return {str(path.relative_to(base)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def test_whatever_the_umask_nobody_else_can_read_or_write(
    place: tuple[Path, dict[str, str]],
) -> None:
    base, env = place
    saved(base, env, 1)
    found = modes(base)
    for name in ("catalog.sqlite", "cluster.toml", "ready.json", "secret", "logs/t0.log"):
        assert found[f"above/dir/{name}"] == 0o600
    for name in ("targets/t0/target.toml", "logs/coordinator.log", "logs/stager-0.log"):
        assert found[f"above/dir/{name}"] == 0o600
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    folders = {name for name in found if (base / name).is_dir()}
    assert all(found[name] == (0o700 if name in folders else 0o600) for name in found)
    stop(base / "above" / "dir")


def test_what_was_open_is_closed_at_the_next_start_and_the_log_says_so(
    place: tuple[Path, dict[str, str]],
) -> None:
    base, env = place
    directory = base / "above" / "dir"
    saved(base, env, 1)
    stop(directory)
    opened = [directory / "catalog.sqlite", directory / "cluster.toml", directory / "logs/t0.log"]
    for path in opened:
        path.chmod(0o644)
    for path in (directory / "targets", directory / "targets" / "t1"):
        path.chmod(0o777)
    directory.chmod(0o777)
    saved(base, env, 2)
    found = modes(base)
    assert {name for name, mode in found.items() if mode & 0o077} == {"above/dir"}
    log = (directory / "logs" / "supervisor.log").read_text()
    said = [json.loads(line) for line in log.splitlines() if '"names"' in line]
    assert "catalog.sqlite" in said[0]["names"]
    assert said[0]["count"] == 5
    assert "chmod 700" in log
    stop(directory)


def test_a_stagers_command_line_names_its_cluster_and_no_secret(
    place: tuple[Path, dict[str, str]],
) -> None:
    base, env = place
    command = saved(base, env, 1)
    directory = base / "above" / "dir"
    at = command.index("--store")
    assert command[at : at + 4] == ("--store", f"ckpt+local://{directory}", "--rank", "0/1")
    secret = (directory / "secret").read_text().strip()
    assert secret not in " ".join(command)
    stop(directory)
