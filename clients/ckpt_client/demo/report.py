"""What did the demo show? The checks that decide its exit code, and the figures of its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckpt.base.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """One thing that must hold."""

    name: str
    held: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured in the disturbed run."""

    stall_p50_s: float
    stall_max_s: float
    fault_in_max_s: float
    """Paid once by the first save of a launch, where `prepare` did not pay it."""
    commit_p50_s: float
    commit_max_s: float
    checkpoint_bytes: int
    gb_per_s: float
    """Median over committed saves: bytes without parity by time to commit."""
    saves_committed: int
    redundancy_before: str
    redundancy_after: str
    read_bytes: int
    rebuilt_bytes: int
    load_max_s: float
    resume_s: float
    """From the death of the last stager to the first new step on all ranks."""
    steps_repeated: int
    total_s: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The demo's result."""

    checks: tuple[DemoCheck, ...]
    figures: Figures | None

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)


def middle(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return median(values) if values else 0.0


def print_report(report: DemoReport, *, as_json: bool) -> None:
    """The table and the checks, or one JSON line."""
    if as_json:
        summary = {
            "message_type": "summary",
            "ok": report.held,
            "checks": [asdict(check) for check in report.checks],
            "figures": _document(report.figures) if report.figures is not None else None,
        }
        print(json.dumps(summary), flush=True)
        return
    console = Console(highlight=False)
    if report.figures is not None:
        console.print(_table(report.figures))
    unicode = console.encoding.lower().startswith("utf")
    for check in report.checks:
        mark = ("✓" if check.held else "✗") if unicode else ("ok" if check.held else "FAIL")
        line = Text()
        line.append(f"{mark} ", style="green" if check.held else "bold red")
        line.append(check.name)
        if check.detail:
            line.append(f": {check.detail}", style="dim")
        console.print(line, soft_wrap=True)


def _document(figures: Figures) -> dict[str, object]:
    named_before = {"bytes_read": figures.read_bytes, "bytes_rebuilt": figures.rebuilt_bytes}
    return {**asdict(figures), **named_before}  # As 0.1.0 calls them.


def _table(figures: Figures) -> Table:
    table = Table(show_header=False, title="ckpt demo", title_justify="left")
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="left")
    for name, value in _rows(figures):
        table.add_row(name, value)
    return table


def _rows(figures: Figures) -> list[tuple[str, str]]:
    read, rebuilt = format_bytes(figures.read_bytes), format_bytes(figures.rebuilt_bytes)
    return [
        (
            "stall of the training",
            f"p50 {format_seconds(figures.stall_p50_s)}, max {format_seconds(figures.stall_max_s)}",
        ),
        (
            "time to commit",
            f"p50 {format_seconds(figures.commit_p50_s)}, "
            f"max {format_seconds(figures.commit_max_s)}",
        ),
        (
            "committed",
            f"{figures.saves_committed} checkpoints of {format_bytes(figures.checkpoint_bytes)}, "
            f"{figures.gb_per_s:.2f} GB/s",
        ),
        ("redundancy reached", figures.redundancy_before),
        ("with two targets lost", figures.redundancy_after),
        ("rebuilt from parity", f"{rebuilt} ({read} read)"),
        (
            "time to resume",
            f"{figures.resume_s:.2f} s (loading {format_seconds(figures.load_max_s)}), "
            f"{figures.steps_repeated} steps repeated",
        ),
        ("whole demo", f"{figures.total_s:.1f} s"),
    ]
