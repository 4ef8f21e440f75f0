"""The byte tables of docs/format.md, as data: what the page says lies where, cut out of bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
BEHIND = "."
"""As an offset: behind the row before. As a size: up to the next row's offset, or the end."""
_NUMBERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
Value = int | bytes | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    offset: str
    size: str
    type: str
    """Empty where the table has no such column, or where it is another table."""
    field: str


def tables() -> dict[str, list[Row]]:
    """Every table that has offsets, by the section or the caption that it stands under."""
    found: dict[str, list[Row]] = {}
    caption, rows, section = "", None, ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            section = caption = line[3:].partition(" (")[0]
        elif (match := re.fullmatch(r"([A-Z][a-z ]+)(,.*)?:", line)) is not None:
            caption = f"{section}: {match[1].lower()}"
        elif not line.startswith("|"):
            rows = None
        elif cells[0].endswith("offset") and cells[1] == "size":
            part, comma, _ = cells[0].partition(", ")
            rows = found[f"{caption}: {part}" if comma else caption] = []
        elif rows is not None and set(cells[0]) != {"-"}:
            offset, size, *kind, field = cells
            rows.append(Row(offset, size, kind[0] if kind else "", field))
    return found


def cut(rows: list[Row], document: bytes, names: Mapping[str, int]) -> Iterator[tuple[Row, Value]]:
    """Each row with what lies there; fails unless the rows cover the document without a gap."""
    end = 0
    for number, row in enumerate(rows):
        start = _start(row, end, names)
        assert start == end, f"{row.field} at {start}, the row before ends at {end}"
        if row.size == BEHIND:
            behind = rows[number + 1 :]
            end = _start(behind[0], -1, names) if behind else len(document)
        else:
            end = start + _amount(row.size, names)
        assert start <= end <= len(document), f"{row.field} ends at {end} of {len(document)}"
        yield row, _value(row, document[start:end])
    assert end == len(document), f"the table ends at {end} of {len(document)}"


def _start(row: Row, end: int, names: Mapping[str, int]) -> int:
    """`.` and `+ what the row before has` lie behind it; any other offset is counted from 0."""
    return end if row.offset == BEHIND or row.offset[0] == "+" else _amount(row.offset, names)


def _amount(text: str, names: Mapping[str, int]) -> int:
    """Of a sum, a difference or a product of numbers and names."""
    if " - " in text:
        whole, _, part = text.partition(" - ")
        return _amount(whole, names) - _amount(part, names)
    if " + " in text:
        return sum(_amount(part, names) for part in text.split(" + "))
    factors = text.split(" · ")
    return prod(int(each) if each.isdigit() else names[each] for each in factors)


def _value(row: Row, data: bytes) -> Value:
    if row.type not in _NUMBERS:
        return data
    letter = _NUMBERS[row.type]
    numbers = struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)
    return numbers if not row.size.isdigit() else numbers[0]
