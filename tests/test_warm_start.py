"""What tests start warm is, in all that the kernel says of it, what users start cold."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt.aio.secret import make_secret
from ckpt.base.units import MiB
from ckpt_client.local.detach import start_detached
from ckpt_client.local.processes import MARK_NAME, find_marked, kill_processes
from ckpt_client.save.links import stager_link
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.stager import wire
from tests.waiting import wait_until
from tests.warm_start import WarmStart

SIGNALS = ("SigBlk", "SigIgn", "SigCgt")
MARK = "warm or cold"


def test_a_stager_that_starts_warm_is_one_that_starts_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_secret(tmp_path / "secret")
    monkeypatch.setenv(MARK_NAME, MARK)
    warm_start, before = WarmStart(), resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # The server's own environment is that of the first start.
        start_one(tmp_path, warm_start.detached, monkeypatch)
        # Only what is said from now on differs from the server.
        monkeypatch.setenv("SAID_LATER", "yes")
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        warm = start_one(tmp_path, warm_start.detached, monkeypatch)
        cold = start_one(tmp_path, start_detached, monkeypatch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        warm_start.close()
    assert warm == cold
    assert "SAID_LATER=yes" in warm["environ"]


def test_what_goes_to_a_loopback_of_its_own_starts_others_there() -> None:
    """As root, or where that is allowed: in a process of its own, which cannot come back."""
    done = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, text=True, check=False, timeout=100
    )
    if done.returncode == SKIPPED:
        pytest.skip("no namespace of its own for this user")
    assert done.returncode == 0, done.stderr
    before, after, own = done.stdout.split()
    assert before != after == own


def test_a_server_that_nobody_ends_leaves_no_folder() -> None:
    """Who started it was killed, say, and ran nothing of its own at its end."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, timeout=100
    )
    folder = Path(done.stdout.strip()).parent
    assert folder.name.startswith("ckpt-warm-"), done.stderr
    # It has heard of that end, its own comes soon.
    wait_until(lambda: not folder.exists(), "its folder is gone")


KILLED = """
import os, signal
from tests.warm_start import PATH_NAME, WarmStart

print(WarmStart().environment()[PATH_NAME], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
SKIPPED = 77
GONE = f"""
import os, sys
from ckptbench.proc import isolate_loopback
from tests.warm_start import WarmStart

def server(warm_start):
    warm_start.environment()
    pid = list(warm_start._servers.values())[-1].pid
    return os.readlink(f"/proc/{{pid}}/ns/net")

warm_start = WarmStart()
before = server(warm_start)
if not isolate_loopback():
    warm_start.close()
    sys.exit({SKIPPED})
print(before, server(warm_start), os.readlink("/proc/self/ns/net"))
warm_start.close()
"""


def start_one(
    directory: Path, start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What /proc shows of a stager that is up."""
    monkeypatch.setattr(stager_link, "start_detached", start)
    link = StagerLink(attach_to(directory), directory / "stager.log")
    try:
        assert [one.pid for one in find_marked(MARK) if one.is_stager] == [link.pid]
        return shown(link.pid)
    finally:
        link.close()
        assert kill_processes([link.pid], signal.SIGKILL, 10.0) == set()


def attach_to(directory: Path) -> wire.Attach:
    return wire.Attach(
        pid=os.getpid(), process="host/1/test", rank=0, world_size=1, key=None,
        directory=str(directory), address="", cluster="c1", secret_file=str(directory / "secret"),
        arena_bytes_max=MiB, idle_s=60.0,
    )  # fmt: skip


def shown(pid: int) -> dict[str, Any]:
    here = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (here / "status").read_text().splitlines())
    fields = (here / "stat").read_text().rpartition(") ")[2].split()
    words = (here / "cmdline").read_text().rstrip("\0").split("\0")
    number = words.index("ckpt_client.stager") + 1
    heard = os.readlink(here / "fd" / words[number]).partition(":")[0]
    words[number] = "NUMBER"
    opened = [os.readlink(one).partition(":")[0] for one in (here / "fd").iterdir()]
    return {
        "command": words,
        "environ": sorted((here / "environ").read_text().rstrip("\0").split("\0")),
        "hears us through": heard,
        # Of newer libffi: it maps itself once more where ctypes makes a callback.
        "files": sorted(one for one in opened if "/libffi.so" not in one),
        "directory": os.readlink(here / "cwd"),
        "umask": status["Umask"],
        "limits": (here / "limits").read_text(),
        "signals": [status[name] for name in SIGNALS],
        "threads": status["Threads"],
        "nice": fields[16],
        "our child": int(fields[1]) == os.getpid(),
        "in a session of ours, or its own": int(fields[3]) in (os.getsid(0), pid),
    }
