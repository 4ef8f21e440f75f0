"""Harm from outside: a directory that is removed under a process, and code that runs first in every
Python process of an environment.

The interpreter imports `sitecustomize` at its start. So a test makes a process compute wrongly, or
go astray, without a hook in what it tests.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.waiting import wait_until

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

WITHOUT_LOCKS = """
import errno, fcntl, os


def flock(_descriptor, _operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


fcntl.flock = flock
"""
"""A file system that takes no locks, as NFS without its lock daemon."""


def remove_under(directory: Path) -> None:
    """`rm -rf` under a process that works there: what it writes meanwhile goes as well."""
    first = directory.stat().st_ino

    def is_gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        try:
            return directory.stat().st_ino != first
        except FileNotFoundError:
            return True

    wait_until(is_gone, f"{directory} is removed")


def harmed(directory: Path, code: str) -> dict[str, str]:
    """Our environment, in which all Python processes run `code` before anything else."""
    (directory / "sitecustomize.py").write_text(code)
    paths = (str(directory), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
