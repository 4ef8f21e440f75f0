"""The picture of a burst, by the real matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ckptbench.report.drawing import COLOURS, LANE_COLOUR
from ckptbench.report.plot import write_plot
from tests.bench import made


def test_a_png_shows_stalls_waits_and_what_targets_wrote(tmp_path: Path) -> None:
    picture = tmp_path / "burst.png"
    write_plot(made.run(made.job(made.save(0), made.save(1, slow_ms=90))), picture)
    pixels = imread(picture)[:, :, :3]
    for colour in (COLOURS["stall"], COLOURS["durable"], LANE_COLOUR):
        close = np.abs(pixels - np.array(to_rgb(colour))).max(axis=2) < 0.02
        assert close.sum() > 500, colour
