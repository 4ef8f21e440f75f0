"""The files of docs/configuration.md are read by those who read them, and have every key."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from ckptd.config import as_text, load
from ckptd.local.cluster_file import read_cluster
from ckptd.target.identity import read_target_file
from tests.pages import ROOT
from tests.reference.configuration import CONFIGS, TARGET_FILE, cluster_file

NEEDED = {
    "coordinator": {"directory"},
    "target": {"directory", "coordinator"},
    "drain": {"to", "coordinator"},
    "repair": {"coordinator"},
    "local": {"directory"},
}
"""What each daemon must be given."""


def shown(name: str) -> str:
    page = (ROOT / "docs" / "configuration.md").read_text()
    found = re.search(rf"generated: {re.escape(name)} -->\n\n```toml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def loaded(path: Path, program: str, text: str) -> object:
    path.write_text(text)
    argv = ["--config", str(path)]
    kind = CONFIGS[program]
    return load(kind, program=program, description="", example="", argv=argv, environ={}).config


@pytest.mark.parametrize("program", CONFIGS)
def test_a_daemon_s_file_gives_its_defaults(program: str, tmp_path: Path) -> None:
    config = loaded(tmp_path / "file.toml", program, shown(program))
    found = as_text(config)
    options = fields(config)  # type: ignore[arg-type]
    needed = {option.name for option in options if option.default is MISSING}
    assert needed == NEEDED[program]
    defaults = {option.name: option.default for option in options if option.name not in needed}
    assert {name: found[name] for name in defaults} == defaults
    assert all(found[name] for name in needed)


@pytest.mark.parametrize("program", CONFIGS)
def test_a_daemon_s_file_has_every_key(program: str, tmp_path: Path) -> None:
    text = re.sub(r"^#(?=\w+ = )", "", shown(program), flags=re.MULTILINE)
    keys = re.findall(r"^(\w+) = ", text, re.MULTILINE)
    found = as_text(loaded(tmp_path / "file.toml", program, text))
    assert keys == list(found)
    assert None not in found.values()


def test_the_file_of_a_cluster_is_what_is_made_when_nothing_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(shown("cluster.toml"))
    assert read_cluster(path) == cluster_file()


def test_the_file_of_a_target_s_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "target.toml").write_text(shown("target.toml"))
    assert read_target_file(tmp_path) == TARGET_FILE
