"""The same drawing through matplotlib, when it is installed."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from ckptbench.report.drawing import COLOURS, Drawing


def write_png(drawings: list[Drawing], path: Path) -> None:
    """One picture, a pair of axes for each checkpoint: ranks, then targets."""
    figure, axes = pyplot.subplots(
        2 * len(drawings), 1, figsize=(10, 5 * len(drawings)), squeeze=False, layout="constrained"
    )
    for number, drawing in enumerate(drawings):
        ranks, targets = axes[2 * number][0], axes[2 * number + 1][0]
        ranks.set_title(drawing.title, fontsize=9)
        for place, row in enumerate(drawing.rows):
            for bar in row.bars:
                width = bar.end_ms - bar.begin_ms
                ranks.barh(place, width, left=bar.begin_ms, color=COLOURS[bar.kind], height=0.8)
        ranks.set_yticks(range(len(drawing.rows)), [row.name for row in drawing.rows], fontsize=7)
        ranks.invert_yaxis()
        ranks.set_xlim(0, drawing.width_ms)
        for lane in drawing.lanes:
            if lane.points:
                times, values = zip(*lane.points, strict=True)
                targets.step(times, values, label=lane.name, linewidth=1)
        targets.set_xlim(0, drawing.width_ms)
        targets.set_xlabel("ms")
        targets.set_ylabel("MB/s")
        if drawing.lanes:
            targets.legend(fontsize=7, ncols=4)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
