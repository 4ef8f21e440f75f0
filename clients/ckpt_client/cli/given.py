"""Is a place named at all? An empty word would mean the directory that the command happens to run
in: `ckpt export RUN@STEP "$DEST"` of a script whose variable is not set.
"""

from __future__ import annotations

import argparse


def given_place(text: str) -> str:
    """The type of an argument that names a directory, a file or a URL."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    return text
