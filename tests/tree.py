"""The tree's Python files, read and parsed once, for tests of its habits and of its structure."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PACKAGE_FOLDERS = ("ckpt", "servers", "clients", "benchmarks")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file."""

    path: str
    """Relative to the root, with slashes."""
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_for_tests(self) -> bool:
        return self.is_test or self.path.startswith("ckpt/testing/")

    @property
    def may_print(self) -> bool:
        """Commands, the demo and the benchmarks talk to people; nothing else does."""
        return self.path.startswith("benchmarks/") or bool(
            re.search(r"(^|/)(cli|demo)(/|\.py$)", self.path)
        )


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the tree, in the order of their paths."""
    folders = [ROOT / name for name in (*PACKAGE_FOLDERS, "tests", "tools")]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return tuple(_read(path) for path in paths)


@cache
def examples() -> tuple[Source, ...]:
    """The scripts that the pages show."""
    return tuple(_read(path) for path in sorted((ROOT / "docs" / "examples").glob("*.py")))


@cache
def pages() -> tuple[Source, ...]:
    """What people read: README, CHANGELOG and all of docs."""
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(_read(path) for path in paths)


def _read(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), path.read_text())


@cache
def tree_of(source: Source) -> ast.Module:
    return ast.parse(source.text)


@cache
def nodes_of(source: Source) -> tuple[ast.AST, ...]:
    """Of the whole tree: walked once, as rules look at all of it."""
    return tuple(ast.walk(tree_of(source)))


@contextmanager
def parsed() -> Iterator[None]:
    """Around the tests of a file that look at all of it. The whole tree is a million objects: while
    they come, the cyclic collector would walk them again and again, and where they stay, each
    `gc.collect()` of a later test takes a second.
    """
    gc.disable()
    try:
        yield
    finally:
        tree_of.cache_clear()
        nodes_of.cache_clear()
        gc.enable()


def starts_by_itself(source: Source) -> bool:
    """What Python or pytest finds by its name."""
    name = source.path.rpartition("/")[2]
    return name in ("__init__.py", "__main__.py", "conftest.py") or name.startswith("test_")


def module_of(source: Source) -> str:
    """`servers/ckptd/cli.py` is imported as `ckptd.cli`."""
    dotted = source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return re.sub(r"^(servers|clients|benchmarks)\.", "", dotted)


def imports_of(source: Source, modules: Set[str]) -> set[str]:
    """Which of the modules a file imports: of `from a import b` the module `a.b` if that is one."""
    found: set[str] = set()
    for node in nodes_of(source):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                wholes = [f"{module}.{alias.name}" for alias in names]
                found.update(whole if whole in modules else module for whole in wholes)
    return (found & modules) - {module_of(source)}
