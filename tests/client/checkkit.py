"""A small local cluster, and one of its health checks: it stands, its command is run, it goes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckpt.format.checksum import xxh3_128
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import CHECKS, exit_code
from tests.client.clikit import Ended, environment, fill, run, run_line
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import Child, start_daemon

RUN_NAME = "llama/7b"
PATIENCE_S = 60.0


class Case:
    """A local cluster of four targets, 2+1, with two steps, in DIR."""

    def __init__(self, directory: Path, options: str = "targets=4&code=2+1") -> None:
        self.directory = directory
        self.timeout_s = 5.0
        """How long `ckpt status` waits for the coordinator."""
        self.url = f"ckpt+local://{directory}"
        bin_folder = Path(sys.executable).parent
        path = f"{bin_folder}:{os.environ['PATH']}"
        self.environ = environment(CKPT_STORE=self.url, PATH=path)
        fill(f"{self.url}?{options}", RUN_NAME, (1, 2), ranks=1)

    def status(self, *flags: str) -> Ended:
        return run("status", "--json", *self._patience(), *flags, environ=self.environ)

    def _patience(self) -> tuple[str, str]:
        return "--timeout", str(self.timeout_s)

    def check(self, name: str) -> dict[str, Any] | None:
        found = [each for each in self.status().document()["checks"] if each["name"] == name]
        return found[0] if found else None

    def pid_of(self, target: str) -> int:
        """Once it is connected: one that was just released may not be yet."""
        pids: list[int] = []

        def is_known() -> bool:
            targets = {each["id"]: each for each in self.status().document()["targets"]}
            pid = targets[target]["pid"]
            pids.extend([pid] if isinstance(pid, int) else [])
            return bool(pids)

        wait_until(is_known, f"{target} is connected", PATIENCE_S, ASKED_S)
        return pids[0]

    def kill(self, *targets: str, held: bool = True) -> None:
        """SIGKILL; held ones are not started again."""
        for target in targets:
            pid = self.pid_of(target)
            if held:
                assert run("target", "hold", target, environ=self.environ).code == 0
            os.kill(pid, signal.SIGKILL)

    def wait_well(self) -> None:
        """Nothing is wrong."""
        wait_until(lambda: self.status().code == 0, "all is well", PATIENCE_S, ASKED_S)

    def columns(self, step: int) -> list[Path]:
        prefix = xxh3_128(RUN_NAME.encode()).hex()
        return sorted(self.directory.glob(f"targets/*/columns/{prefix}-{step}-*"))

    def shell(self, command: str) -> None:
        """As a person types it."""
        done = run_line(command, environ=self.environ)
        # What verifies a lost checkpoint says so by its code.
        codes = (0, 4) if "ckpt verify" in command else (0,)
        assert done.code in codes, f"$ {command}\n{done.out}{done.err}"

    def rested(self, change: Callable[[], None]) -> None:
        """Something happens to the files of a cluster that does not run."""
        assert run("local", "stop", str(self.directory)).code == 0
        change()
        assert run("ls", environ=self.environ).code in (0, 3)

    def prove(self, name: str, command: str = "", cause: str = "") -> dict[str, Any]:
        """The check stands, with its cause and its command (patterns), which mends it."""
        seen: list[Ended] = []

        def stands() -> bool:
            # A cluster that comes up says more every moment: other targets are away at first.
            seen[:] = [self.status()]
            return any(
                re.search(cause, each["message"]) and re.search(command, each["command"])
                for each in seen[0].document()["checks"]
                if each["name"] == name
            )

        wait_until(stands, f"{name} stands: {cause} $ {command}", PATIENCE_S, ASKED_S)
        document = seen[0].document()
        checks = [Check(**{**each, "targets": ()}) for each in document["checks"]]
        assert seen[0].code == exit_code(checks, strict=False)
        assert self.status("--check").code != 0
        (found,) = [each for each in document["checks"] if each["name"] == name]
        assert found["severity"] == CHECKS[name].severity
        assert document["health"] == (
            "HEALTH_ERR" if "error" in severities(document) else "HEALTH_WARN"
        )
        assert found["remedy"]
        assert found["command"]
        text = run("status", *self._patience(), environ=self.environ).out
        assert f"{name}: " in text
        assert f"$ {found['command']}\n" in text
        self.shell(found["command"])
        wait_until(lambda: self.check(name) is None, f"{name} goes", PATIENCE_S, ASKED_S)
        assert isinstance(found, dict)
        return found


def severities(document: dict[str, Any]) -> set[str]:
    return {each["severity"] for each in document["checks"]}


@contextmanager
def made(
    directory: Path, options: str = "targets=4&code=2+1", *, repairs: bool = True
) -> Iterator[Case]:
    if not repairs:
        (directory / "burst").mkdir()
        (directory / "burst" / "coordinator.toml").write_text("repair = false\n")
    case = Case(directory / "burst", options)
    try:
        yield case
    finally:
        run("local", "stop", str(case.directory))


@contextmanager
def running(words: Sequence[str], case: Case, log: Path) -> Iterator[Child]:
    """`ckptd WORDS` beside the cluster; it is ended in the end."""
    with log.open("wb") as said:
        daemon = start_daemon(words, stderr=said.fileno(), environment=case.environ)
    assert daemon.stdout is not None
    with daemon.stdout:
        try:
            yield daemon
        finally:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
