"""`--plot FILE.svg|FILE.html|FILE.png`: the burst, seen. HTML is the same SVG in a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckptbench.report.drawing import Drawing, draw
from ckptbench.report.plot_svg import svg, svg_file
from ckptbench.results import RunResult

_STYLE: Final = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
svg{display:block;margin-top:16px;max-width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#010409}}
"""


def write_plot(found: RunResult, path: Path) -> None:
    """By the name's end. Raises Refused for another one, or for PNG without matplotlib."""
    check_plot(path)
    drawings = [drawing for job in found.jobs for drawing in draw(job)]
    match path.suffix:
        case ".svg":
            path.write_text(svg_file(drawings))
        case ".html":
            path.write_text(page(drawings))
        case _:
            from ckptbench.report.plot_png import write_png

            write_png(drawings, path)


def check_plot(path: Path) -> None:
    """Before anything is measured. Raises Refused."""
    if path.suffix not in (".svg", ".html", ".png"):
        raise Refused(f"--plot={path}: the name ends in none of .svg, .html and .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise Refused(
            "--plot to PNG needs matplotlib", hint="pip install matplotlib, or plot .svg or .html"
        )
    if not path.absolute().parent.is_dir():
        raise Refused(f"--plot={path}: there is no such directory")


def page(drawings: list[Drawing]) -> str:
    """One HTML document that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>ckptbench</title>'
        f"<style>{_STYLE}</style><body><h1>ckptbench</h1>{''.join(map(svg, drawings))}"
        "</body></html>\n"
    )
