"""A local cluster for a module of framework tests, ended with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ckpt
from tests.client.test_stager_process import runs
from tests.waiting import wait_until


@contextmanager
def local_cluster(directory: Path, targets: int = 3, code: str = "2+1") -> Iterator[str]:
    """The URL without options of a running cluster in the directory."""
    url = f"ckpt+local://{directory}"
    options = f"targets={targets}&code={code}&pretend_domains=1"
    if code.endswith("+0"):
        options += "&unprotected=1"
    ckpt.open(f"{url}?{options}").close()
    try:
        yield url
    finally:
        ready = json.loads((directory / "ready.json").read_text())
        os.kill(ready["pid"], signal.SIGTERM)
        wait_until(lambda: not runs(ready["pid"]), "the supervisor's end", 120)
