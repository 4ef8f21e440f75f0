"""A cluster on one host whose processes are of either version, each from its own environment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from tests.client.clikit import TIMEOUT_S, Ended, environment, run
from tests.waiting import ASKED_S, wait_until
from tests.wheel.environments import Environment

TARGETS: Final = ("t0", "t1", "t2", "t3", "t4")
CODE: Final = "2+1"
_TRAINER: Final = """
import sys
import numpy as np
import ckpt

def state(step):
    return {"a": np.random.default_rng(step).bytes(1 << 20), "step": step}

with ckpt.open() as store:
    for line in sys.stdin:
        verb, run, step = line.split()
        if verb == "save":
            store.save(run, int(step), state(int(step))).wait(60)
        else:
            assert store.load(run, int(step)) == state(int(step))
        print("done", flush=True)
"""


class Process:
    """A daemon, or a trainer; I end what I began."""

    def __init__(self, line: list[str], environ: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environ,
            )  # fmt: skip

    @property
    def log(self) -> str:
        """What it has said on stderr, and those before it in its place."""
        return self._log.read_text()

    def heard(self) -> str:
        """Its next line."""
        line = self._stream(self._process.stdout).readline()
        assert line, f"it has ended: {self.log[-2000:]}"
        return line

    def say(self, line: str) -> None:
        stream = self._stream(self._process.stdin)
        stream.write(line + "\n")
        stream.flush()

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self._process.wait(TIMEOUT_S)

    def end(self) -> None:
        self._process.terminate()
        self._finish()

    def kill(self) -> None:
        self._process.kill()
        self._finish()

    def _finish(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


class Trainer:
    """Saves and loads for as long as it runs, in a run of its own."""

    def __init__(self, process: Process, run: str) -> None:
        self._process = process
        self.run = run
        self.steps: list[int] = []

    def save(self) -> None:
        step = len(self.steps) + 1
        self._do(f"save {self.run} {step}")
        self.steps.append(step)

    def load(self, other: Trainer, last: int | None = None) -> None:
        """All that the other has saved, or so many, compared."""
        for step in other.steps if last is None else other.steps[-last:]:
            self._do(f"load {other.run} {step}")

    def kill(self) -> None:
        self._process.kill()

    def _do(self, line: str) -> None:
        self._process.say(line)
        assert self._process.heard() == "done\n"


class MixedCluster:
    """One coordinator and five targets, 2+1, all of the earlier version at first."""

    def __init__(self, folder: Path, older: Environment, newer: Environment) -> None:
        self.folder = folder
        self.older, self.newer = older, newer
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        secret = folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        self._environ = environment(
            CKPT_SECRET_FILE=str(secret), CKPT_STORE=f"ckpt://{self.address}"
        )
        # Each process is of its environment, whatever tree runs this.
        self._environ.pop("PYTHONPATH", None)
        self.processes: dict[str, Process] = {}
        self.start_coordinator(older)
        for id in TARGETS:
            self.start_target(id, older)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()

    # ----------------------------------------------------------------------- processes

    def start_coordinator(
        self, of: Environment, directory: str = "coordinator", *, ready: bool = True
    ) -> Process:
        """In the place of the one that runs."""
        self.end("coordinator")
        flags = ["--directory", str(self.folder / directory), "--listen", self.address]
        flags += ["--code", CODE]
        if of is self.newer:
            flags += ["--rebuild-after-s", "0"]
        return self._start("coordinator", of, ["coordinator", *flags], ready=ready)

    def start_target(self, id: str, of: Environment, *, ready: bool = True) -> Process:
        """In the place of the one that runs."""
        self.end(id)
        flags = ["--id", id, "--directory", str(self.folder / id), "--coordinator", self.address]
        flags += ["--domain", f"p/r/{id}/d"]
        return self._start(id, of, ["target", *flags], ready=ready)

    def start_worker(self) -> None:
        """`ckptd repair`; the earlier version has none."""
        self._start("worker", self.newer, ["repair", "--coordinator", self.address])

    def trainer(self, of: Environment, run: str) -> Trainer:
        line = [str(of.python), "-P", "-c", _TRAINER]
        process = Process(line, self._environ, self.folder / f"{run}.log")
        self.processes[run] = process
        return Trainer(process, run)

    def end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            process.end()

    def _start(
        self, name: str, of: Environment, words: list[str], *, ready: bool = True
    ) -> Process:
        log = self.folder / f"{name}.log"
        process = Process([str(of.command("ckptd")), *words], self._environ, log)
        self.processes[name] = process
        if ready:
            assert "ready" in process.heard()
        return process

    def copy_catalog(self, directory: str) -> None:
        """As somebody has a copy; the coordinator runs on."""
        shutil.copytree(self.folder / "coordinator", self.folder / directory)

    # ----------------------------------------------------------------------- looking

    def newer_command(self, *words: str) -> Ended:
        """`ckpt`, in this process, of the newer version: an interpreter each time costs."""
        return run(*words, environ=self._environ)

    def command(self, of: Environment, *words: str) -> Ended:
        """`ckpt`, as it is installed with either version."""
        done = subprocess.run(
            [of.command("ckpt"), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=self._environ, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def status(self) -> dict[str, Any]:
        return json.loads(self.newer_command("status", "--json").out or "{}")

    def upgrade(self) -> dict[str, Any]:
        return self.newer_command("upgrade", "--json").document()

    def wait_live(self, count: int) -> None:
        def live() -> bool:
            states = [each["state"] for each in self.status().get("targets", ())]
            return states.count("live") == count

        self.wait(live, f"{count} targets are live")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, TIMEOUT_S, ASKED_S)

    def columns(self) -> dict[str, set[str]]:
        """Which targets have each column's file."""
        found: dict[str, set[str]] = {}
        for path in self.folder.glob("t?/columns/*"):
            found.setdefault(path.name, set()).add(path.parts[-3])
        return found
