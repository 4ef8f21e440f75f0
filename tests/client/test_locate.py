"""Stagers give up where a local cluster's directory is gone, and not where the device hides it."""

from __future__ import annotations

from pathlib import Path

from ckpt_client.locate import Locator


def test_a_directory_that_cannot_be_asked_is_not_gone(tmp_path: Path) -> None:
    assert not Locator(str(tmp_path), "").is_gone
    assert Locator(str(tmp_path / "none"), "").is_gone
    assert not Locator(str(tmp_path / ("x" * 5000)), "").is_gone
    assert not Locator("", "127.0.0.1:7070").is_gone
