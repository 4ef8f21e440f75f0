"""Harm from outside: code that runs first in every Python process of an environment.

The interpreter imports `sitecustomize` at its start. So a test makes a process compute wrongly, or
go astray, without a hook in what it tests.
"""

from __future__ import annotations

import os
from pathlib import Path

WRONG_ISAL = """
from ckpt.native import cells

right = cells.transform


def wrong(tables, inputs, outputs, **options):
    crcs = right(tables, inputs, outputs, **options)
    outputs[0][0] ^= 1
    return crcs


cells.transform = wrong
"""
"""A machine whose erasure code flips one bit of whatever it computes."""

WITHOUT_LIBRARY = """
from pathlib import Path
from ckpt.native import library

library.LIBRARY = Path("/nowhere/libckpt.so.1")
"""
"""An installation that lost its C library."""


def harmed(directory: Path, code: str) -> dict[str, str]:
    """Our environment, in which all Python processes run `code` before anything else."""
    (directory / "sitecustomize.py").write_text(code)
    paths = (str(directory), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
