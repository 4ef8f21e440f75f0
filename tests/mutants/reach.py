"""Which tests run which functions, so that a bug is judged by those alone that can notice it.

    tests of a room, once, on the tree as it is --> who calls what --> kept until a file changes

A pytest plugin (`-p tests.mutants.reach`) notes the calls, those of threads among them; other
processes are not looked into. What a test's fixtures call counts for all tests of its file, what is
called while tests are collected for all there are.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import msgspec
import pytest

from tests.mutants.operators import Mutant

VARIABLE: Final = "CKPT_REACH"
"""Names the file that the plugin writes."""
Function = tuple[str, int]
"""A path in the tree, and the line where the function or its first decorator begins."""


class Reached(msgspec.Struct, frozen=True):
    """A line of that file."""

    test: str
    """A node id; of a file for what its fixtures call, empty for what collecting calls."""
    functions: list[Function]


class Reach:
    """I know which tests reach a bug."""

    def __init__(self, lines: Iterable[Reached]) -> None:
        self._tests: list[str] = []
        self._by_function: dict[Function, set[str]] = {}
        for line in lines:
            if "::" in line.test:
                self._tests.append(line.test)
            for function in line.functions:
                self._by_function.setdefault(function, set()).add(line.test)

    def tests_of(self, mutant: Mutant, source: str) -> list[str]:
        """In the order in which they ran."""
        reached = self._by_function.get((mutant.path, function_line(source, mutant.line)), set())
        if "" in reached:
            return list(self._tests)
        return [t for t in self._tests if t in reached or t.partition("::")[0] in reached]


def function_line(source: str, line: int) -> int:
    """Where the innermost function around a line begins; 0 outside of all."""
    begins = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or first):
                begins = max(begins, first)
    return begins


def digest_of(tree: Path, places: Sequence[str]) -> str:
    """Of all sources there: what was noted holds as long as it is the same."""
    found = hashlib.sha256()
    for place in places:
        for file in sorted((tree / place).rglob("*.py")):
            found.update(f"{file.relative_to(tree)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def read_lines(file: Path) -> Iterator[Reached]:
    """What the plugin wrote."""
    for line in file.read_bytes().splitlines():
        yield msgspec.json.decode(line, type=Reached)


# --------------------------------------------------------------------------- the plugin

_ROOT: Final = f"{Path.cwd()}{os.sep}"
_OURS: Final = f"{_ROOT}ckpt{os.sep}"
_calls: dict[CodeType, None] = {}


def _note(frame: FrameType, _event: str, _argument: object) -> None:
    """Once for each call: it returns no function for the lines behind it."""
    _calls[frame.f_code] = None


def _write(test: str) -> None:
    # A copy in one step: threads go on calling.
    calls = list(_calls)
    _calls.clear()
    names = {(code.co_filename, code.co_firstlineno) for code in calls}
    ours = sorted((path.removeprefix(_ROOT), n) for path, n in names if path.startswith(_OURS))
    with Path(os.environ[VARIABLE]).open("ab") as lines:
        lines.write(msgspec.json.encode(Reached(test, ours)) + b"\n")


def pytest_configure() -> None:
    """From here on calls are noted."""
    threading.settrace(_note)
    sys.settrace(_note)


def pytest_unconfigure() -> None:
    """Before the interpreter takes itself apart."""
    threading.settrace(None)  # type: ignore[arg-type]
    sys.settrace(None)


def pytest_collection_finish() -> None:
    """Whatever ran until now, all tests may depend on."""
    _write("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Fixtures; an earlier test may have been the first to ask for them."""
    try:
        yield
    finally:
        _write(item.nodeid.partition("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The test itself, with what ends behind it."""
    try:
        yield
    finally:
        _write(item.nodeid)
