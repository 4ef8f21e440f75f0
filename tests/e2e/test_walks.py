"""A Ctrl-C, and a handler that saves, at lines all over a save and a load: the process goes on.

`python -m tests.e2e.walk` goes to every line by hand; here are some, other ones in each test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

CLUSTER_OPTIONS = "targets=3&code=2+1"
ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 120.0
TO_THE_STAGER = ("staging.py", "stager_link.py")


def walk(
    cluster: Cluster, kind: str, how: str, first: int, stride: int, *files: str
) -> dict[str, int]:
    line = [sys.executable, "-m", "tests.e2e.walk", cluster.url, kind, how, str(first), str(stride)]
    done = subprocess.run(
        [*line, *files], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    *wrong, told = done.stdout.splitlines()
    assert not wrong, done.stdout
    counts = [int(number) for number in re.findall(r"\d+", told)]
    return dict(zip(("moments", "bad", "inner", "refused", "logged"), counts, strict=True))


def test_a_ctrl_c_on_a_saves_way_to_its_stager_loses_nothing(cluster: Cluster) -> None:
    assert walk(cluster, "save", "ctrl-c", 14, 26, *TO_THE_STAGER)["moments"] > 10


@pytest.mark.parametrize(("kind", "first", "stride"), [("overlap", 23, 203), ("load", 7, 4001)])
def test_after_a_ctrl_c_at_any_line_the_process_saves_and_loads_as_before(
    cluster: Cluster, kind: str, first: int, stride: int
) -> None:
    assert walk(cluster, kind, "ctrl-c", first, stride)["moments"] > 1


def test_a_handler_that_saves_inside_a_save_is_refused_in_words_and_nothing_hangs(
    cluster: Cluster,
) -> None:
    found = walk(cluster, "save", "handler", 27, 46, *TO_THE_STAGER)
    assert found["inner"] == found["refused"] == found["logged"] == found["moments"] > 5
