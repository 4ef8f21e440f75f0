"""What does a person see in a browser? One page, without scripts or outside parts."""

from __future__ import annotations

from html import escape
from typing import Final

from ckpt.base.printable import printable
from ckpt.base.units import format_bytes

Json = dict[str, object]

_STYLE: Final = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; }
table { border-collapse: collapse; margin: 0 0 2rem; }
th, td { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.down { color: #b00020; } .live { color: #1b7f3b; }
"""


def render_page(status: Json, runs: object) -> str:
    """HTML of what /v1/status and /v1/runs give; unknown fields are shown as they are."""
    targets = _rows(status.get("targets"))
    facts = {key: value for key, value in status.items() if not isinstance(value, list | dict)}
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>ckpt</title>",
        f"<style>{_STYLE}</style><h1>ckpt</h1>",
        _facts(facts),
        "<h2>Checks</h2>",
        _table(_rows(status.get("checks"))),
        "<h2>Targets</h2>",
        _table(targets),
        "<h2>Runs</h2>",
        _table(_rows(runs)),
    ]
    return "".join(parts)


def _rows(value: object) -> list[Json]:
    """The rows of a list, or of the first list inside an object."""
    if isinstance(value, dict):
        value = next((inner for inner in value.values() if isinstance(inner, list)), [])
    if not isinstance(value, list):
        return []
    return [row if isinstance(row, dict) else {"name": row} for row in value]


def _facts(facts: Json) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(name))}<td>{_cell(name, value)}" for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def _table(rows: list[Json]) -> str:
    if not rows:
        return "<p>none</p>"
    names = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    head = "".join(f"<th>{escape(name)}" for name in names)
    body = "".join("<tr>" + "".join(_data(name, row.get(name)) for name in names) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _data(name: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<td class=number>{_cell(name, value)}"
    if value in ("live", "down"):
        return f"<td class={value}>{value}"
    return f"<td>{_cell(name, value)}"


def _cell(name: str, value: object) -> str:
    if value is None:
        return "&ndash;"
    if "bytes" in name and isinstance(value, int | float):
        return escape(format_bytes(value))
    return escape(printable(str(value)))
