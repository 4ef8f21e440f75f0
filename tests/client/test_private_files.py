"""With an umask of 0, real processes: what a local cluster makes is its user's alone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckpt_client.local.processes import MARK_NAME, end_marked, find_marked
from tests.client.test_end_to_end import stop
from tests.waiting import wait_until
from tests.warm_child import start_child, start_script

SAVE = """
import os, sys, numpy as np, ckpt
from pathlib import Path
from tests.waiting import wait_until
os.umask(0)
with ckpt.open(sys.argv[1]) as store:
    state = {"a": np.arange(9)}
    store.save("run", int(sys.argv[2]), state, rank=0, world_size=1).wait(60)
    assert (store.load("run", rank=0, world_size=1)["a"] == state["a"]).all()
    wait_until(lambda: not Path(sys.argv[3]).exists(), "the stager is looked at")
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


def saved(base: Path, env: dict[str, str], step: int, *, cold: bool = False) -> tuple[str, ...]:
    """Save with an umask of 0; the stager's command line while it runs.

    cold: nobody but the product opens a log.
    """
    directory = base / "above" / "dir"
    script, looking = base / "save.py", base / "looking"
    script.write_text(SAVE)
    looking.touch()
    # An earlier save's stager outlives its cluster for a moment.
    before = {one.pid for one in find_marked(env[MARK_NAME])}
    url = f"ckpt+local://{directory}?targets=3&code=2+1"
    words = (url, str(step), str(looking))
    if cold:
        line = [sys.executable, str(script), *words]
        trainer = start_child(line, env, stderr=2, cold=True)
    else:
        trainer = start_script(script, *words, environment=env)
    assert trainer.stdout is not None
    stagers: list[tuple[str, ...]] = []

    def is_staged() -> bool:
        assert trainer.poll() is None
        if (directory / "logs" / "stager-0.log").exists():
            fresh = [one for one in find_marked(env[MARK_NAME]) if one.pid not in before]
            stagers.extend(one.command for one in fresh if "--store" in one.command)
        return bool(stagers)

    with trainer.stdout:
        try:
            wait_until(is_staged, "its stager runs")
        finally:
            script.unlink()
            looking.unlink()
            assert trainer.wait(60) == 0
    return stagers[0]


def modes(base: Path) -> dict[str, int]:
    """Of everything below the base."""
    found = {}
    for folder, ds, fs in os.walk(base):
        for path in (Path(folder, name) for name in (*ds, *fs)):
            # Daemons write notes to a file of another name first.
            with suppress(FileNotFoundError):
                found[str(path.relative_to(base))] = stat.S_IMODE(path.lstat().st_mode)
    return found


def test_whatever_the_umask_nobody_else_can_read_or_write(
    place: tuple[Path, dict[str, str]],
) -> None:
    base, env = place
    saved(base, env, 1, cold=True)
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
