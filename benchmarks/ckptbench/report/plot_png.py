"""The same drawing through matplotlib, when it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ckptbench.report.drawing import COLOURS, LANE_COLOUR, MEANINGS, Drawing

LANE_HEIGHT: Final = 0.85
"""Of the distance between two lanes; the fastest rate of all fills it."""
ROW_INCHES: Final = 0.28


def write_png(drawings: list[Drawing], path: Path) -> None:
    """One picture, a pair of axes for each checkpoint: ranks above, targets below."""
    heights = [
        max(1, len(rows)) * ROW_INCHES + 0.8
        for drawing in drawings
        for rows in (drawing.rows, drawing.lanes)
    ]
    figure, axes = pyplot.subplots(
        len(heights), 1, figsize=(10, sum(heights)), squeeze=False, layout="constrained",
        height_ratios=heights,
    )  # fmt: skip
    for number, drawing in enumerate(drawings):
        ranks, targets = axes[2 * number][0], axes[2 * number + 1][0]
        _draw_ranks(ranks, drawing)
        _draw_lanes(targets, drawing)
        targets.set_xlabel("ms")
        for each in (ranks, targets):
            each.set_xlim(0, drawing.width_ms)
            each.grid(axis="x", linewidth=0.4)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_ranks(axes: Axes, drawing: Drawing) -> None:
    axes.set_title("\n".join((drawing.title, *drawing.notes)), fontsize=9, loc="left")
    for place, row in enumerate(drawing.rows):
        for bar in row.bars:
            width = bar.end_ms - bar.begin_ms
            axes.barh(place, width, left=bar.begin_ms, color=COLOURS[bar.kind], height=0.8)
        text = f" {row.end_ms:.0f} ms, {row.ratio:.2f}x"
        axes.annotate(text, (1, place), xycoords=("axes fraction", "data"), va="center", fontsize=7)
    axes.set_yticks(range(len(drawing.rows)), [row.name for row in drawing.rows], fontsize=7)
    axes.set_ylim(len(drawing.rows) - 0.5, -0.5)
    kinds = dict.fromkeys(bar.kind for row in drawing.rows for bar in row.bars)
    keys = [Patch(color=COLOURS[kind], label=MEANINGS[kind]) for kind in kinds]
    axes.legend(handles=keys, fontsize=7, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_lanes(axes: Axes, drawing: Drawing) -> None:
    scale = LANE_HEIGHT / (drawing.peak or 1)
    for place, lane in enumerate(drawing.lanes):
        if lane.points:
            times, rates = zip(*lane.points, strict=True)
            tops = [place - rate * scale for rate in rates]
            axes.fill_between(times, place, tops, step="pre", color=LANE_COLOUR, linewidth=0)
        axes.vlines(lane.marks_ms, place - LANE_HEIGHT, place, color="#222", linewidth=1.2)
        struck = [at for at, _ in lane.strikes]
        axes.vlines(struck, place - LANE_HEIGHT, place, COLOURS["stall"], linestyles="dashed")
    axes.set_yticks(range(len(drawing.lanes)), [lane.name for lane in drawing.lanes], fontsize=7)
    axes.set_ylim(max(1, len(drawing.lanes)) - 0.7, -1)
    verb = "written" if drawing.direction == "write" else "read"
    keys: list[Artist] = [
        Patch(color=LANE_COLOUR, label=f"{verb}, all lanes to {drawing.peak:.0f} MB/s")
    ]
    if any(lane.marks_ms for lane in drawing.lanes):
        keys.append(Line2D([], [], color="#222", label="a column sealed"))
    axes.legend(handles=keys, fontsize=7, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
