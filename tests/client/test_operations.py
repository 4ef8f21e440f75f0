"""Every command of docs/operations.md is run, in its order, and ends as the page says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.protocol.coordinator.reading.checks import CHECKS
from ckpt_client.cli.exits import MEANINGS
from tests.client.clikit import TIMEOUT_S, environment, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
FOLDERS = ("/scratch", "/etc", "/var/lib", "/mnt")


def commands_of(page: str, kind: str = "console") -> list[str]:
    """`kind` is of the blocks that count."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


class Shell:
    """I run a page's lines: its folders below a temporary one, its addresses on this machine."""

    def __init__(self, root: Path, addresses: Mapping[str, str] | None = None) -> None:
        """`addresses`: where some of the page's are; all others are free ports."""
        self._root = root
        self._environ = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        self._ports: dict[str, str] = dict(addresses or {})
        self._daemons: list[subprocess.Popen[bytes]] = []
        for folder in FOLDERS:
            (root / folder[1:]).mkdir(parents=True)

    def run(self, line: str) -> str:
        """What the line prints; nothing of a daemon."""
        command, _, remark = self._here(line).partition("   # exit ")
        match command.split():
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self._environ[name] = value.strip("'")
            case ["kill", job] if job.startswith("%"):
                self._end(self._daemons[int(job[1:]) - 1])
            case [*words, "&"]:
                self._start(words)
            case _:
                return self._finish(command, int(remark or 0))
        return ""

    def python(self, code: str) -> str:
        """What a page's script prints."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", self._here(code)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environ,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        return done.stdout

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            self._end(daemon)

    def _start(self, words: list[str]) -> None:
        log = (self._root / f"daemon-{len(self._daemons)}.log").open("wb")
        with log:
            daemon = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
            )
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith(b"{"), f"no ready line from {words}"

    def _finish(self, command: str, code: int) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environ,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == code, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _end(self, daemon: subprocess.Popen[bytes]) -> None:
        daemon.terminate()
        daemon.wait(TIMEOUT_S)
        assert daemon.stdout is not None
        daemon.stdout.close()

    def _here(self, line: str) -> str:
        for folder in FOLDERS:
            line = line.replace(folder, f"{self._root}{folder}")
        return re.sub(r"10\.0\.0\.\d:\d+", lambda match: self._address(match[0]), line)

    def _address(self, named: str) -> str:
        return self._ports.setdefault(named, f"127.0.0.1:{free_port()}")


def free_port() -> int:
    """One that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def shell(root: Path) -> Iterator[Shell]:
    opened = Shell(root)
    try:
        yield opened
    finally:
        opened.close()
        local = root / "scratch" / "burst"
        if (local / "cluster.toml").exists():
            run("local", "stop", str(local))


def test_the_page_has_the_table_of_exit_codes() -> None:
    page = PAGE.read_text()
    for code, meaning in MEANINGS:
        assert f"| {code} | {meaning} |" in page


def test_each_health_check_ends_with_a_code_that_the_page_explains() -> None:
    codes = {code for code, _ in MEANINGS}
    assert {str(kind.exit_code) for kind in CHECKS.values()} <= codes


@pytest.mark.timeout(480)
def test_every_command_of_the_page_ends_as_it_says(tmp_path: Path) -> None:
    lines = commands_of(PAGE.read_text())
    assert len(lines) > 30
    with shell(tmp_path) as opened:
        for line in lines:
            opened.run(line)
