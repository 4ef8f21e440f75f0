"""Tables: columns as wide as needed, on a terminal that may be too narrow for them.

Then the first column becomes headings, where it names a group of rows; and as long as that does not
do, columns that can be spared are left out, and named below.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from ckpt.base.printable import printable


class Tone(Enum):
    """ANSI styles, by what they mean."""

    GOOD = "32"
    WARN = "33"
    BAD = "31"
    HEAD = "1"


class Toned(NamedTuple):
    """A cell of a table that is in colour where the terminal wants it."""

    text: str
    tone: Tone


Row = Sequence[str | Toned]
Cell = TypeVar("Cell")


class Narrowed(NamedTuple):
    """A table as it fits."""

    head: Sequence[str]
    rows: Sequence[Row]
    left_out: tuple[str, ...] = ()
    """Titles of columns for which there is no room."""
    headings: tuple[str, ...] = ()
    """What stands above each row; empty where it is as above the row before. None if there is room
    for the column that it was."""


def table_lines(
    head: Sequence[str],
    rows: Sequence[Row],
    indent: str = "",
    paint: Callable[[str, Tone], str] = lambda text, _tone: text,
) -> Iterator[str]:
    """The head, then the rows, without trailing spaces."""
    right = [title.startswith(">") for title in head]
    titles = [title.removeprefix(">") for title in head]
    texts = [[printable(text_of(each)) for each in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(titles, *texts, strict=True)]
    for row, shown in zip((titles, *rows), (titles, *texts), strict=True):
        cells = []
        for cell, text, width, flush_right in zip(row, shown, widths, right, strict=True):
            space = " " * (width - columns_of(text))
            painted = paint(text, cell.tone) if isinstance(cell, Toned) else text
            cells.append(space + painted if flush_right else painted + space)
        yield indent + "  ".join(cells).rstrip()


def narrowed(
    head: Sequence[str], rows: Sequence[Row], width: int, spare: Sequence[str], *, grouped: bool
) -> Narrowed:
    """The table, and what has to go so that its lines have no more columns than that. It stays
    wider where even that does not do.
    """
    headings: list[str] = []
    if grouped and _width_of(head, rows) > width:
        firsts = [text_of(row[0]) for row in rows]
        headings = [
            "" if one == before else one for before, one in zip(["", *firsts], firsts, strict=False)
        ]
        head, rows, width = head[1:], [row[1:] for row in rows], width - 2
    left_out: list[str] = []
    for title in spare:
        if _width_of(head, rows) <= width:
            break
        index = [each.removeprefix(">") for each in head].index(title)
        left_out.append(title)
        head, rows = _without(head, index), [_without(row, index) for row in rows]
    return Narrowed(head, rows, tuple(left_out), tuple(headings))


def parted(
    head: Sequence[str], rows: Sequence[Row], width: int
) -> Iterator[tuple[Sequence[str], Sequence[Row]]]:
    """The table as several, none wider than that, of which each begins with the first column. One
    whose first two columns alone are wider stays so.
    """
    begin, end = 1, len(head)
    while begin < len(head):
        kept = [0, *range(begin, end)]
        part = [head[at] for at in kept], [[row[at] for at in kept] for row in rows]
        if end - begin > 1 and _width_of(*part) > width:
            end -= 1
            continue
        yield part
        begin, end = end, len(head)


def _width_of(head: Sequence[str], rows: Sequence[Row]) -> int:
    return max(map(columns_of, table_lines(head, rows)))


def _without(cells: Sequence[Cell], index: int) -> Sequence[Cell]:
    return [*cells[:index], *cells[index + 1 :]]


def text_of(cell: str | Toned) -> str:
    """A cell without its colour."""
    return cell.text if isinstance(cell, Toned) else cell


def columns_of(text: str) -> int:
    """Columns that a terminal needs to show it: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
