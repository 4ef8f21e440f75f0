"""Pages that a person writes around what the code says.

    <!-- generated: NAME -->      of this line and the next one a reader of the site sees nothing
    what the code says
    <!-- end -->

A page has a block for each thing that the code has, and no other: so that whoever adds one has to
write about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import TextWrapper
from typing import Final

LINE_LENGTH_MAX: Final = 100
_BLOCK: Final = re.compile(r"<!-- generated: (.+?) -->\n.*?<!-- end -->\n", re.DOTALL)
_POINT: Final = TextWrapper(
    LINE_LENGTH_MAX,
    initial_indent="- ",
    subsequent_indent="  ",
    break_long_words=False,
    break_on_hyphens=False,
)


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with each block as the code has it."""
    found = [match[1] for match in _BLOCK.finditer(page)]
    lacking = [name for name in blocks if found.count(name) != 1]
    assert not lacking, f"write a section around `<!-- generated: NAME -->` for {lacking}"
    unknown = [name for name in found if name not in blocks]
    assert not unknown, f"the code knows nothing of {unknown}: drop their sections"
    return _BLOCK.sub(lambda match: _block(match[1], blocks[match[1]]), page)


def _block(name: str, text: str) -> str:
    return f"<!-- generated: {name} -->\n{text}<!-- end -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown, with an empty line above and below."""
    rule = "|---" * len(head) + "|\n"
    return "\n" + _row(head) + rule + "".join(map(_row, rows)) + "\n"


def listing(points: Iterable[str]) -> str:
    """A list, a point each, with an empty line above and below."""
    return "\n" + "".join(_POINT.fill(text) + "\n" for text in points) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
