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
from itertools import pairwise

import pytest

from tests.tree import (
    Source,
    nodes_of,
    pages,
    parsed,
    sources,
    tree_of,
)

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
FILE_LINES_HIGH = 430
"""A file above it has little room left, and often holds a second idea by then."""
HIGH_FILES_MAX = 25
"""So many of the product's files are above it. The number only falls."""


WORDS = {
    r"\btold\b": "what it was: raised, logged, sent, warned, answered, reported",
    r"\bbehind\b": "after",
    r"\banew\b": "again",
    r",\s+too\b(?!\s+(few|large|late|long|many|much|old|short|slow|small)\b)": "as well, or also",
    r"\bthat (is|are) none\b": "say what it is",
    r"\bit was a traceback\b": "it ended with a traceback",
    r"\bwho \w+ it meanwhile\b": "say who, and when",
}
"""Of pages and comments: what hides the meaning, and what says it."""
PLAIN_ROOMS = ("benchmarks/", "ckpt/", "clients/", "servers/")
"""Whose comments and docstrings have been read for such words; tests follow."""


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    with parsed():
        yield


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
    # Hardly a file has one: lines are looked at where the whole text has what is banned.
    bans = [
        (re.compile(ban.pattern), ban.instead)
        for ban in BANS
        if ban.applies(source) and re.search(ban.pattern, source.text)
    ]
    for number, line in enumerate(source.lines if bans else (), start=1):
        for pattern, instead in bans:
            if match := pattern.search(line):
                yield f"{source.path}:{number}: {match[0]!r}: instead, {instead}"


def stray_prints(source: Source) -> Iterator[str]:
    """Output that no person asked for."""
    if source.may_print:
        return
    for node in nodes_of(source):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield f"{source.path}:{node.lineno}: print: instead, the log or the CLI's report"


def unsure_looks(source: Source) -> Iterator[str]:
    """From Python 3.14 on, Path.exists answers no when the device does not say."""
    if not source.path.startswith(("ckpt/aio", "ckpt/objects", "servers/", "clients/")):
        return
    for node in nodes_of(source):
        match node:
            case ast.Call(func=ast.Attribute(attr="exists"), args=[]):
                yield f"{source.path}:{node.lineno}: Path.exists: instead, is_there"


def long_lines(source: Source) -> Iterator[str]:
    """Lines over the limit, tables that say `fmt: skip` and addresses apart."""
    tables = set(_table_lines(source))
    for number, line in enumerate(source.lines, start=1):
        if len(line) > LINE_LENGTH_MAX and number not in tables and "https://" not in line:
            yield f"{source.path}:{number}: {len(line)} columns, at most {LINE_LENGTH_MAX}"


def long_functions(source: Source) -> Iterator[str]:
    """Functions that should be several."""
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line_count = (node.end_lineno or node.lineno) - node.lineno + 1
            if line_count > FUNCTION_LINES_MAX:
                yield (
                    f"{source.path}:{node.lineno}: {node.name} has {line_count} lines, "
                    f"at most {FUNCTION_LINES_MAX}"
                )


def long_files(source: Source) -> Iterator[str]:
    """Files that answer more than one question."""
    line_count = source.text.count("\n")
    if line_count > FILE_LINES_MAX:
        yield f"{source.path}: {line_count} lines, at most {FILE_LINES_MAX}"


def silent_files(source: Source) -> Iterator[str]:
    """Files that do not begin by saying what they answer."""
    if not ast.get_docstring(tree_of(source)):
        yield f"{source.path}: begins without a docstring"


def empty_bodies(source: Source) -> Iterator[str]:
    """Functions and handlers that do nothing and do not say why."""
    for node in nodes_of(source):
        if isinstance(node, ast.Pass):
            yield f"{source.path}:{node.lineno}: `pass`: say in a docstring why nothing is to do"


def stray_notes(source: Source) -> Iterator[str]:
    """Notes that seem to describe the attribute beside theirs. A `#:` stands right above a private
    attribute, a docstring right below a public one.
    """
    assigned = {
        (node.lineno, node.col_offset): node
        for node in nodes_of(source)
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    for line, column in _ends_of_notes(source):
        below = assigned.get((line + 1, column))
        if below is None:
            yield f"{source.path}:{line}: `#:` above no attribute: instead, above what it describes"
        elif not (name := _name_of(below)).startswith("_"):
            yield f"{source.path}:{line}: `#:` above public {name}: instead, a docstring below it"
    for line, name in _attributes_with_docstring(source):
        if name.startswith("_"):
            yield f"{source.path}:{line}: a docstring below {name}: instead, `#:` above it"


RULES = (
    banned_words,
    stray_prints,
    unsure_looks,
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


def high_files(sources: Iterable[Source]) -> dict[str, int]:
    """The product's files above FILE_LINES_HIGH, and how long they are."""
    product = [source for source in sources if source.path.startswith(PLAIN_ROOMS)]
    counts = {source.path: source.text.count("\n") for source in product}
    return {path: count for path, count in counts.items() if count > FILE_LINES_HIGH}


def test_ever_fewer_files_are_nearly_full() -> None:
    high = high_files(sources())
    listed = "\n".join(f"{high[path]} {path}" for path in sorted(high))
    assert len(high) <= HIGH_FILES_MAX, (
        f"{len(high)} files have more than {FILE_LINES_HIGH} lines, at most {HIGH_FILES_MAX} may: "
        "give a second idea that one of them holds a module of its own, with a name that says it; "
        f"squeeze none\n{listed}"
    )


def test_a_file_that_is_nearly_full_is_found() -> None:
    full = Source("ckpt/full.py", "f()\n" * (FILE_LINES_HIGH + 1))
    roomy = Source("ckpt/roomy.py", "f()\n" * FILE_LINES_HIGH)
    of_tests = Source("tests/full.py", full.text)
    assert high_files([full, roomy, of_tests]) == {"ckpt/full.py": FILE_LINES_HIGH + 1}


def hiding_words(page: Source) -> Iterator[str]:
    """Words of a page that hide what is meant; a phrase may go on in the next line. What `--help`
    says is mended there.
    """
    if page.path == "docs/commands.md":
        return
    yield from _hiding_words(page.path, 1, page.text)


def _hiding_words(path: str, first_line: int, text: str) -> Iterator[str]:
    for pattern, instead in WORDS.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            line = first_line + text.count("\n", 0, match.start())
            yield f"{path}:{line}: {match[0]!r}: instead, {instead}"


def hiding_comments(source: Source) -> Iterator[str]:
    """The same of comments, docstrings and messages, in rooms that were read for them."""
    # Few files have such a word at all; in those it may be a name.
    if source.path.startswith(PLAIN_ROOMS) and any(_hiding_words("", 0, source.text)):
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield from _hiding_words(source.path, token.start[0], token.string)


def wide_lines(page: Source) -> Iterator[str]:
    """Lines of prose over the limit. A row of a table, a command, a drawing and an address cannot
    be broken.
    """
    drawn = False
    for number, line in enumerate(page.lines, start=1):
        drawn ^= line.lstrip().startswith("```")
        one_word = " " not in line.strip()
        if len(line) > LINE_LENGTH_MAX and not (drawn or line.startswith("|") or one_word):
            yield f"{page.path}:{number}: {len(line)} columns, at most {LINE_LENGTH_MAX}"


def nameless_readers(page: Source) -> Iterator[str]:
    """Pages that do not open with whom they are for, and why; a decision opens with its question,
    and its list says who reads it.
    """
    is_decision = page.path.startswith("docs/decisions/0")
    opening = r"\*\*Question\.\*\* " if is_decision else "For whoever "
    if page.path.startswith("docs/") and not re.match(rf"# .+\n\n{opening}", page.text):
        yield f"{page.path}: opens without its reader: instead, For whoever ..."


PAGE_RULES = (hiding_words, wide_lines, nameless_readers)


@pytest.mark.parametrize("rule", PAGE_RULES, ids=lambda rule: str(rule.__name__))
def test_pages_keep_the_rule(rule: Callable[[Source], Iterable[str]]) -> None:
    offences = [offence for page in pages() for offence in rule(page)]
    assert not offences, "\n" + "\n".join(offences)


def test_comments_of_the_rooms_that_were_read_hide_nothing() -> None:
    offences = [offence for source in sources() for offence in hiding_comments(source)]
    assert not offences, "\n" + "\n".join(offences)
    behind = 'behind = 1  # Is said\n"""By who was told."""\n'
    assert len(list(hiding_comments(Source("ckpt/plan/example.py", behind)))) == 1


WIDE = "a " * 60
PAGE = f"# A page\n\nFor whoever tests.\n\n| {WIDE} |\n\n```\n{WIDE}\n```\n\n[a]({'b' * 100})\n"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (hiding_words, "What it told of."),
        (hiding_words, "It is logged,\ntoo."),
        (hiding_words, "Behind the commit."),
        (nameless_readers, "# A page\n\nIt says nothing.\n\nFor whoever reads on.\n"),
        (wide_lines, WIDE),
        (wide_lines, f"```\n{WIDE}\n```\n{WIDE}"),
    ],
)
def test_each_rule_of_pages_bites(rule: Callable[[Source], Iterable[str]], text: str) -> None:
    assert list(rule(Source("docs/example.md", text)))
    assert not list(rule(Source("docs/example.md", PAGE)))


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


def test_the_product_asks_for_names_in_the_sure_way() -> None:
    assert list(unsure_looks(Source("servers/ckptd/example.py", "Path('x').exists()")))
    assert not list(unsure_looks(Source("servers/ckptd/example.py", "fs.exists('x')")))


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


def _table_lines(source: Source) -> Iterator[int]:
    """Numbers of the lines of statements and decorators that end in `fmt: skip`."""
    lines = source.lines
    for node in nodes_of(source):
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
    for node in nodes_of(source):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for one, below in pairwise(node.body):
            match one, below:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str())):
                    yield below.lineno, _name_of(one)
