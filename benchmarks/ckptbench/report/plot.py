"""`--plot FILE.html|FILE.png`: the burst, seen. HTML is one file of SVG without any library."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.printable import printable
from ckptbench.report.drawing import COLOURS, LANE_COLOUR, MEANINGS, Drawing, Lane, Row, draw
from ckptbench.results import RunResult

WIDTH: Final = 900
LEFT: Final = 90
RIGHT: Final = 130
ROW: Final = 16
LANE: Final = 30
TOP: Final = 34
TICKS: Final = 8
SLOW_RATIO: Final = 1.2
"""From here on a rank's time is printed in the colour of a stall."""
_STYLE: Final = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#222;background:#fff;max-width:960px}
h2{font-size:15px;margin:28px 0 2px}p{margin:2px 0;color:#555}svg{display:block;margin-top:6px}
text{font:11px system-ui,sans-serif;fill:#333}.slow{fill:#d1495b;font-weight:600}
.grid{stroke:#ddd;stroke-width:1}.rate{stroke:#b5812f;stroke-width:1}
.seal{stroke:#222;stroke-width:1.5}
.key{display:inline-block;width:12px;height:12px;margin:0 4px 0 14px}
"""


def write_plot(found: RunResult, path: Path) -> None:
    """By the name's end. Raises Refused for another one, or for PNG without matplotlib."""
    check_plot(path)
    drawings = [drawing for job in found.jobs for drawing in draw(job)]
    if path.suffix == ".html":
        path.write_text(page(drawings))
    else:
        from ckptbench.report.plot_png import write_png

        write_png(drawings, path)


def check_plot(path: Path) -> None:
    """Before anything is measured. Raises Refused."""
    if path.suffix not in (".html", ".png"):
        raise Refused(f"--plot={path}: the name ends in neither .html nor .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise Refused(
            "--plot to PNG needs matplotlib", hint="pip install matplotlib, or plot .html"
        )
    if not path.absolute().parent.is_dir():
        raise Refused(f"--plot={path}: there is no such directory")


def page(drawings: list[Drawing]) -> str:
    """One HTML document that needs nothing else."""
    parts = [
        f"<h2>{html.escape(printable(one.title))}</h2>{_legend(one)}{svg(one)}" for one in drawings
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>ckptbench</title>'
        f"<style>{_STYLE}</style><body><h1>ckptbench</h1>{''.join(parts)}</body></html>\n"
    )


def svg(drawing: Drawing) -> str:
    """Ranks above, targets below, one axis of time."""
    height = TOP + len(drawing.rows) * ROW + len(drawing.lanes) * LANE + 24
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        *_grid(drawing, height),
    ]
    y = TOP
    for row in drawing.rows:
        parts += _row(drawing, row, y)
        y += ROW
    y += 12
    for lane in drawing.lanes:
        parts += _lane(drawing, lane, y)
        y += LANE
    return "".join([*parts, "</svg>"])


def _x(drawing: Drawing, ms: float) -> float:
    return LEFT + ms / drawing.width_ms * (WIDTH - LEFT - RIGHT)


def _legend(drawing: Drawing) -> str:
    kinds = dict.fromkeys(bar.kind for row in drawing.rows for bar in row.bars)
    keys = "".join(
        f'<span class="key" style="background:{COLOURS[kind]}"></span>{MEANINGS[kind]}'
        for kind in kinds
    )
    if drawing.lanes:
        verb = "written" if drawing.direction == "write" else "read"
        keys += f'<span class="key" style="background:{LANE_COLOUR}"></span>'
        keys += f"bytes {verb}, all lanes to {drawing.peak:.0f} MB/s"
    if any(lane.marks_ms for lane in drawing.lanes):
        keys += '<span class="key" style="background:#222;width:2px"></span>a column sealed'
    notes = "".join(f"<p>{html.escape(printable(note))}</p>" for note in drawing.notes)
    return f"{notes}<p>{keys}</p>"


def _grid(drawing: Drawing, height: int) -> Iterator[str]:
    step = tick_ms(drawing.width_ms)
    at = 0.0
    while at <= drawing.width_ms:
        x = _x(drawing, at)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 8}"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{at:g} ms</text>'
        at += step


def _row(drawing: Drawing, row: Row, y: int) -> Iterator[str]:
    yield f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{row.name}</text>'
    for bar in row.bars:
        x, end = _x(drawing, bar.begin_ms), _x(drawing, bar.end_ms)
        yield (
            f'<rect x="{x:.1f}" y="{y + 2}" width="{max(0.5, end - x):.1f}" height="{ROW - 4}" '
            f'fill="{COLOURS[bar.kind]}"><title>{row.name} {bar.kind} {bar.begin_ms:.1f} to '
            f"{bar.end_ms:.1f} ms</title></rect>"
        )
    slow = ' class="slow"' if row.ratio >= SLOW_RATIO else ""
    told = f"{row.end_ms:.0f} ms, {row.ratio:.2f}x"
    yield f'<text x="{WIDTH - RIGHT + 8}" y="{y + 11}"{slow}>{told}</text>'


def _lane(drawing: Drawing, lane: Lane, y: int) -> Iterator[str]:
    bottom, high = y + LANE - 4, LANE - 8
    yield f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{lane.name}</text>'
    if lane.points and drawing.peak:
        points, before = [f"{LEFT},{bottom}"], 0.0
        for at, rate in lane.points:
            top = bottom - rate / drawing.peak * high
            inside = min(at, drawing.width_ms)
            points.append(
                f"{_x(drawing, before):.1f},{top:.1f} {_x(drawing, inside):.1f},{top:.1f}"
            )
            before = inside
        points.append(f"{_x(drawing, before):.1f},{bottom}")
        yield f'<polygon class="rate" fill="{LANE_COLOUR}" points="{" ".join(points)}"/>'
    for mark in lane.marks_ms:
        x = _x(drawing, mark)
        yield f'<line class="seal" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{bottom}"/>'
    if lane.marks_ms:
        told = f"last sealed {max(lane.marks_ms):.0f} ms"
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{y + 18}">{told}</text>'


def tick_ms(width_ms: float) -> float:
    """A round distance of at most TICKS ticks."""
    step = 10.0 ** (len(str(int(max(1.0, width_ms)))) - 2)
    while width_ms / step > TICKS:
        step *= 2 if str(step).lstrip("0.")[0] in "15" else 2.5
    return step
