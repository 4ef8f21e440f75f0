"""A trainer without stdin, stdout or stderr: what its libraries write there goes nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.client.clikit import run

TRAINER = """
import ctypes, sys
import numpy as np
import ckpt

def warn():
    for number in range(3):
        ctypes.CDLL(None).write(number, b"[W12] a library of C warns, and not by Python\\n", 45)

try:
    with ckpt.open(sys.argv[1]) as store:
        for step in (1, 2):
            save = store.save("mute", step, {"a": np.arange(step * 1000)})
            warn()
            save.wait(60)
            warn()
            assert len(store.load("mute", step)["a"]) == step * 1000
except Exception as error:
    with open(sys.argv[2], "w") as words:
        words.write(repr(error))
    raise
"""


def test_what_libraries_write_to_streams_that_are_missing_reaches_no_daemon(tmp_path: Path) -> None:
    url = f"ckpt+local://{tmp_path / 'mute'}?targets=1"
    words = tmp_path / "words"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    try:
        command = [*closed, sys.executable, "-c", TRAINER, url, str(words)]
        ended = subprocess.run(command, timeout=120, check=False)
        assert (ended.returncode, words.exists()) == (0, False), words.read_text()
    finally:
        assert run("local", "stop", str(tmp_path / "mute")).code == 0
