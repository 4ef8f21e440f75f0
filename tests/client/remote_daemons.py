"""A coordinator and targets of other hosts, started as an operator would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tests.client.clikit import Ended, environment, run
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import Child, run_script, start_daemon

RUN_NAME = "llama/7b"
PATIENCE_S = 60.0


class Remote:
    """A coordinator and two targets, 1+1, started by hand; one step is saved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        secret = folder / "secret"
        secret.write_text("ab" * 32)
        secret.chmod(0o600)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = environment(CKPT_SECRET_FILE=str(secret), PATH=path)
        self._daemons: list[Child] = []
        ready = self.start(
            f"ckptd coordinator --directory {folder}/c --listen 127.0.0.1:0 --code 1+1"
            " --http 127.0.0.1:0",
            cold=False,
        )
        address = re.search(r'"address": "([^"]+)"', ready)
        assert address is not None
        self.environ["CKPT_STORE"] = f"ckpt://{address[1]}"
        for id in ("n1", "n2"):
            self.start(
                f"ckptd target --id {id} --directory {folder}/{id} --coordinator {address[1]}"
                f" --domain p/r/{id}/d",
                cold=False,
            )
        script = folder / "trainer.py"
        script.write_text(f"import ckpt; ckpt.save({RUN_NAME!r}, 1, {{'w': 1.5}}).wait(60)")
        assert run_script(script, environment=self.environ) == 0

    def start(self, line: str, *, cold: bool = True) -> str:
        """Run a daemon; its ready line. `cold`: as people start it, not forked warm."""
        with (self._folder / f"daemon-{len(self._daemons)}.log").open("wb") as log:
            daemon = (self._by_its_command if cold else self._warm)(shlex.split(line), log)
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        ready = daemon.stdout.readline().decode()
        assert ready.startswith("{"), line
        return ready

    def _by_its_command(self, words: list[str], log: BinaryIO) -> Child:
        return subprocess.Popen(
            words, env=self.environ, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
        )

    def _warm(self, words: list[str], log: BinaryIO) -> Child:
        return start_daemon(words[1:], stderr=log.fileno(), environment=self.environ)

    def end_target(self) -> None:
        self._daemons[-1].kill()
        self._daemons[-1].wait()

    def status(self) -> Ended:
        return run("status", "--json", environ=self.environ)

    def document(self) -> dict[str, Any]:
        return self.status().document()

    def wait(self, name: str) -> dict[str, Any]:
        stands = lambda: [c for c in self.document()["checks"] if c["name"] == name]  # noqa: E731
        wait_until(lambda: bool(stands()), f"{name} stands", PATIENCE_S, ASKED_S)
        (found,) = stands()
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
            assert daemon.stdout is not None
            daemon.stdout.close()


@contextmanager
def remote(folder: Path) -> Iterator[Remote]:
    case = Remote(folder)
    try:
        yield case
    finally:
        case.close()
