"""`ckptbench offload` measures a real drain and says what it compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt.base.units import MiB
from ckptbench.cli import main


def test_a_drain_into_a_directory_is_compared_with_plain_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["offload", "--to", f"file://{tmp_path}", "--size", "64MiB", "--loops", "1"]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == 64 * MiB
    (only,) = found["rounds"]
    assert all(seconds > 0 for seconds in only.values())
    assert not (tmp_path / "drained").exists() or not any((tmp_path / "drained").rglob("*.json"))


def test_bursts_during_a_drain_are_compared_with_bursts_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["offload", "--aside", "--to", f"file://{tmp_path}", "--size", "64MiB", "--loops", "1"]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["alone_s"]), len(found["draining_s"])) == (1, 1)
    assert list((tmp_path / "aside-0" / "bench@1").iterdir()), "the drain was at work"


def test_a_place_without_a_known_plain_client_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["offload", "--to", "memory://x", "--size", "64MiB"]) == 2
    assert "no plain client is known for memory://x" in capsys.readouterr().err
