"""The table of `ckptbench rules`: a line for each rule, which says how to run it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptbench.figures import JudgedRule


def rule_lines(rules: Sequence[JudgedRule]) -> Iterator[str]:
    """Nothing where there are no rules."""
    if not rules:
        return
    rows = [("", "rule", "found", "goal", "ranks x bytes", "alone: ckptbench rules")]
    rows += [_row(one) for one in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _row(one: JudgedRule) -> tuple[str, str, str, str, str, str]:
    sign = ">=" if one.at_least else "<="
    alone = " ".join(f"--section={name}" for name in one.sections)
    return (_word(one), one.name, _found(one), f"{sign} {one.limit:g}", one.state, alone)


def _word(one: JudgedRule) -> str:
    if one.skipped:
        return "skipped"
    if one.found is None:
        return "no figure"
    return "met" if one.met else "MISSED"


def _found(one: JudgedRule) -> str:
    if one.skipped or one.found is None:
        return one.skipped
    found = one.found
    spread = "" if found.count == 1 else f" [{found.low:.3g} - {found.high:.3g}, {found.count}]"
    return f"{found.median:.3g}{spread}"
