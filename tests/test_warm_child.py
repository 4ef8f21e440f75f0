"""A daemon that a test starts warm ends, and speaks, as one that it starts cold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpt.aio.secret import make_secret
from ckpt_client.local import children
from ckpt_client.local.detach import child_environment
from tests.warm_child import Child, WarmChild, start_daemon, start_printing_child

WAIT_S = 60.0


def ended(directory: Path, words: Sequence[str], *, cold: bool) -> tuple[bool, int, bytes, bytes]:
    """Whether it was warm, its exit status, and what it said."""
    log = directory / "log"
    with log.open("wb") as errors:
        child = start_daemon(words, stderr=errors.fileno(), cold=cold)
    assert child.stdout is not None
    with child.stdout as output:
        said = output.read()
    return isinstance(child, WarmChild), child.wait(WAIT_S), said, log.read_bytes()


@pytest.mark.parametrize("words", [["--version"], ["target", "--no-such"], ["targt"]])
def test_it_ends_and_says_what_a_cold_one_does(tmp_path: Path, words: list[str]) -> None:
    warm, cold = (ended(tmp_path, words, cold=cold) for cold in (False, True))
    assert (warm[0], cold[0]) == (True, False)
    assert warm[1:] == cold[1:]


def running(directory: Path, **more: str) -> Child:
    directory.mkdir()
    make_secret(directory / "secret")
    words = [
        *("coordinator", "--listen", "127.0.0.1:0", "--code", "2+1"),
        *("--directory", str(directory), "--secret-file", str(directory / "secret")),
    ]
    with (directory / "log").open("wb") as errors:
        return start_daemon(
            words, options=("-W", "error"), stderr=errors.fileno(),
            environment={**os.environ, **more},
        )  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_it_is_signalled_awaited_and_gone_once_its_end_is_heard(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    other, child = running(tmp_path / "a"), running(tmp_path / "c", SAID="yes")
    assert isinstance(child, WarmChild)
    with child.stdout as output:
        assert output.readline().startswith(b"{")
    here = Path(f"/proc/{child.pid}")
    words = (here / "cmdline").read_text().split("\0")
    assert words[:6] == [sys.executable, "-W", "error", "-m", "ckptd.cli", "coordinator"]
    assert b"SAID=yes" in (here / "environ").read_bytes().split(b"\0")
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.0)
    child.send_signal(number)
    assert child.wait(WAIT_S) == child.poll() == child.returncode == status
    assert not here.exists()
    child.kill()
    assert other.poll() is None
    other.kill()
    assert other.wait(WAIT_S) == -signal.SIGKILL
    assert other.stdout is not None
    other.stdout.close()


def test_another_interpreter_starts_cold(tmp_path: Path) -> None:
    child = running(tmp_path / "c", PYTHONHASHSEED="1")
    assert isinstance(child, subprocess.Popen)
    child.kill()
    child.communicate()


def test_what_a_command_starts_to_print_ends_and_says_what_a_cold_one_does(tmp_path: Path) -> None:
    for program, words in (("target", ["--print-toml"]), ("rebuild-catalog", ["--targets", "x"])):
        line = ["-m", "ckptd.cli", program, *words, "--directory", str(tmp_path)]
        seen = []
        for start in (start_printing_child, children.start_child):
            child = start(line, environment=child_environment(), stderr=subprocess.PIPE)
            seen.append((*child.communicate(), child.returncode))
            assert isinstance(child, WarmChild) == (start is start_printing_child)
        assert seen[0] == seen[1]
        assert any(seen[0][:2])
