"""The trace of docs/contributing.md is the one that its command prints."""

from __future__ import annotations

import re

from tests.pages import ROOT
from tests.sim.trace import lines, undisturbed

PAGE = ROOT / "docs" / "contributing.md"


def test_the_page_shows_the_trace_of_today() -> None:
    shown = re.search(
        r"<!-- trace: (\d+) (\w+) -->\n```\n(.*?)```", PAGE.read_text(), flags=re.DOTALL
    )
    assert shown is not None
    assert shown[3].splitlines() == list(lines(undisturbed(int(shown[1]), shown[2])))
