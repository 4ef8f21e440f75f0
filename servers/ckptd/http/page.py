"""What does a person see in a browser? One page, without scripts or outside parts: health and what
to do about it, devices and how full they are, runs, saves under way, object stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Final

from ckpt.base.printable import printable
from ckpt.base.units import format_bytes

Json = Mapping[str, object]
Cell = Callable[[Json], str]
"""The HTML of one cell of a row."""

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1b7f3b; --warn: #a15c00; --bad: #b00020; }
@media (prefers-color-scheme: dark) { :root { --good: #5fd38a; --warn: #f0b04f; --bad: #ff6b7d; } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; }
section { overflow-x: auto; }
table { border-collapse: collapse; margin: 0 0 2rem; white-space: nowrap; }
th, td { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
.words { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { margin: 1rem; }
  .stacked :is(table, tbody, tr, td) { display: block; border: 0; padding: 0; min-width: 0; }
  .stacked tr { padding: .6rem 0; border-bottom: 1px solid var(--line); }
  .stacked tr:has(th) { display: none; }
}
.number { text-align: right; font-variant-numeric: tabular-nums; }
.live, .ok { color: var(--good); } .warning { color: var(--warn); }
.down, .error { color: var(--bad); }
.bar { display: inline-block; width: 8rem; height: .6rem; background: var(--line); }
.bar i { display: block; height: 100%; background: var(--good); }
.bar i.warning { background: var(--warn); } .bar i.error { background: var(--bad); }
code { user-select: all; }
"""
HEALTH: Final = {"HEALTH_OK": "ok", "HEALTH_WARN": "warning", "HEALTH_ERR": "error"}
NEAR, FULL = 0.85, 0.95
"""A bar that is fuller than this has another colour. Checks use the thresholds that are in
force.
"""


def render_page(status: Json, runs: object) -> str:
    """HTML of what /v1/status and /v1/runs give; what one of them lacks is left out."""
    health = str(status.get("health", ""))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<meta name=viewport content='width=device-width'><title>ckpt: {_text(health)}</title>",
        f"<style>{_STYLE}</style><h1>ckpt <span class={HEALTH.get(health, 'warning')}>"
        f"{_text(health)}</span></h1>",
        f"<p>cluster {_text(status.get('cluster'))}, code {_text(status.get('code'))}, "
        f"term {_text(status.get('term'))}",
        _table("Checks", _rows(status.get("checks")), _CHECK),
        _table("Targets", _rows(status.get("targets")), _TARGET),
        _table("Runs", _rows(runs), _RUN),
        _table("Saves under way", _rows(status.get("attempts")), _ATTEMPT),
        _table("Object stores", _rows(status.get("stores")), _STORE),
    ]
    return "".join(parts)


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _table(title: str, rows: Iterable[Json], columns: Mapping[str, Cell]) -> str:
    """Nothing of it when there is no row."""
    shown = [[cell(row) for cell in columns.values()] for row in rows]
    if not shown:
        return f"<h2>{title}</h2><p>none"
    body = "".join("<tr>" + "".join(f"<td{cell}" for cell in cells) for cells in shown)
    # A heading stands as what is below it does.
    stands = [" class=number" if cell.startswith(" class=number") else "" for cell in shown[0]]
    head = "".join(
        f"<th scope=col{how}>{escape(name)}" for how, name in zip(stands, columns, strict=True)
    )
    # What is to be done is read on a telephone; its columns then stand one below the other. The
    # rest scrolls by itself, by the arrow keys as well.
    how = " class=stacked" if columns is _CHECK else ""
    section = f"<section{how} tabindex=0 role=region aria-label='{title}'>"
    return f"<h2>{title}</h2>{section}<table><tr>{head}{body}</table></section>"


# --------------------------------------------------------------------------- cells


def _text(value: object) -> str:
    return "&ndash;" if value is None or value == "" else escape(printable(str(value)))


def _plain(name: str) -> Cell:
    return lambda row: f">{_text(row.get(name))}"


def _words(name: str) -> Cell:
    return lambda row: f" class=words>{_text(row.get(name))}"


def _number(name: str) -> Cell:
    return lambda row: f" class=number>{_text(row.get(name))}"


def _bytes(name: str) -> Cell:
    return lambda row: f" class=number>{_text(format_bytes(_float(row.get(name))))}"


def _time(name: str) -> Cell:
    return lambda row: f" class=number>{_utc(_float(row.get(name)))}"


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _utc(seconds: float) -> str:
    if not seconds:
        return "&ndash;"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _toned(name: str) -> Cell:
    """Its word is also its colour's name."""
    return lambda row: f' class="{_text(row.get(name))}">{_text(row.get(name))}'


def _code(name: str) -> Cell:
    def cell(row: Json) -> str:
        value = _text(row.get(name))
        return f" class=words><code>{value}</code>" if row.get(name) else f" class=words>{value}"

    return cell


def _fill(row: Json) -> str:
    """How much of the device is taken, by whomever."""
    total = _float(row.get("bytes_total"))
    if not total:
        return ">&ndash;"  # It has not been here since this coordinator began.
    taken = min(1.0, max(0.0, 1.0 - _float(row.get("bytes_free")) / total))
    tone = "error" if taken >= FULL else "warning" if taken >= NEAR else "ok"
    percent = f"{100 * taken:.0f}%"
    return f'><span class=bar><i class={tone} style="width:{percent}"></i></span> {percent}'


def _latest(row: Json) -> str:
    step = row.get("latest")
    return f" class=number>{'none committed' if step is None else _text(step)}"


def _device(row: Json) -> str:
    failing = bool(row.get("device_failing"))
    return f"{' class=error' if failing else ''}>{_text(row.get('device_error'))}"


_CHECK: Final[Mapping[str, Cell]] = {
    "check": _plain("name"), "severity": _toned("severity"), "what is wrong": _words("message"),
    "what to do": _words("remedy"), "command": _code("command"),
}  # fmt: skip
_TARGET: Final[Mapping[str, Cell]] = {
    "target": _plain("id"), "state": _toned("state"), "stands": _plain("standing"),
    "device taken": _fill,
    "by columns": _bytes("bytes_used"), "free": _bytes("bytes_free"),
    "columns": _number("columns"), "address": _plain("address"), "domain": _plain("domain"),
    "directory": _plain("directory"), "last error of its device": _device,
}  # fmt: skip
_RUN: Final[Mapping[str, Cell]] = {
    "run": _plain("run"), "newest step": _latest, "steps": _number("steps"),
    "size": _bytes("bytes"), "committed": _time("committed_at_s"),
}  # fmt: skip
_ATTEMPT: Final[Mapping[str, Cell]] = {
    "run": _plain("run"), "step": _number("step"), "state": _plain("state"),
    "ranks staged": _number("ranks_handed_over"), "certified": _number("ranks_certified"),
    "of": _number("world_size"), "size": _bytes("bytes"),
}  # fmt: skip
_STORE: Final[Mapping[str, Cell]] = {
    "store": _plain("url"), "state": _plain("state"), "drained": _number("drained"),
    "last": _plain("last"), "waiting": _number("backlog"), "bytes": _bytes("backlog_bytes"),
    "oldest of these": _plain("oldest_undrained"), "committed": _time("oldest_undrained_at_s"),
}  # fmt: skip
