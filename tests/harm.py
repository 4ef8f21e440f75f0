"""Harm from outside: code that runs first in every Python process of an environment.

The interpreter imports `sitecustomize` at its start. So a test makes a process compute wrongly, or
go astray, without a hook in what it tests.
"""

from __future__ import annotations

import os
from pathlib import Path

WRONG_ISAL = """
import ctypes
from ckpt.erasure import native

right = native.IsalTransform.__call__


def wrong(self, length, inputs, outputs, /):
    right(self, length, inputs, outputs)
    ctypes.c_ubyte.from_address(outputs[0]).value ^= 1


native.IsalTransform.__call__ = wrong
"""
"""A machine whose erasure code flips one bit of whatever it computes."""


def harmed(directory: Path, code: str) -> dict[str, str]:
    """Our environment, in which all Python processes run `code` before anything else."""
    (directory / "sitecustomize.py").write_text(code)
    paths = (str(directory), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
