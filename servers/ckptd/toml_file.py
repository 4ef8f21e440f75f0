"""A daemon's configuration file to start from: every key, what it means, its unit and its default.

    # Memory for fragments that arrive.
    pool_bytes = "64MiB"  # BYTES; default

A key that must be given has the value of the program's example; one that is not set is a comment.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import MISSING
from textwrap import TextWrapper
from typing import Final, get_type_hints

from ckpt.base.units import exact_bytes
from ckptd.option_words import docstrings, options_of, unit_of

Value = str | int | float | bool

LINE_LENGTH: Final = 100
UNSET: Final[dict[str, Value]] = {
    "capacity_bytes": "3TiB",
    "cell_bytes": "2MiB",
    "keep": 3,
    "linger_s": 300.0,
    "targets": 7,
}
"""What the comment of an option shows that is not set by default."""
_COMMENT: Final = TextWrapper(LINE_LENGTH, initial_indent="# ", subsequent_indent="# ")


def commented_toml(kind: type[object], example: str) -> str:
    """The file of the program whose options are `kind`; `example` is a command line of it."""
    return "\n".join(_lines(kind, example)).lstrip("\n") + "\n"


def example_values(example: str) -> dict[str, str]:
    """Option -> value, of `ckptd PROGRAM [DIR] --option value ...`."""
    words = shlex.split(example)
    if len(words) > 2 and not words[2].startswith("--"):
        words.insert(2, "--directory")
    flags = [at for at, word in enumerate(words[:-1]) if word.startswith("--")]
    return {words[at][2:].replace("-", "_"): words[at + 1] for at in flags}


def toml_value(value: object) -> str:
    """JSON's strings, numbers and booleans are TOML's."""
    return json.dumps(value)


def comment(text: str) -> str:
    """Lines of a comment."""
    return _COMMENT.fill(text)


def _lines(kind: type[object], example: str) -> Iterator[str]:
    helps, hints = docstrings(kind), get_type_hints(kind, include_extras=True)
    given = example_values(example)
    for option in options_of(kind):
        name, hint = option.name, hints[option.name]
        unit = "true or false" if hint is bool else unit_of(name, hint)
        is_set = option.default is not None and option.default != -1.0
        needed = option.default is MISSING
        value = given[name] if needed else option.default if is_set else UNSET[name]
        note = "must be given" if needed else "default" if is_set else "not set by default"
        line = f"{name} = {_shown(name, value)}  # {unit}; {note}"
        yield from ("", comment(helps[name]), line if is_set else f"#{line}")


def _shown(name: str, value: object) -> str:
    """Sizes as people write them."""
    if name.endswith("_bytes") and isinstance(value, int) and value:
        return f'"{exact_bytes(value)}"'
    return toml_value(value)
