"""A trainer whose user, or whose container, may have no process more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt.base.errors import CkptError, Unavailable
from ckpt_client.local import detach
from ckpt_client.local.detach import start_detached

USER = 20_000 + os.getpid() % 40_000
"""Whom nobody else is: its processes are those of the test."""
STARTS = """
import resource, sys
from pathlib import Path
from ckpt.base.errors import CkptError
from ckpt_client.local.detach import start_detached

_, hard = resource.getrlimit(resource.RLIMIT_NPROC)
for allowed in (1, 2):
    resource.setrlimit(resource.RLIMIT_NPROC, (allowed, hard))
    try:
        start_detached(["-m", "ckpt_client.stager"], log=Path(sys.argv[1]))
    except CkptError as error:
        print(type(error).__name__, error)
"""
LINKS = """
import os, sys
from pathlib import Path
from ckpt.base.errors import CkptError
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.stager import wire

attach = wire.Attach(
    pid=os.getpid(), process="host/1/test", rank=3, world_size=4, key=None, directory="",
    address="127.0.0.1:1", cluster="c1", secret_file="/none", arena_bytes_max=1 << 20, idle_s=1.0,
)
sys.executable = sys.argv[1]
try:
    StagerLink(attach, Path(sys.argv[2]))
except CkptError as error:
    print(type(error).__name__, error)
"""

needs_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="root may have any number of processes, and only root can become somebody else",
)


@needs_another_user
def test_a_trainer_without_a_process_to_be_had_hears_which_limit_to_raise(tmp_path: Path) -> None:
    """With room for one more, it is what starts the stager that gets none."""
    rights = "+dac_override,+dac_read_search"  # To the interpreter, wherever root keeps it.
    other = ["setpriv", f"--reuid={USER}", "--clear-groups", f"--inh-caps={rights}"]
    command = [*other, f"--ambient-caps={rights}", sys.executable, "-c", STARTS]
    ended = subprocess.run(
        [*command, str(tmp_path / "log")], capture_output=True, text=True, timeout=120, check=False
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, ended.stderr
    for line in lines:
        assert line.startswith("Scarce cannot start ckpt_client.stager"), line
        assert "unavailable; raise the limit of processes: ulimit -u, or its pids.max" in line, line


def test_what_ends_a_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interpreter that the system kills for memory, or that lacks a library."""
    program = tmp_path / "python"
    for line, said in (("kill -KILL $$", "signal 9"), ("exit 127", "exit code 127")):
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(CkptError, match=rf"start ckpt_client\.stager.*{said}; see .*log"):
            start_detached(["-m", "ckpt_client.stager"], log=tmp_path / "log")


def test_a_start_that_takes_too_long_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the interpreter lies on a file server that hangs."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(detach, "_RELAY_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match=r"did not begin in 0\.2 s; see .*log"):
        start_detached(["-m", "ckpt_client.stager"], log=tmp_path / "log")


def test_a_stager_that_ends_as_it_starts_is_said_to(tmp_path: Path) -> None:
    """Not that process 0 ended before its save did."""
    program = tmp_path / "python"
    starts = f'[ "$1" = -I ] && exec {sys.executable} "$@"'  # What starts the stager, not it.
    program.write_text(f"#!/bin/sh\n{starts}\nkill -KILL $$\n")
    program.chmod(0o700)
    ended = subprocess.run(
        [sys.executable, "-c", LINKS, str(program), str(tmp_path / "stager.log")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout.startswith("Aborted the stager of rank 3 ended as it started; "), ended
    assert str(tmp_path / "stager.log") in ended.stdout
