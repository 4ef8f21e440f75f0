"""What docs/performance.md is measured with runs, and says so much."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT

LINE = r"usual \d+\.\d+ s; (\w+): median \d+\.\d+ s, worst \d+\.\d+ s of 1; terms begun: \d+\n"
COMMITS = (
    r"SQLite \d+\.\d ms, etcd \d+\.\d ms, transaction \d+\.\d ms: -?\d+\.\d transactions more\n"
)


def said(module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, "--count", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("how", ["kill", "end", "stop", "member"])
def test_a_takeover_is_timed(how: str) -> None:
    out = said("tests.ha.takeover_times", how)
    found = re.fullmatch(LINE, out)
    assert found is not None, out
    assert found[1] == how


def test_commits_on_a_file_and_on_etcd_are_timed() -> None:
    out = said("tests.ha.commit_times")
    assert re.fullmatch(COMMITS, out), out
