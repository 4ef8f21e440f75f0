"""Which bugs can be planted in a source file: each is one small change of its text.

delete    a call, a change of an attribute, a `raise`, a bare `return`, `continue` or `break` goes
sync      a sync goes, awaited or not, also one in a list of steps
drop      one element of a list or tuple of calls goes
swap      it, or a statement that calls, and the next one change places
negate    a condition is turned round
operand   one operand of an `and` or `or` goes
bound     `<` and `<=`, `>` and `>=` become each other, a number in a calculation grows by one

What only logs, asserts, annotates or words a message is left alone: nobody promised it.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

NEAR: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
WORDS: frozenset[str] = frozenset({"report", "debug", "info", "warning", "error", "exception"})
"""Calls of these names only tell a person."""

Change = tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt, str]
"""An operator, the first and the last node of what is replaced, and by what."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One bug: bytes [start, end) of the file become `text`."""

    path: str
    line: int
    operator: str
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """Its name, as long as the file stays as it is."""
        return f"{self.path}:{self.line}:{self.operator}:{self.start}-{self.end}:{self.text[:40]}"

    def applied(self, source: str) -> str:
        """The file with the bug in it."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> str:
        """What a person reads."""
        after = self.applied(source).splitlines()
        lines = difflib.unified_diff(source.splitlines(), after, self.path, n=1, lineterm="")
        return "\n".join(list(lines)[2:])


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every bug that can be planted there, in the order of the file."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(change: Change) -> Mutant:
        operator, first, last, text = change
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        start = starts[first.lineno - 1] + first.col_offset
        end = starts[last.end_lineno - 1] + last.end_col_offset
        return Mutant(path, first.lineno, operator, start, end, text)

    return sorted({place(change) for change in _changes(ast.parse(source), source)})


def compiles(source: str) -> bool:
    """Whether Python takes it: some changes of a text are none of a program."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _changes(tree: ast.Module, source: str) -> Iterator[Change]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _within(statement, source)
            yield from _of_block(function.body, source)


def _within(node: ast.AST, source: str) -> Iterator[Change]:
    """Changes of what lies in a statement of a function; inner functions have their own turn."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assert):
        return
    # Positions in an f-string are not to be trusted, and it is a message.
    if isinstance(node, ast.JoinedStr | ast.Raise) or _only_tells(node):
        return
    yield from _of_node(node, source)
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(node, block, None)
        if isinstance(statements, list):
            yield from _of_block(statements, source)
    for name, child in ast.iter_fields(node):
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, ast.AST) and name not in ("annotation", "returns"):
                yield from _within(each, source)


def _of_block(statements: list[ast.stmt], source: str) -> Iterator[Change]:
    for statement in statements:
        if _is_deletable(statement):
            yield "sync" if _syncs(statement) else "delete", statement, statement, "..."
    for first, second in pairwise(statements):
        if _is_action(first) and _is_action(second):
            # With what stands between them; that is at most a comment.
            parts = _text(source, first), _between(source, first, second), _text(source, second)
            yield "swap", first, second, "".join(reversed(parts))


def _of_node(node: ast.AST, source: str) -> Iterator[Change]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "negate", test, test, f"(not ({_text(source, test)}))"
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield "negate", test, test, f"(not ({_text(source, test)}))"
        case ast.BoolOp(values=values):
            for value in values:
                rest = [_text(source, one) for one in values if one is not value]
                word = " and " if isinstance(node.op, ast.And) else " or "
                yield "operand", node, node, f"({word.join(f'({one})' for one in rest)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in NEAR:
            parts = _text(source, left), NEAR[type(op)], _text(source, right)
            yield "bound", node, node, " ".join(parts)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from _of_list(elements, source)
    if isinstance(node, ast.BinOp | ast.Compare | ast.Slice):
        for number in ast.iter_child_nodes(node):
            if isinstance(number, ast.Constant) and type(number.value) is int:
                yield "bound", number, number, str(number.value + 1)


def _of_list(elements: list[ast.expr], source: str) -> Iterator[Change]:
    """Steps and actions that are made in one go."""
    if len(elements) < 2 or not all(isinstance(one, ast.Call) for one in elements):
        return
    for first, second in pairwise(elements):
        before, after = _text(source, first), _text(source, second)
        between = _between(source, first, second)
        yield "swap", first, second, after + between + before
        yield "sync" if _syncs(first) else "drop", first, second, after
    last, end = elements[-2:]
    yield "sync" if _syncs(end) else "drop", last, end, _text(source, last)


def _is_deletable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise():
            return not _only_tells(statement)
        case ast.Return(value=None) | ast.Continue() | ast.Break():
            return True
        case ast.Assign(targets=targets):
            # Without a name of its own the rest would not even run.
            return all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)
    return False


def _is_action(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)


def _called(node: ast.AST) -> str:
    match node:
        case ast.Expr(value=value) | ast.Await(value=value):
            return _called(value)
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _only_tells(node: ast.AST) -> bool:
    return _called(node) in WORDS


def _syncs(node: ast.AST) -> bool:
    return "sync" in _called(node).lower()


def _text(source: str, node: ast.expr | ast.stmt) -> str:
    text = ast.get_source_segment(source, node)
    assert text is not None
    return text


def _between(source: str, first: ast.stmt | ast.expr, second: ast.stmt | ast.expr) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert first.end_lineno is not None
    if first.end_lineno == second.lineno:
        return lines[second.lineno - 1][first.end_col_offset : second.col_offset].decode()
    parts = [
        lines[first.end_lineno - 1][first.end_col_offset :],
        *lines[first.end_lineno : second.lineno - 1],
        lines[second.lineno - 1][: second.col_offset],
    ]
    return b"".join(parts).decode()
