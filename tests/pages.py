"""Examples of pages, as data: what a page shows in Python is run word for word, by kind.

A kind stands in a comment above the block, which readers do not see: `<!-- run: core -->`. What a
block prints may stand in a block below it.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
_EXAMPLE = re.compile(
    r"<!-- run: (\w+) -->\n```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", flags=re.DOTALL
)


def examples(page: Path, kind: str) -> list[tuple[str, str]]:
    """(code, what it prints) of the page's examples of that kind; at least one."""
    found = [
        (code, printed)
        for name, code, printed in _EXAMPLE.findall(page.read_text())
        if name == kind
    ]
    assert found, f"{page} has no example of {kind}"
    return found


def kinds(page: Path) -> set[str]:
    """Of all the page's blocks of Python; one without a kind is an error."""
    text = page.read_text()
    found = [name for name, _, _ in _EXAMPLE.findall(text)]
    assert len(found) == text.count("```python"), f"{page}: a block of Python without a kind"
    return set(found)


def sessions(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) of all lines behind a `$` in the text's consoles, in order; where
    nothing is shown the command may print what it wants.
    """
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    found = []
    for block in blocks:
        for turn in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = turn.partition("\n")
            found.append((command, printed))
    return found


def run_examples(page: Path, kind: str, names: Mapping[str, object]) -> list[dict[str, object]]:
    """Run each in a namespace of its own, which has the names; what it has afterwards.

    Where the page shows what an example prints, it prints that and nothing else.
    """
    text, spaces = page.read_text(), []
    for code, printed in examples(page, kind):
        space, out = dict(names), io.StringIO()
        above = "\n" * text[: text.index(code)].count("\n")  # A traceback names the page's lines.
        with contextlib.redirect_stdout(out):
            exec(compile(above + code, str(page), "exec"), space)  # noqa: S102
        assert printed in ("", out.getvalue())
        spaces.append(space)
    return spaces
