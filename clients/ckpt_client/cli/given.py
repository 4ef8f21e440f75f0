"""What may a word of the command line be? Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import math

from ckpt.base.errors import Refused
from ckpt.base.units import parse_age


def given_place(text: str) -> str:
    """The type of an argument that names a directory, a file or a URL. An empty word would mean the
    directory that the command happens to run in: `ckpt export RUN@STEP "$DEST"` of a script whose
    variable is not set.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    return text


def given_seconds(text: str) -> float:
    """The type of an argument that is a time: seconds, or with a unit, as `90s`, `2min`, `7d`."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = float(parse_age(text))
        except Refused:
            value = math.nan
    if not 0 <= value < math.inf:
        text = f"{text!r} is not a number of seconds, nor one with a unit: 90s, 2min, 12h, 7d"
        raise argparse.ArgumentTypeError(text)
    return value
