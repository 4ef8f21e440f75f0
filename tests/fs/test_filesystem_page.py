"""What docs/filesystem.md shows is run, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "filesystem.md"
_BLOCK = re.compile(
    r"<!-- run: (\w+) -->\n```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", flags=re.DOTALL
)


def blocks(kind: str) -> list[tuple[str, str]]:
    """(code, what it prints) of the page's examples of that kind; at least one."""
    found = [
        (code, printed) for name, code, printed in _BLOCK.findall(PAGE.read_text()) if name == kind
    ]
    assert found, f"{PAGE} has no example of {kind}"
    return found


def run_blocks(kind: str, url: str) -> None:
    """Each example in a namespace of its own, where URL is the cluster's."""
    for code, printed in blocks(kind):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), {"URL": url})  # noqa: S102
        assert out.getvalue() == printed


def test_the_examples_of_the_page_do_what_it_says(url: str) -> None:
    run_blocks("core", url)
