"""Who reaches a bug: tests that call its function, by whatever way, and nobody else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants.campaign import Pytest, pick, reaches_of
from tests.mutants.operators import Mutant
from tests.mutants.reach import Reach, digest_of, function_line

HERE = Path(__file__).resolve().parent

CODE = '''"""Numbers."""

import functools
import threading


def at_import(number):
    return number + 1


def of_fixture(number):
    return number + 2


def of_thread(found):
    found.append(1 + 2)


@functools.cache
def of_one(number):
    return [number + 3 for _ in range(2)]


LIMIT = at_import(1)
'''
TEST = '''"""Numbers."""

import threading

import pytest

from ckpt.numbers import of_fixture, of_one, of_thread


@pytest.fixture(scope="module")
def three() -> int:
    return of_fixture(1)


def test_first(three: int) -> None:
    assert three == 3


def test_second(three: int) -> None:
    assert three == 3


def test_thread() -> None:
    found = []
    thread = threading.Thread(target=of_thread, args=(found,))
    thread.start()
    thread.join()
    assert found == [3]


@pytest.mark.parametrize("number", [1, 2])
def test_one(number: int) -> None:
    assert of_one(number) == [number + 3] * 2
'''
OTHER = '"""None of them."""\n\n\ndef test_other() -> None:\n    assert True\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in (
        ("ckpt/__init__.py", '"""Ours."""\n'),
        ("ckpt/numbers.py", CODE),
        ("tests/transfer/test_numbers.py", TEST),
        ("tests/transfer/test_other.py", OTHER),
        ("tests/__init__.py", '"""Tests."""\n'),
        ("pyproject.toml", "[tool.pytest.ini_options]\nmarkers = ['slow']\n"),
    ):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    shutil.copytree(HERE, tmp_path / "tree" / "tests" / "mutants")
    return tmp_path / "tree"


def reach_of(tree: Path, place: Path) -> Reach:
    near = Mutant("ckpt/transfer/numbers.py", 1, "delete", 0, 0, "")
    return reaches_of(tree, [near], place)["tests/transfer"]


def test_a_bug_is_reached_by_tests_that_call_its_function_by_whatever_way(
    tree: Path, tmp_path: Path
) -> None:
    reach = reach_of(tree, tmp_path)
    found: dict[str, set[str]] = {}
    for mutant in pick(tree, ["ckpt/numbers.py"], seed=1, count=100):
        line = CODE.splitlines()[function_line(CODE, mutant.line) - 1]
        tests = reach.tests_of(mutant, CODE)
        found[line] = {test.partition("::")[2] for test in tests}
    of_file = {"test_first", "test_second", "test_thread", "test_one[1]", "test_one[2]"}
    assert found == {
        "def at_import(number):": {*of_file, "test_other"},
        "def of_fixture(number):": of_file,
        "def of_thread(found):": {"test_thread"},
        "@functools.cache": {"test_one[1]", "test_one[2]"},
    }


def test_what_was_noted_holds_until_a_source_changes(tree: Path, tmp_path: Path) -> None:
    before = digest_of(tree, ["ckpt", "tests/transfer"])
    reach_of(tree, tmp_path)
    assert (tmp_path / f"transfer-{before}.jsonl").exists()
    (tree / "tests/transfer/test_other.py").write_text('"""Nothing."""\n')
    assert digest_of(tree, ["ckpt", "tests/transfer"]) != before


def test_only_those_that_reach_a_bug_judge_it(tree: Path, tmp_path: Path) -> None:
    (tree / "ckpt/transfer").mkdir()
    (tree / "ckpt/numbers.py").rename(tree / "ckpt/transfer/numbers.py")
    test = tree / "tests/transfer/test_numbers.py"
    test.write_text(TEST.replace("ckpt.numbers", "ckpt.transfer.numbers"))
    (tree / "tests/transfer/test_other.py").write_text(
        '"""Red."""\n\n\ndef test_red():\n    assert 0\n'
    )
    judge = Pytest(reaches={"tests/transfer": reach_of(tree, tmp_path)})
    of_thread, no_one = (
        next(m for m in pick(tree, [f"ckpt/transfer/numbers.py:{lines}"], seed=1, count=9))
        for lines in ("15-16", "7-8")
    )
    assert judge(tree, of_thread) == ("survived", "")
    end, by = judge(tree, no_one)
    assert (end, by) == ("killed", "tests/transfer/test_other.py::test_red")
