"""A stager holds what was saved: nothing that only speaks of it may end it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SAYS = """
from ckpt_client.stager.log import log
log("warning", "no session", why="gone")
log("warning", "no session", why="still gone")
"""


def test_a_line_that_finds_a_full_disk_is_lost_and_ends_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        assert (
            subprocess.run([sys.executable, "-c", SAYS], stderr=full, check=False).returncode == 0
        )


def test_a_line_says_what_and_why(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        subprocess.run([sys.executable, "-c", SAYS], stderr=file, check=True)
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["level"], first["text"], first["why"]) == ("warning", "no session", "gone")
    assert second["why"] == "still gone"
