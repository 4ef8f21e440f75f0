"""What a process says of its own release."""

from __future__ import annotations

import importlib.metadata

import pytest

from ckpt.native.version import release, version_line


def test_a_process_names_one_release_also_when_another_is_installed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics and status ask each time; what pip noted is read once."""
    before, line = release(), version_line("ckpt")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "99.0")
    assert release() == before == importlib.metadata.distribution("ckpt-burst").version
    assert version_line("ckpt") == line
