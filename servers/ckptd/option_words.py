"""What help, files and pages say of an option: its meaning, its unit, and its default as it would
be given. All of it stands in the dataclass that the option is a field of."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from dataclasses import Field, fields
from typing import Final, get_args

from ckpt.base.units import exact_bytes

UNITS: Final = {"bytes": "BYTES", "s": "SECONDS", "percent": "PERCENT", "directory": "DIR"}
"""The last word of a field's name -> how help names its value."""


def options_of(kind: type[object]) -> tuple[Field[object], ...]:
    """The fields, in their order."""
    return fields(kind)  # type: ignore[arg-type]


def unit_of(name: str, hint: object) -> str:
    """What help calls the option's value: its unit, or its form."""
    said = next((one for one in get_args(hint) if isinstance(one, str)), None)
    unit = said or UNITS.get(name.rpartition("_")[2])
    assert unit or hint in (int, int | None), f"option {name}: Annotated[str, ...] says what it is"
    return unit or "COUNT"


def shown_default(option: Field[object], flag: str) -> str:
    """The default as a user would write it; empty without one, which a number below 0 also
    means.
    """
    match option.default:
        case bool(given):
            return flag if given else f"--no-{flag[2:]}"
        case int(number) if option.name.endswith("_bytes"):
            return exact_bytes(number)
        case int(number) | float(number):
            return f"{number:g}" if number >= 0 else ""
        case str(text):
            return text
    return ""


def docstrings(kind: type[object]) -> dict[str, str]:
    """Field name -> the docstring under it in the source; empty where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.split())
    return found
