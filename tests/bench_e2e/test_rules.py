"""Rules are judged by real clusters and files, and what was found is the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckptbench import proc
from ckptbench.cli import main
from ckptbench.rules import judge
from tests.landing import in_turn

SMALL = ("--numjobs=2", "--size=4Mi", "--loops=2", "--warmups=1", "--strict")


@pytest.mark.parametrize(
    ("limit", "word", "code"), in_turn([(0.0, "MISSED", 1), (1e9, "met", 0)], every=2)
)
def test_a_rule_is_judged_alone_by_rounds_in_turns(
    limit: float,
    word: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This process has other tests to run.
    monkeypatch.setattr(proc, "isolate_loopback", lambda: False)
    # How fast so small saves are depends on the machine; what follows from a rule does not.
    rules = tuple(replace(rule, limit=limit) for rule in judge.RULES)
    monkeypatch.setattr(judge, "RULES", rules)
    where = [f"--directory={tmp_path}", "--output-format=normal,json"]
    sections = "--section=save --section=save-direct"
    assert main(["rules", *sections.split(), *SMALL, *where]) == code
    table, _, document = capsys.readouterr().out.partition("\n{\n")
    (line,) = (one for one in table.splitlines() if one.endswith(sections))
    assert line.startswith(f"{word}  durable / O_DIRECT file x n/k, TCP  ")
    assert "  2 x 4 MiB  " in line
    (rule,) = json.loads("{\n" + document)["checkpoint"]["rules"]
    found = rule.pop("found")
    assert (rule["met"], rule["limit"], found["count"]) == (not code, limit, 2)
    assert 0 < found["low"] <= found["median"] <= found["high"]
    assert f"{found['median']:.3g} [" in line
    assert list(tmp_path.iterdir()) == []
