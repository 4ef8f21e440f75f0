"""What docs/performance.md is measured with runs, and says so much."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ha.finding import etcd_path
from tests.pages import ROOT

LINE = r"usual \d+\.\d+ s; (\w+): median \d+\.\d+ s, worst \d+\.\d+ s of 1\n"


@pytest.mark.skipif(etcd_path() is None, reason="no etcd: skipped; make test-ha fetches it")
@pytest.mark.parametrize("how", ["kill", "end", "stop"])
def test_a_takeover_is_timed(how: str) -> None:
    command = [sys.executable, "-m", "tests.ha.takeover_times", "--count", "1", how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = re.fullmatch(LINE, done.stdout)
    assert found is not None, done.stdout
    assert found[1] == how
