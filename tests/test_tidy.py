"""The code keeps the habits that a machine can check; each offence names what to do instead.

In the spirit of TigerBeetle's tidy: a rule is a function from a source file to its offences, and a
test at the end shows for every rule that it bites.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_FOLDERS = ("ckpt", "servers", "clients", "benchmarks")

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
LONGER_FILES = {
    "ckpt/format/messages.py": 815,  # The list of all messages; read as a table.
}


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


@dataclass(frozen=True, slots=True)
class Ban:
    """A pattern that must not occur, and what stands in its place."""

    pattern: str
    instead: str
    applies: Callable[[Source], bool] = lambda source: True


BANS = (
    Ban(r"\b(TODO|FIXME|XXX|HACK)\b", "do it now, or write an issue"),
    Ban(r"\b(import|from) (pickle|marshal|shelve|dill)\b", "msgspec, which cannot carry code"),
    Ban(
        r"allow_pickle=True",
        "the format rooms' own documents",
        # The user may ask for it by that name, and a test shows it.
        lambda source: not re.search(r"_torch|frameworks/test_(dcp|nvrx)", source.path),
    ),
    Ban(r"unittest\.mock|MagicMock|import mock\b", "a fake that passes the contract suite"),
    Ban(
        r"\b(time|asyncio)\.sleep\((?!0\))",
        "a fake clock, or tests.waiting for real processes",
        lambda source: source.is_test and source.path != "tests/waiting.py",
    ),
    Ban(r"\bshell=True\b|os\.system\(", "subprocess with a list of arguments"),
    Ban(r"except\s*:|except BaseException:\s*pass", "the exception's class, and handle it"),
    Ban(r"\b(utcnow|datetime\.now)\(", "a Clock; safety needs no wall clock"),
    Ban(r"type: ignore(?!\[)", "type: ignore[code] with the reason above it"),
    Ban(
        r"from typing import .*\bAny\b|typing\.Any\b",
        "the type itself, or `object`",
        lambda source: not source.is_test,
    ),
    Ban(r"/(home|root|tmp|work)/\w", "tmp_path, or a path from the configuration"),
    Ban(
        r"\b(ec|gf|crc\w*)_\w+_(base|sse|avx\w*|gfni|neon|sve|vsx)\b",
        "the entry point that picks this CPU's instructions by itself",
    ),
)


def banned_words(source: Source) -> Iterator[str]:
    """Lines that match a ban, with the replacement."""
    if source.path == "tests/test_tidy.py":
        return  # It must spell the words in order to ban them.
    bans = [(re.compile(ban.pattern), ban.instead) for ban in BANS if ban.applies(source)]
    for number, line in enumerate(source.lines, start=1):
        for pattern, instead in bans:
            if match := pattern.search(line):
                yield f"{source.path}:{number}: {match[0]!r}: instead, {instead}"


def stray_prints(source: Source) -> Iterator[str]:
    """Output that no person asked for."""
    if source.may_print:
        return
    for node in _nodes(source):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield f"{source.path}:{node.lineno}: print: instead, the log or the CLI's report"


def long_lines(source: Source) -> Iterator[str]:
    """Lines over the limit, tables that say `fmt: skip` and addresses apart."""
    tables = set(_table_lines(source))
    for number, line in enumerate(source.lines, start=1):
        if len(line) > LINE_LENGTH_MAX and number not in tables and "https://" not in line:
            yield f"{source.path}:{number}: {len(line)} columns, at most {LINE_LENGTH_MAX}"


def long_functions(source: Source) -> Iterator[str]:
    """Functions that should be several."""
    for node in _nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line_count = (node.end_lineno or node.lineno) - node.lineno + 1
            if line_count > FUNCTION_LINES_MAX:
                yield (
                    f"{source.path}:{node.lineno}: {node.name} has {line_count} lines, "
                    f"at most {FUNCTION_LINES_MAX}"
                )


def long_files(source: Source) -> Iterator[str]:
    """Files that answer more than one question."""
    limit = LONGER_FILES.get(source.path, FILE_LINES_MAX)
    line_count = source.text.count("\n")
    if line_count > limit:
        yield f"{source.path}: {line_count} lines, at most {limit}"


def silent_files(source: Source) -> Iterator[str]:
    """Files that do not begin by saying what they answer."""
    if not ast.get_docstring(_tree(source)):
        yield f"{source.path}: begins without a docstring"


def empty_bodies(source: Source) -> Iterator[str]:
    """Functions and handlers that do nothing and do not say why."""
    for node in _nodes(source):
        if isinstance(node, ast.Pass):
            yield f"{source.path}:{node.lineno}: `pass`: say in a docstring why nothing is to do"


def stray_notes(source: Source) -> Iterator[str]:
    """Notes that seem to describe the attribute beside theirs. A `#:` stands right above a private
    attribute, a docstring right below a public one.
    """
    assigned = {
        (node.lineno, node.col_offset): _name_of(node)
        for node in _nodes(source)
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    for line, column in _ends_of_notes(source):
        name = assigned.get((line + 1, column))
        if name is None:
            yield f"{source.path}:{line}: `#:` above no attribute: instead, above what it describes"
        elif not name.startswith("_"):
            yield f"{source.path}:{line}: `#:` above public {name}: instead, a docstring below it"
    for line, name in _attributes_with_docstring(source):
        if name.startswith("_"):
            yield f"{source.path}:{line}: a docstring below {name}: instead, `#:` above it"


RULES = (
    banned_words,
    stray_prints,
    long_lines,
    long_functions,
    long_files,
    silent_files,
    empty_bodies,
    stray_notes,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_the_tree_keeps_the_rule(rule: Callable[[Source], Iterable[str]]) -> None:
    offences = [offence for source in sources() for offence in rule(source)]
    assert not offences, "\n" + "\n".join(offences)


def test_every_module_is_used_by_another() -> None:
    """What only its own tests use is dead; the fakes are there for tests. What a user's script
    imports is used: docs/examples, whose every script is run by a test.
    """
    by_tests = set().union(*(_modules_named(source) for source in sources() if source.is_test))
    by_code = set().union(*(_modules_named(source) for source in sources() if not source.is_test))
    by_code |= set().union(*(_modules_named(example) for example in examples()))
    by_code |= set(re.findall(r'"([\w.]+):\w+"', (ROOT / "pyproject.toml").read_text()))
    unused = [
        source.path
        for source in sources()
        if not _starts_by_itself(source)
        and _module_of(source) not in (by_code | by_tests if source.is_for_tests else by_code)
    ]
    assert not unused, f"nobody imports, starts or names these: {unused}"


def test_every_page_is_linked_from_another() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    texts = {page: page.read_text() for page in [*pages, *ROOT.glob("*.md")]}
    texts |= {ROOT / source.path: source.text for source in sources()}
    lonely = [
        str(page.relative_to(ROOT))
        for page in pages
        # Decisions are a folder that is read as a list.
        if page.parent.name != "decisions"
        and not any(page.name in text for other, text in texts.items() if other != page)
    ]
    assert not lonely, f"no page or module names these: {lonely}"


CALLED_BY_FRAMEWORKS = {
    "should_synchronize_after_execute", "synchronize_staging",  # DCP: its AsyncStager's Protocol.
    "all_steps", "reload",  # Orbax: its CheckpointManager's.
}  # fmt: skip
"""What frameworks call by its name alone, without a base class that would say so."""


def test_nothing_public_is_there_for_tests_alone() -> None:
    product = [source for source in sources() if not source.is_for_tests]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = set().union(*(_names_used(source) for source in (*product, *examples())))
    named |= {word for page in pages for word in re.findall(r"\w+", page.read_text())}
    alone = [
        f"{source.path}:{line}: {name}"
        for source in product
        if not _starts_by_itself(source)
        for line, name in _public_functions(source)
        if name not in named | CALLED_BY_FRAMEWORKS
    ]
    assert not alone, "no product names these; move them to tests:\n" + "\n".join(alone)


A_CLASS_OF_OURS = """
import x
class C:
    def a(self): ...
    def b(self): self.a()
class D(C, x.Y):
    def called_by_x(self): ...
"""


def test_a_function_that_nobody_names_is_found() -> None:
    source = Source("ckpt/example.py", A_CLASS_OF_OURS)
    assert {name for _, name in _public_functions(source)} == {"a", "b"}
    assert _names_used(source) == {"a", "C", "x", "Y", "self"}


OFFENDERS = [
    (banned_words, "# TODO: later"),
    (banned_words, "import pickle"),
    (banned_words, "time.sleep(1)"),
    (banned_words, "library.ec_encode_data_avx2"),
    (stray_prints, "print(1)"),
    (long_lines, "x = 1  # " + "y" * 100),
    (long_functions, "def f():\n" + "    f()\n" * 61),
    (long_files, "f()\n" * 501),
    (silent_files, "import os"),
    (empty_bodies, "def f():\n    pass"),
    (stray_notes, "class C:\n    _a: int = 0\n    #: Below it.\n\n    _b: int = 0"),
    (stray_notes, "class C:\n    _a: int = 0\n    #: Below it.\n    b: int = 0"),
    (stray_notes, "class C:\n    def f(self):\n        self._a = 0\n        #: Below it."),
    (stray_notes, "class C:\n    def f(self):\n        #: Of a call.\n        self.f()"),
    (stray_notes, 'class C:\n    def f(self):\n        self._a = 0\n        """Below it."""'),
    (stray_notes, 'class C:\n    _a: int = 0\n    """Below it."""'),
]


@pytest.mark.parametrize(("rule", "text"), OFFENDERS)
def test_each_rule_bites(rule: Callable[[Source], Iterable[str]], text: str) -> None:
    assert list(rule(Source("tests/example.py", text)))
    assert not list(rule(Source("tests/example.py", '"""An example."""\n\nf()\n')))


def test_a_table_may_be_wide_and_a_command_may_print() -> None:
    table = "table = [\n    " + "1, " * 50 + "\n]  # fmt: skip\n"
    cases = "@cases(\n    " + "1, " * 50 + "\n)  # fmt: skip\ndef f(): ...\n"
    assert not list(long_lines(Source("tests/example.py", table)))
    assert not list(long_lines(Source("tests/example.py", cases)))
    assert not list(stray_prints(Source("servers/ckptd/cli.py", "print(1)")))


NOTES_IN_PLACE = '''
class C:
    a: int = 0
    """Its note."""
    #: Its note,
    #: in two lines.
    _b: int = 0

    def __init__(self):
        #: Its note.
        self._c = (
            0
        )
        self._d = "#: no note"
        self._e = """
            #: no note
        """
'''


def test_a_note_stands_above_what_is_private_and_below_what_is_public() -> None:
    assert not list(stray_notes(Source("tests/example.py", NOTES_IN_PLACE)))


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


def _read(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), path.read_text())


@cache
def _tree(source: Source) -> ast.Module:
    return ast.parse(source.text)


@cache
def _nodes(source: Source) -> tuple[ast.AST, ...]:
    """Of the whole tree: walked once, as rules look at all of it."""
    return tuple(ast.walk(_tree(source)))


def _table_lines(source: Source) -> Iterator[int]:
    """Numbers of the lines of statements and decorators that end in `fmt: skip`."""
    lines = source.lines
    for node in _nodes(source):
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        for table in [node, *decorators] if isinstance(node, ast.stmt) else []:
            if "# fmt: skip" in lines[(table.end_lineno or 1) - 1]:
                yield from range(table.lineno, (table.end_lineno or table.lineno) + 1)


def _name_of(node: ast.Assign | ast.AnnAssign) -> str:
    """`a` of `self.a`; of several that are assigned at once the first."""
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    return ast.unparse(first).rpartition(".")[2]


def _ends_of_notes(source: Source) -> Iterator[tuple[int, int]]:
    """Line and column of the last line of each block of `#:`."""
    if not re.search(r"^ *#:", source.text, re.MULTILINE):
        return
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    starts = [t.start for t in tokens if t.type == tokenize.COMMENT and t.string.startswith("#:")]
    noted = {line for line, _ in starts}
    yield from ((line, column) for line, column in starts if line + 1 not in noted)


def _attributes_with_docstring(source: Source) -> Iterator[tuple[int, str]]:
    """Of a class, and of what its functions assign: the docstring's line, and the name."""
    for node in _nodes(source):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for one, below in pairwise(node.body):
            match one, below:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str())):
                    yield below.lineno, _name_of(one)


def _starts_by_itself(source: Source) -> bool:
    """What Python or pytest finds by its name, and the scripts that people start."""
    folder, _, name = source.path.rpartition("/")
    return (
        folder == "benchmarks/peers"
        or name in ("__init__.py", "__main__.py", "conftest.py")
        or name.startswith("test_")
    )


def _module_of(source: Source) -> str:
    """`servers/ckptd/cli.py` is imported as `ckptd.cli`."""
    dotted = source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return re.sub(r"^(servers|clients|benchmarks)\.", "", dotted)


PLAIN_BASES = {"Struct", "Protocol", "Enum", "IntEnum", "NamedTuple", "Generic", "Exception"}
"""Bases that call no method of ours by its name."""
PACKAGES = r"(ckpt|ckptd|ckpt_\w+|ckptbench)(\.|$)"


def _public_functions(source: Source) -> Iterator[tuple[int, str]]:
    """Line and name of public functions and methods. Those of a class with a base that is not ours
    may be called by it.
    """
    own = set(PLAIN_BASES)
    for node in _nodes(source):
        if isinstance(node, ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.ImportFrom) and re.match(PACKAGES, node.module or ""):
            own.update(alias.name for alias in node.names)
    for node in _nodes(source):
        bases = node.bases if isinstance(node, ast.ClassDef) else []
        if any(ast.unparse(base).partition("[")[0] not in own for base in bases):
            continue
        for inner in node.body if isinstance(node, ast.Module | ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
                yield inner.lineno, inner.name


def _names_used(source: Source) -> set[str]:
    """Names that a file reads, and those in its short strings: some are looked up so."""
    used: set[str] = set()
    for node in _nodes(source):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                used.add(name)
            case ast.MatchClass(kwd_attrs=names):
                used.update(names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:]+", text):
                used.update(re.findall(r"\w+", text))
    return used


def _modules_named(source: Source) -> set[str]:
    """Modules that a file imports, or names in a string in order to start them."""
    named: set[str] = set()
    for node in _nodes(source):
        match node:
            case ast.Import(names=names):
                named.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                named.add(module)
                named.update(f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"\w+(\.\w+)+(:\w+)?", text):
                named.add(text.partition(":")[0])
    return named - {_module_of(source)}
