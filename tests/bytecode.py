"""The tree's bytecode, made once, before tests begin.

    python -m tests.bytecode

A fresh clone has none. Workers of pytest import the same files in the same order at the same time,
so each of them would compile all of them, and rewrite the asserts of all tests. What installed
packages need is left to whoever imports it first, while the others wait (`compiled_by_one`).
"""

from __future__ import annotations

import compileall
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final

from _pytest.assertion import rewrite

from tests.tree import PACKAGE_FOLDERS, ROOT

CHUNK: Final = 16


def compile_all(root: Path) -> None:
    """On all cores; what is there already and fits is left."""
    files = [
        file for folder in (*PACKAGE_FOLDERS, "tests") for file in (root / folder).rglob("*.py")
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sorted(files), chunksize=CHUNK))


def compile_one(file: Path) -> None:
    """As Python keeps it; of what pytest imports as a test, as pytest does."""
    if not (file.name.startswith("test_") or file.name == "conftest.py"):
        compileall.compile_file(file, quiet=1)
        return
    kept = rewrite.get_cache_dir(file) / (file.name[:-3] + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, kept) is None:
        fingerprint, code = rewrite._rewrite_test(file, None)  # type: ignore[arg-type]
        kept.parent.mkdir(parents=True, exist_ok=True)
        rewrite._write_pyc(None, code, fingerprint, kept)  # type: ignore[arg-type]


@contextmanager
def compiled_by_one(package: str) -> Iterator[None]:
    """Around the imports of this package and its like. Where nobody has imported it, one does, and
    the others wait for what that one compiles: of torch, JAX and their friends twice the work that
    importing them is.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        yield
        return
    with open(spec.origin) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if Path(cache_from_source(spec.origin)).exists():
            fcntl.flock(file, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # By name: a child that was forked meanwhile may hold the file open.
            fcntl.flock(file, fcntl.LOCK_UN)


if __name__ == "__main__":
    compile_all(ROOT)
