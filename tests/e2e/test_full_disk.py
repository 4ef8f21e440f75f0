"""A disk that is really full under a save: an honest error or a commit, and everything goes on once
there is room. Nobody ends meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_client.local.processes import end_marked, find_marked, marked_environment
from tests.small_disk import FILL, run_on_small_disk

LIMIT_S = 240.0
SCRIPT = (
    FILL
    + '''
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

def eventually(store, step):
    deadline = time.monotonic() + 120
    while (end := saved(store, step, 6.0)) != "committed" and time.monotonic() < deadline:
        threading.Event().wait(0.5)
    return end

def checks_once_it_is_full():
    """What status says. A slow machine may not have come to the first write yet."""
    deadline = time.monotonic() + 60
    while True:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(["status", "--store", f"ckpt+local://{folder}/store", "--timeout", "2", "--json"])
        checks = {c["name"]: c["remedy"] for c in json.loads(out.getvalue())["checks"]}
        if "CATALOG_FULL" in checks or time.monotonic() > deadline:
            return checks
        threading.Event().wait(0.2)

def coordinator():
    return json.loads((folder / "store" / "ready.json").read_text())["coordinator_pid"]

def loads_by_the_next(store):
    """Its coordinator is killed, and none of the bytes that this frees is left for the next one."""
    killed = coordinator()
    os.kill(killed, 9)
    fill(filler)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if coordinator() != killed:
                return bool((store.load("run", 1)["a"] == state(1)["a"]).all())
        except ckpt.CkptError as error:
            ends["next"] = str(error)
        threading.Event().wait(0.2)
    return f"not after {deadline}: {ends.get('next')}"

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
    fill(filler)
    ends["free"] = os.statvfs(folder).f_bavail
    ends["catalog"] = catalog()
    ends["same shape"] = saved(store, 2)
    try:
        store.save("wide", 1, {"b": np.ones(9 << 20, "u1")}).wait(2.0)
        ends["new shape"] = "committed"
    except ckpt.CkptError as error:
        ends["new shape"] = error.code
        ends["said"] = str(error)
    ends["status"] = checks_once_it_is_full()
    ends["loads"] = loads_by_the_next(store)
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
)


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
    mounted = tmp_path / "disk"
    ends = run_on_small_disk(SCRIPT, mounted, size="96m", limit_s=LIMIT_S)
    assert ends["free"] == 0, "nothing at all was left"
    assert ends["before"] == ends["after"] == "committed"
    assert {ends[f"catalog{when}"] for when in (" before", "", " after")} == {"open"}
    remedies, steps = ends["status"], ends["steps"]
    assert isinstance(remedies, dict)
    assert isinstance(steps, list)
    assert remedies["CATALOG_FULL"].startswith(f"make room on the disk of {mounted}/store")
    assert "COORDINATOR_DOWN" not in remedies
    assert ends["loads"] is True
    assert ends["new shape"] in ("no_space", "unavailable", "timeout"), ends["said"]
    committed = [1, 3] if ends["same shape"] != "committed" else [1, 2, 3]
    assert set(committed) <= set(steps), "what was announced stays"
    assert ends["equal"] == [True] * len(steps)
    assert ends["stopped"] == 0
