"""Every command of docs/operations.md is run, in its order, and ends as the page says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.protocol.coordinator.reading.checks import CHECKS
from ckpt_client.cli.exits import MEANINGS
from tests.client.clikit import PLAIN, TIMEOUT_S, Ended, environment, run, run_in_shell
from tests.landing import has_turn
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import Child, start_daemon, start_script

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
FOLDERS = ("/scratch", "/etc", "/var/lib", "/mnt")
NAME = re.compile(r"ckpt(?: [a-z][a-z-]*(?!\S))*")
"""Of the command in a line, before its operands and options."""
SCRIPT = re.compile(r"python3 -c '([^']*)'")
CURL = f"""#!{sys.executable}
import sys, urllib.request
*options, url = sys.argv[1:]
headers = dict(word.split(": ", 1) for word in options if ": " in word)
with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
    sys.stdout.buffer.write(answer.read())
"""
"""For a machine without one: as far as the page uses it."""


def commands_of(page: str, kind: str = "console") -> list[str]:
    """`kind` is of the blocks that count."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


class Shell:
    """I run a page's lines: its folders below a temporary one, its addresses on this machine.

    Each command of `ckpt` is a process the first time that the page has it, at one of three
    landings. What it answers after that is asked in this process, and each script and each kind of
    daemon after the first is forked warm: interpreters that import the same were half of what a
    page cost.
    """

    def __init__(self, root: Path, addresses: Mapping[str, str] | None = None) -> None:
        """`addresses`: where some of the page's are; all others are free ports."""
        self._root = root
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if shutil.which("curl") is None:
            (root / "curl").write_text(CURL)
            (root / "curl").chmod(0o700)
            path.append(str(root))
        # At the page's terminal a line is there at once: here Python would keep it for the end.
        self._environ = environment(PATH=":".join(path), PYTHONUNBUFFERED="1")
        self._ports: dict[str, str] = dict(addresses or {})
        self._daemons: list[Child] = []
        #: Commands of `ckpt` and `ckptd` that need no interpreter of their own any more, and
        #: "python3" once no script does.
        self._begun: set[str] = set()
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
                code = int(remark or 0)
                ended = self._answered(command, code) or run_in_shell(command, self._environ)
                assert ended.code == code, f"$ {command}\n{ended.out}{ended.err}"
                return ended.out
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
            daemon = self._begin(words, log.fileno())
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith(b"{"), f"no ready line from {words}"

    def _begin(self, words: list[str], log: int) -> Child:
        program, kind, *_ = words
        if program == "ckptd" and self._has_begun(f"ckptd {kind}"):
            return start_daemon(words[1:], stderr=log, environment=self._environ)
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=self._environ,
        )

    def _answered(self, command: str, code: int) -> Ended | None:
        """Without an interpreter of its own. None is for a shell, or is to be a process."""
        script, name = SCRIPT.fullmatch(command), NAME.match(command)
        if script is not None and self._has_begun("python3"):
            return self._scripted(script[1])
        if name is not None and PLAIN.fullmatch(command) and self._has_begun(name[0]):
            return self._asked(shlex.split(command)[1:], code)
        return None

    def _asked(self, words: list[str], code: int) -> Ended:
        """In this process. Nobody types a status as fast as we do: where a target that has begun is
        not counted yet, it is asked again.
        """
        answers = [run(*words, environ=self._environ)]

        def is_as_said() -> bool:
            if answers[-1].code != code:
                answers.append(run(*words, environ=self._environ))
            return answers[-1].code == code

        if words[0] == "status":
            wait_until(is_as_said, f"$ ckpt {shlex.join(words)}", poll_s=ASKED_S)
        return answers[-1]

    def _has_begun(self, name: str) -> bool:
        """Or begins at another landing. It has from now on."""
        needs_none = name in self._begun or not has_turn(len(self._begun), every=3)
        self._begun.add(name)
        return needs_none

    def _scripted(self, code: str) -> Ended:
        """Its errors go where ours do."""
        file = self._root / "script.py"
        file.write_text(code)
        child = start_script(file, environment=self._environ)
        assert child.stdout is not None
        with child.stdout:
            out = child.stdout.read()
        return Ended(child.wait(TIMEOUT_S), out.decode(), "")

    def _end(self, daemon: Child) -> None:
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
