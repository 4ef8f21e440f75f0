"""What docs/performance.md is measured with runs, and says so much."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ha import commit_times, takeover_times
from tests.landing import at_turn, in_turn
from tests.pages import ROOT

LINE = r"usual \d+\.\d+ s; (\w+): median \d+\.\d+ s, worst \d+\.\d+ s of 1; terms begun: \d+\n"
COMMITS = (
    r"SQLite \d+\.\d ms, etcd \d+\.\d ms, transaction \d+\.\d ms: -?\d+\.\d transactions more\n"
)


def said(module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, "--count", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("how", in_turn(["kill", "end", "stop", "member"], every=4))
def test_a_takeover_is_timed(how: str) -> None:
    out = said("tests.ha.takeover_times", how)
    found = re.fullmatch(LINE, out)
    assert found is not None, out
    assert found[1] == how


@pytest.mark.parametrize(
    ("how", "found", "text"),
    [
        ("kill", [0.3, 1.5, 3.0], ""),
        ("kill", [0.3, 1.6, 1.6], "kill: the median of 1.60 s misses its goal of 1.5 s"),
        ("kill", [0.3, 0.3, 3.1], "kill: the worst of 3.10 s misses its goal of 3 s"),
        ("end", [0.9, 0.9, 1.1], "end: the worst of 1.10 s misses its goal of 1 s"),
        ("stop", [3.5, 4.4], ""),
        ("member", [2.0, 2.1, 4.2], "member: the worst of 4.20 s misses its goal of 4 s"),
    ],
)
def test_a_goal_that_is_missed_is_named(how: str, found: list[float], text: str) -> None:
    assert takeover_times.missed(how, found) == text


def test_a_commit_on_etcd_has_three_transactions_more() -> None:
    assert commit_times.missed(0.010, 0.018, 0.003) == ""
    assert commit_times.missed(0.010, 0.020, 0.003).endswith("3 transactions more: 3.3")


@at_turn(0, every=2)
def test_commits_on_a_file_and_on_etcd_are_timed() -> None:
    out = said("tests.ha.commit_times")
    assert re.fullmatch(COMMITS, out), out
