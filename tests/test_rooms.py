"""`make coverage` counts each room's statements and branches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rooms import main


def summary(statements: int, reached: int, branches: int, taken: int) -> dict[str, dict[str, int]]:
    found = {"num_statements": statements, "covered_lines": reached}
    return {"summary": {**found, "num_branches": branches, "covered_branches": taken}}


def test_a_room_is_what_its_files_are_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    files = {
        "ckpt/plan/a.py": summary(90, 90, 10, 5),
        "ckpt/plan/deep/b.py": summary(80, 20, 20, 0),
        "servers/ckptd/c.py": summary(1, 0, 0, 0),
    }
    report.write_text(json.dumps({"files": files}))
    main(str(report))
    plan, ckptd, _, _, *least = capsys.readouterr().out.splitlines()
    assert plan.split() == ["ckpt/plan", "57.5", "%", "85", "of", "200", "missed"]
    assert ckptd.split() == ["servers/ckptd", "0.0", "%", "1", "of", "1", "missed"]
    assert [line.split()[-1] for line in least] == ["ckpt/plan/deep/b.py", "ckpt/plan/a.py"]
