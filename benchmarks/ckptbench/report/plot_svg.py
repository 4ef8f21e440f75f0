"""The same drawing as SVG: one file without a script or a font of its own, light or dark as the
reader's system is.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Final

from ckpt.base.printable import printable
from ckptbench.report.drawing import COLOURS, LANE_COLOUR, MEANINGS, Bar, Drawing, Lane, Row

WIDTH: Final = 800
LEFT: Final = 76
RIGHT: Final = 190
"""Two columns of figures."""
STALL_AT: Final = 106
"""From the right edge: where the first column of figures ends. The second ends at EDGE."""
EDGE: Final = 20
HEAD: Final = 92
"""Title, notes and legend, with one line of notes."""
NOTE: Final = 18
ROW: Final = 20
LANE: Final = 34
FOOT: Final = 46
TICKS: Final = 8
SLOW_RATIO: Final = 1.2
"""From here on a rank's time is printed in the colour of a stall."""
STRUCK: Final = {
    "kill": "killed", "stop": "stopped", "slow": "slowed", "device": "disk slowed",
    "netem": "disturbed",
}  # fmt: skip
CHARACTER: Final = 6.0
"""The width of one in a legend, about."""
_BARS = "".join(f".{kind}{{fill:{colour}}}" for kind, colour in COLOURS.items())
STYLE: Final = f"""
.panel{{fill:#fff;stroke:#d8dee4}}
text{{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}}
.title{{font-size:17px;font-weight:600}}.head{{font-weight:600}}.note,.tick{{fill:#656d76}}
.grid{{stroke:#e4e8ec}}.base{{stroke:#c4ccd4}}.seal{{stroke:#1f2328;stroke-width:2}}
{_BARS}.rate{{fill:{LANE_COLOUR}}}
.strike{{stroke:#d1495b;stroke-width:2;stroke-dasharray:4 3}}.hot{{fill:#c2334a;font-weight:600}}
@media (prefers-color-scheme:dark){{
.panel{{fill:#0d1117;stroke:#30363d}}text{{fill:#e6edf3}}.note,.tick{{fill:#9198a1}}
.grid{{stroke:#21262d}}.base{{stroke:#444c56}}.seal{{stroke:#f0f6fc}}
.stall{{fill:#f2647a}}.durable{{fill:#3f6f9f}}.loaded,.drained,.committed{{fill:#4c8a68}}
.rate{{fill:#b98a3e}}.strike{{stroke:#f2647a}}.hot{{fill:#ff7b8f}}
}}
"""


def svg_file(drawings: Sequence[Drawing]) -> str:
    """One picture of all of them, one below the other."""
    parts, y = [], 0
    for drawing in drawings:
        parts.append(f'<g transform="translate(0 {y})">{_inside(drawing)}</g>')
        y += height_of(drawing)
    title = html.escape("; ".join(printable(one.title) for one in drawings))
    return _framed("".join(parts), max(1, y), title)


def svg(drawing: Drawing) -> str:
    """Ranks above, targets below, one axis of time."""
    return svg_file([drawing])


def height_of(drawing: Drawing) -> int:
    """Pixels."""
    return _axis_y(drawing) + FOOT


def _framed(inside: str, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{title}"><style>{STYLE}</style>{inside}</svg>\n'
    )


def _inside(drawing: Drawing) -> str:
    height = height_of(drawing)
    parts = [
        f'<rect class="panel" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *_heading(drawing),
        *_axis(drawing),
        *_columns(drawing),
    ]
    y = _rows_y(drawing)
    for row in drawing.rows:
        parts += _row(drawing, row, y)
        y += ROW
    y = _lanes_y(drawing)
    for lane in drawing.lanes:
        parts += _lane(drawing, lane, y)
        y += LANE
    return "\n".join(parts)


# --------------------------------------------------------------------------- where things stand


def _rows_y(drawing: Drawing) -> int:
    return HEAD + NOTE * max(0, len(drawing.notes) - 1) + 22


def _lanes_y(drawing: Drawing) -> int:
    return _rows_y(drawing) + ROW * len(drawing.rows) + (32 if drawing.lanes else 0)


def _axis_y(drawing: Drawing) -> int:
    return _lanes_y(drawing) + LANE * len(drawing.lanes) + 6


def _x(drawing: Drawing, ms: float) -> float:
    inside = min(max(0.0, ms), drawing.width_ms)
    return LEFT + inside / drawing.width_ms * (WIDTH - LEFT - RIGHT)


# --------------------------------------------------------------------------- words


def _heading(drawing: Drawing) -> Iterator[str]:
    y = 32
    yield _text(EDGE, y, printable(drawing.title), "title")
    for note in drawing.notes:
        y += NOTE + 2
        yield _text(EDGE, y, printable(note), "note")
    y, x = y + 24, float(EDGE)
    for kind, meaning in _legend(drawing):
        if kind == "seal":
            yield f'<line class="seal" x1="{x + 6:.0f}" x2="{x + 6:.0f}" y1="{y - 10}" y2="{y}"/>'
        else:
            yield f'<rect class="{kind}" x="{x:.0f}" y="{y - 10}" width="12" height="10" rx="2"/>'
        yield _text(x + 18, y, meaning)
        x += 18 + CHARACTER * len(meaning) + 22


def _legend(drawing: Drawing) -> Iterator[tuple[str, str]]:
    for kind in dict.fromkeys(bar.kind for row in drawing.rows for bar in row.bars):
        yield kind, MEANINGS[kind]
    if drawing.lanes:
        yield "rate", f"bytes {_verb(drawing)} by each"
    if any(lane.marks_ms for lane in drawing.lanes):
        yield "seal", "a column is synced and sealed"


def _columns(drawing: Drawing) -> Iterator[str]:
    """What the rows are, and what the figures at their right say."""
    y = _rows_y(drawing) - 8
    yield _text(LEFT - 10, y, "ranks", "head", "end")
    if any(bar.kind == "stall" for row in drawing.rows for bar in row.bars):
        yield _text(WIDTH - STALL_AT, y, "stall", "note", "end")
    yield _text(WIDTH - EDGE, y, drawing.end_word, "note", "end")
    if drawing.lanes:
        y = _lanes_y(drawing) - 6
        yield _text(LEFT - 10, y, "targets", "head", "end")
        rate = f"full height: {drawing.peak:,.0f} MB/s {_verb(drawing)}"
        yield _text(LEFT, y, rate, "note")
    if any(lane.marks_ms for lane in drawing.lanes):
        yield _text(WIDTH - EDGE, y, "last sealed", "note", "end")


def _axis(drawing: Drawing) -> Iterator[str]:
    top, bottom = _rows_y(drawing) - 2, _axis_y(drawing)
    step = tick_ms(drawing.width_ms)
    for number in range(int(drawing.width_ms / step) + 1):
        x = _x(drawing, number * step)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        yield _text(x, bottom + 16, f"{number * step:,g}", "tick", "middle")
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(middle, bottom + 34, "milliseconds since the first rank began", "note", "middle")


# --------------------------------------------------------------------------- ranks and targets


def _row(drawing: Drawing, row: Row, y: int) -> Iterator[str]:
    yield _text(LEFT - 10, y + 14, row.name, anchor="end")
    for bar in row.bars:
        x, end = _x(drawing, bar.begin_ms), _x(drawing, bar.end_ms)
        yield (
            f'<rect class="{bar.kind}" x="{x:.1f}" y="{y + 3}" width="{max(0.5, end - x):.1f}" '
            f'height="{ROW - 6}"><title>{row.name} {_text_of(bar)}</title></rect>'
        )
        if bar.kind == "stall":
            stall = f"{bar.end_ms - bar.begin_ms:,.0f} ms"
            yield _text(WIDTH - STALL_AT, y + 14, stall, "hot", "end")
    slow = row.ratio >= SLOW_RATIO
    ratio = f" ({row.ratio:.1f}x)" if slow else ""
    end_text = f"{row.end_ms:,.0f} ms{ratio}"
    yield _text(WIDTH - EDGE, y + 14, end_text, "hot" if slow else "", "end")


def _text_of(bar: Bar) -> str:
    return f"{bar.kind} {bar.begin_ms:.1f} to {bar.end_ms:.1f} ms"


def _lane(drawing: Drawing, lane: Lane, y: int) -> Iterator[str]:
    bottom, high = y + LANE - 4, LANE - 8
    yield _text(LEFT - 10, y + 24, lane.name, anchor="end")
    if lane.points and drawing.peak:
        steps = [f"M{LEFT} {bottom}"]
        for at, rate in lane.points:
            steps.append(f"V{bottom - rate / drawing.peak * high:.1f}H{_x(drawing, at):.1f}")
        yield f'<path class="rate" d="{"".join(steps)}V{bottom}Z"/>'
    yield f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for mark in lane.marks_ms:
        x = _x(drawing, mark)
        yield f'<line class="seal" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 10}" y2="{bottom}"/>'
    if lane.marks_ms:
        yield _text(WIDTH - EDGE, y + 24, f"{max(lane.marks_ms):,.0f} ms", anchor="end")
    for at, kind in lane.strikes:
        x = _x(drawing, at)
        yield f'<line class="strike" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{bottom}"/>'
        yield _text(x + 6, y + 18, f"{STRUCK[kind]} at {at:,.0f} ms", "hot")


def _text(x: float, y: int, words: str, kind: str = "", anchor: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    put = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{named} x="{x:.1f}" y="{y}"{put}>{html.escape(words)}</text>'


def _verb(drawing: Drawing) -> str:
    return "written" if drawing.direction == "write" else "read"


def tick_ms(width_ms: float) -> float:
    """A round distance of at most TICKS ticks."""
    step = 10.0 ** (len(str(int(max(1.0, width_ms)))) - 2)
    while width_ms / step > TICKS:
        step *= 2 if str(step).lstrip("0.")[0] in "15" else 2.5
    return step
