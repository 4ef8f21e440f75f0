"""An emulator of a store, as a process of its own on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.stores.gateway import answers
from tests.waiting import wait_until

START_TIMEOUT_S = 120.0


class Server:
    """I start it, return when it answers, and end exactly what I started."""

    def __init__(
        self, line: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        # Also when pytest is killed, or ends itself at a timeout, nothing of it stays.
        alone = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*alone, *line],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
            )

        def is_up() -> bool:
            assert self._process.poll() is None, f"{line[0]} ended: {log.read_text()}"
            return answers(port)

        try:
            wait_until(is_up, f"{line[0]} answers, see {log}", START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
