"""A campaign on a small tree of its own: with real pytest, and with a judge that only counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.campaign import (
    MAIN,
    ROOT,
    Mutant,
    Pytest,
    copy_of,
    nearest_first,
    pick,
    read_log,
    report,
    run,
    run_pytest,
)

CODE = '''"""Numbers."""


def add(values, number):
    if number > 2:
        values.append(number)
    values.sort()
    return values
'''
TEST = '''"""Numbers are added."""

from ckpt.numbers import add


def test_a_great_number_is_added() -> None:
    assert add([1], 3) == [1, 3]


def test_a_small_one_is_not() -> None:
    assert add([1], 1) == [1]
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One module, and tests that leave two holes: the bound of its condition, and the order."""
    for name, text in (("ckpt/numbers.py", CODE), ("tests/test_numbers.py", TEST)):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    (tmp_path / "tree" / "ckpt" / "__init__.py").write_text('"""Ours."""\n')
    (tmp_path / "tree" / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow']\n"
    )
    return tmp_path / "tree"


def own_tests(tree: Path, _mutant: Mutant) -> tuple[str, str]:
    return run_pytest(tree, ["tests"], limit_s=100)


def test_bugs_that_a_test_notices_are_killed_and_holes_survive(tree: Path, tmp_path: Path) -> None:
    mutants = pick(tree, ["ckpt/numbers.py"], seed=1, count=100)
    chosen = [m for m in mutants if m.operator in ("negate", "bound") and m.text != "3"]
    verdicts = run(tree, chosen, tmp_path / "log", own_tests)
    ends = {verdict.operator: verdict.end for verdict in verdicts}
    assert ends == {"negate": "killed", "bound": "survived"}
    (killed,) = (verdict for verdict in verdicts if verdict.end == "killed")
    assert killed.by == "tests/test_numbers.py::test_a_great_number_is_added"
    text = report(verdicts)
    assert "      1       0       0        1  ckpt/numbers.py" in text
    assert "-    if number > 2:\n+    if number >= 2:" in text
    assert (tree / "ckpt/numbers.py").read_text() == CODE


def test_a_test_that_hangs_on_a_bug_is_ended(tree: Path) -> None:
    (tree / "tests/test_numbers.py").write_text('"""Never ends."""\nwhile True:\n    True\n')
    assert run_pytest(tree, ["tests"], limit_s=3) == ("timeout", "")


def test_a_test_that_ends_the_process_at_its_time_limit_is_a_timeout(tree: Path) -> None:
    body = (
        '@pytest.mark.timeout(1, method="thread")\ndef test_ends():\n    while True:\n        1\n'
    )
    (tree / "tests/test_numbers.py").write_text(f'"""Never ends."""\nimport pytest\n\n{body}')
    assert run_pytest(tree, ["tests"], limit_s=100) == ("timeout", "")


def test_only_the_main_campaign_is_told_how_many_seeds(tree: Path) -> None:
    body = '''"""Seeds."""
import os


def test_seeds() -> None:
    assert os.environ.get("CKPT_SIM_SEEDS") == {}
'''
    (tree / "tests/sim").mkdir()
    (tree / MAIN).write_text(body.replace("{}", '"7"'))
    (tree / "tests/sim/test_other.py").write_text(body.replace("{}", "None"))
    for file in (MAIN, "tests/sim/test_other.py"):
        assert run_pytest(tree, [file], limit_s=100, sim_seeds=7) == ("survived", "")


def test_a_test_that_fails_without_the_bug_proves_nothing(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/test_numbers.py").write_text('"""Red."""\n\n\ndef test_red():\n    assert 0\n')
    (mutant,) = pick(tree, ["ckpt/numbers.py"], seed=1, count=1)
    judge = Pytest(limit_s=100)
    (verdict,) = run(tree, [mutant], tmp_path / "log", own_tests, passes=judge.passes)
    assert (verdict.end, verdict.by) == ("unsure", "tests/test_numbers.py::test_red")


def test_a_campaign_goes_on_where_it_was_stopped(tree: Path, tmp_path: Path) -> None:
    judged: list[str] = []

    def judge(_tree: Path, mutant: Mutant) -> tuple[str, str]:
        judged.append(mutant.key)
        return "killed", "a test"

    log = tmp_path / "log"
    few, more = (pick(tree, ["ckpt"], seed=3, count=count) for count in (2, 4))
    assert more[:2] == few
    run(tree, few, log, judge)
    with log.open("ab") as lines:
        lines.write(b'{"key": "cut o')
    verdicts = run(tree, more, log, judge)
    assert judged == [mutant.key for mutant in more]
    assert [verdict.key for verdict in verdicts] == judged
    assert len(read_log(log)) == 4
    assert run(tree, more, log, judge) == verdicts
    assert len(judged) == 4


def test_a_file_can_be_narrowed_to_some_of_its_lines(tree: Path) -> None:
    wanted = {"ckpt/numbers.py": {5, 6, 7}, "ckpt/numbers.py:6-7": {6, 7}, "ckpt:5-5": {5}}
    for place, lines in wanted.items():
        assert {mutant.line for mutant in pick(tree, [place], seed=1, count=100)} == lines


def test_equal_seeds_pick_equal_bugs_and_others_do_not() -> None:
    room = ["ckpt/plan/keeping"]
    first = pick(ROOT, room, seed=1, count=20)
    assert first == pick(ROOT, room, seed=1, count=20)
    assert first != pick(ROOT, room, seed=2, count=20)
    assert len(set(first)) == 20


def test_the_nearest_tests_run_first() -> None:
    files = nearest_first(ROOT, "tests/protocol", "ckpt/protocol/target/columns.py")
    assert files[0] == "tests/protocol/test_target_columns.py"
    assert len(files) == len(list((ROOT / "tests/protocol").glob("test_*.py")))


def test_every_room_that_is_mutated_has_tests(tmp_path: Path) -> None:
    copy = copy_of(ROOT, tmp_path / "copy")
    for mutant in pick(ROOT, ["ckpt/aio/disk.py", "ckpt/plan/drains.py"], seed=1, count=2):
        for which in ("near", "sim", "all"):
            stages = Pytest(which)._stages(copy, mutant)
            assert all((copy / file).exists() for stage in stages for file in stage)
