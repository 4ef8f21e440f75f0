"""A disk that is really full under a save: an honest error or a commit, and everything goes on once
there is room. The file system is a small tmpfs in a user namespace of the test's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_client.local.processes import end_marked, find_marked, marked_environment

LIMIT_S = 240.0
MOUNT = 'mount -t tmpfs -o size=96m none "$1" && shift && exec "$@"'
SCRIPT = '''
import asyncio, contextlib, io, json, os, sys, threading, time
from pathlib import Path
import numpy as np
import ckpt
from ckpt_client.cli.main import main
from ckptd.catalog.sqlite import SqliteCatalog

folder = Path(sys.argv[1])
filler = folder / "somebody else's"
ends = {}

def state(step):
    return {"a": np.random.default_rng(step).integers(0, 255, 3 << 20, "u1")}

def saved(store, step, wait_s=2.0):
    """How a save ends: `committed`, or the code of its error."""
    try:
        store.save("run", step, state(step)).wait(wait_s)
    except ckpt.CkptError as error:
        return error.code
    return "committed"

def fill():
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))

def eventually(store, step):
    deadline = time.monotonic() + 120
    while (end := saved(store, step, 6.0)) != "committed" and time.monotonic() < deadline:
        threading.Event().wait(0.5)
    return end

def checks_once_it_is_down():
    """What status says. The coordinator ends with its first write, which a slow machine has not
    come to yet, and cannot begin again.
    """
    deadline = time.monotonic() + 60
    while True:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(["status", "--store", f"ckpt+local://{folder}/store", "--timeout", "2", "--json"])
        checks = {c["name"]: c["remedy"] for c in json.loads(out.getvalue())["checks"]}
        if "COORDINATOR_DOWN" in checks or time.monotonic() > deadline:
            return checks
        threading.Event().wait(0.2)

def catalog():
    """How a coordinator's catalog is opened that exists."""
    try:
        asyncio.run(SqliteCatalog.open(folder / "catalog", None, "c").close())
    except ckpt.CkptError as error:
        return error.code
    return "open"

ends["catalog before"] = catalog()
with ckpt.open(f"ckpt+local://{folder}/store?targets=3&code=2+1") as store:
    ends["before"] = saved(store, 1, wait_s=60.0)
    fill()
    ends["free"] = os.statvfs(folder).f_bavail
    ends["catalog"] = catalog()
    ends["same shape"] = saved(store, 2)
    try:
        store.save("wide", 1, {"b": np.ones(9 << 20, "u1")}).wait(2.0)
        ends["new shape"] = "committed"
    except ckpt.CkptError as error:
        ends["new shape"] = error.code
        ends["said"] = str(error)
    ends["status"] = checks_once_it_is_down()
    filler.unlink()
    ends["catalog after"] = catalog()
    ends["after"] = eventually(store, 3)
    ends["steps"] = [commit.step for commit in store.steps("run")]
    ends["equal"] = [
        bool((store.load("run", step)["a"] == state(step)["a"]).all()) for step in ends["steps"]
    ]
ends["stopped"] = main(["local", "stop", f"{folder}/store"])
print(json.dumps(ends))
'''


@pytest.fixture
def mark() -> Iterator[str]:
    """What is started carries it, and is gone behind the test."""
    word = f"full-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="ckpt-full-") as runtime:
        with marked_environment(word, Path(runtime)):
            yield word
        left = [one.command for one in find_marked(word) if not one.is_stager]
        end_marked(word, 30.0)
    assert not left


def test_a_full_disk_ends_saves_honestly_and_loses_nothing(mark: str, tmp_path: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh"]
    probe = [*namespace, str(tmp_path), "true"]
    try:
        able = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("no user namespaces here, so no small file system without root")
    mounted = tmp_path / "disk"
    mounted.mkdir()
    line = [*namespace, str(mounted), sys.executable, "-c", SCRIPT, str(mounted)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    ends = json.loads(ended.stdout.splitlines()[-1])
    assert ends["free"] == 0, "nothing at all was left"
    assert ends["before"] == ends["after"] == "committed"
    assert [ends[f"catalog{when}"] for when in (" before", "", " after")] == [
        "open",
        "no_space",
        "open",
    ]
    remedies = ends["status"]
    assert remedies["COORDINATOR_DOWN"].startswith(f"make room: the disk of {mounted}/store has ")
    assert ends["new shape"] in ("no_space", "unavailable", "timeout"), ends["said"]
    committed = [1, 3] if ends["same shape"] != "committed" else [1, 2, 3]
    assert set(committed) <= set(ends["steps"]), "what was announced stays"
    assert ends["equal"] == [True] * len(ends["steps"])
    assert ends["stopped"] == 0
