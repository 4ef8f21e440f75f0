"""`--plot FILE.svg|FILE.html|FILE.png`: the burst, seen. HTML is the same SVG in a page."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.extras import NotInstalled, install_command
from ckptbench.report.drawing import Drawing, draw
from ckptbench.report.plot_svg import svg, svg_file
from ckptbench.results import RunResult

SLOW_S = 2.0
"""What a picture waits for is said after so long."""
_STYLE: Final = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
svg{display:block;margin-top:16px;max-width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#010409}}
"""


def write_plot(found: RunResult, path: Path) -> None:
    """By the name's end. Raises Refused for another one, or for PNG without matplotlib."""
    check_plot(path)
    drawings = [drawing for job in found.jobs for drawing in draw(job)]
    with _said_when_slow(f"drawing {path}, {len(drawings)} checkpoints"):
        match path.suffix:
            case ".svg":
                path.write_text(svg_file(drawings))
            case ".html":
                path.write_text(page(drawings))
            case _:
                _write_png(drawings, path)


def check_plot(path: Path) -> None:
    """Before anything is measured. Raises Refused."""
    if path.suffix not in (".svg", ".html", ".png"):
        raise Refused(f"--plot={path}: the name ends in none of .svg, .html and .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise NotInstalled(
            "--plot to PNG needs the package matplotlib, which is not installed",
            hint=f"{install_command('bench')}, or plot .svg or .html",
        )
    if not path.absolute().parent.is_dir():
        raise Refused(f"--plot={path}: there is no such directory")


def _write_png(drawings: list[Drawing], path: Path) -> None:
    with _said_when_slow("loading matplotlib, which lists all fonts at its first start on a host"):
        from ckptbench.report.plot_png import write_png
    write_png(drawings, path)


@contextmanager
def _said_when_slow(what: str) -> Iterator[None]:
    """A line that names it, once it lasts."""
    timer = threading.Timer(SLOW_S, lambda: print(f"ckptbench: {what} …", file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def page(drawings: list[Drawing]) -> str:
    """One HTML document that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>ckptbench</title>'
        f"<style>{_STYLE}</style><body><h1>ckptbench</h1>{''.join(map(svg, drawings))}"
        "</body></html>\n"
    )
