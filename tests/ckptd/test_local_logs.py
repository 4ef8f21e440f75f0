"""A cluster's logs stay small while their daemons live, which is months."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptd.local import logs
from ckptd.local.children import ChildPlan, Supervisor
from ckptd.local.logs import LOOK_S, Logs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 10)


def report(_level: str, text: str, fields: object) -> None:
    raise AssertionError(f"{text}: {fields}")


def test_a_log_that_is_too_large_is_put_aside_under_its_writer(tmp_path: Path) -> None:
    """By the supervisor of a daemon that goes on, or does not run now."""
    (tmp_path / "held").touch()
    supervisor = Supervisor(lambda _: 0, lambda _: None, report)
    plan = ChildPlan("t0", list, tmp_path / "t0.log", holds=(tmp_path / "held",))
    supervisor.add(plan)
    (tmp_path / "t0.old.log").write_text("the one before")
    with plan.log.open("ab", buffering=0) as writer, (tmp_path / "stager-0.log").open("w") as other:
        writer.write(b"first and second\n")
        other.write("a stager")
        supervisor.run_once(0)
        writer.write(b"third\n")
    assert (tmp_path / "t0.old.log").read_text() == "first and second\n"
    assert plan.log.read_text() == "third\n"
    assert (tmp_path / "t0.old.log").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["held", "stager-0.log", "t0.log", "t0.old.log"]


def test_old_logs_are_left_alone_and_looked_at_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("ckptd.local.logs.time.monotonic", lambda: now_s)
    looks, log = Logs(report), tmp_path / "a.log"
    (tmp_path / "a.old.log").write_text("a large old one")
    looks.look([tmp_path, tmp_path])
    log.write_text("a large new one")
    looks.look([tmp_path])
    assert log.read_text() == "a large new one"
    now_s += LOOK_S
    looks.look([tmp_path])
    assert (log.read_text(), (tmp_path / "a.old.log").read_text()) == ("", "a large new one")
    assert sorted(os.listdir(tmp_path)) == ["a.log", "a.old.log"]


def test_a_log_that_cannot_be_put_aside_stays_as_it_is_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "a.log").write_text("a large one")
    (tmp_path / "a.old.log").mkdir()
    Logs(lambda _level, text, _fields: said.append(text)).look([tmp_path])
    assert said == ["a log cannot be put aside"]
    assert (tmp_path / "a.log").read_text() == "a large one"
