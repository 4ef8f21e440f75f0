"""What is planted: each operator makes the bug that its name says, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.mutants.operators import Mutant, compiles, mutants_of

ROOT = Path(__file__).resolve().parent.parent.parent


def planted(body: str, operator: str) -> list[str]:
    """The function's lines with each bug of an operator in them."""
    source = "def f(self, a, b):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    found = [each for each in mutants_of("x.py", source) if each.operator == operator]
    return [textwrap.dedent(each.applied(source).partition("\n")[2]).strip() for each in found]


CASES = [
    ("delete", "self.note(a)\nreturn b", ["...\nreturn b"]),
    ("delete", "self.a = b\nc = a\nself.a += c", ["...\nc = a\nself.a += c", "self.a = b\nc = a\n..."]),
    ("delete", "if a:\n    return\nself.b()", ["if a:\n    ...\nself.b()", "if a:\n    return\n..."]),
    ("delete", "for c in a:\n    continue", ["for c in a:\n    ..."]),
    ("delete", "raise ValueError(a < b)", ["..."]),
    ("sync", "self.disk.sync_file(a)\nself.rename(a)", ["...\nself.rename(a)"]),
    ("sync", "steps = [WriteAt(a), SyncFile(b), Rename(a)]", ["steps = [WriteAt(a), Rename(a)]"]),
    ("sync", "steps = [WriteAt(a), SyncFile(b)]", ["steps = [WriteAt(a)]"]),
    ("drop", "return [Send(a), Send(b)]", ["return [Send(a)]", "return [Send(b)]"]),
    ("swap", "return [Send(a), Close(b)]", ["return [Close(b), Send(a)]"]),
    ("swap", "self.send(a)  # why\nself.close(b)", ["self.close(b)  # why\nself.send(a)"]),
    ("negate", "if a:\n    return b", ["if (not (a)):\n    return b"]),
    ("negate", "return a if b else 1", ["return a if (not (b)) else 1"]),
    ("negate", "return [c for c in a if c > b]", ["return [c for c in a if (not (c > b))]"]),
    ("operand", "return a and b", ["return ((b))", "return ((a))"]),
    ("operand", "return a or b or self", [
        "return ((b) or (self))", "return ((a) or (self))", "return ((a) or (b))",
    ]),
    ("bound", "return a < b", ["return a <= b"]),
    ("bound", "return a >= 2", ["return a > 2", "return a >= 3"]),
    ("bound", "return a[1:] + 2", ["return a[2:] + 2", "return a[1:] + 3"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "body", "expected"), CASES)
def test_an_operator_makes_its_bugs(operator: str, body: str, expected: list[str]) -> None:
    assert sorted(planted(body, operator)) == sorted(expected)


@pytest.mark.parametrize(
    "body",
    [
        '"""Says what it does."""',
        'assert a < 2, "a is small"',
        'self._desk.report("info", "a target is live", count=len(a) + 1)',
        'self.text = yield f"{a + 1} of {b}"',
        "import os",
    ],
)
def test_words_and_asserts_are_left_alone(body: str) -> None:
    source = f"def f(self, a, b):\n    {body}\n"
    assert [each.operator for each in mutants_of("x.py", source) if each.operator != "delete"] == []
    if not body.startswith("self.text"):
        assert mutants_of("x.py", source) == []


def test_positions_are_right_behind_letters_of_several_bytes() -> None:
    source = 'def f(a):\n    b = "é → ü"; g(b)\n    if a < 3:  # → é\n        g(a)\n'
    found = mutants_of("x.py", source)
    assert {"delete", "negate", "bound"} <= {each.operator for each in found}
    assert all(compiles(each.applied(source)) for each in found)


def test_bugs_of_the_tree_can_be_planted_and_each_has_a_name_and_a_diff_of_its_own() -> None:
    path = "ckpt/protocol/coordinator/saving/committing.py"
    source = (ROOT / path).read_text()
    found = mutants_of(path, source)
    assert len({each.key for each in found}) == len(found) > 100
    for mutant in found[::10]:
        assert compiles(mutant.applied(source)), mutant.diff(source)
        changed = [line for line in mutant.diff(source).splitlines() if line[0] in "+-"]
        assert changed, mutant


def test_what_does_not_compile_is_known() -> None:
    source = "def f():\n    return 1\n"
    assert compiles(source)
    assert not compiles(Mutant("x.py", 2, "drop", 13, 21, "return return").applied(source))
