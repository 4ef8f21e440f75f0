"""The commands of docs/operations.md that need an etcd are run, in their order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.client.test_operations import PAGE, Shell, commands_of
from tests.ha.members import Etcd

SECRET = re.compile(r"install -d -m 700 /etc/ckpt|\(umask |export CKPT_SECRET_FILE=")
"""Commands that stand ahead of them on the page."""


def test_the_commands_of_a_catalog_in_etcd_work(tmp_path: Path, etcd: Etcd) -> None:
    page = PAGE.read_text()
    secret = [line for line in commands_of(page) if SECRET.match(line)]
    lines = commands_of(page, "shell-session")
    shell = Shell(tmp_path, {"10.0.0.4:2379": etcd.addresses})
    try:
        printed = [shell.run(line) for line in [*secret, *lines]]
    finally:
        shell.close()
    assert any("1.5" in text for text in printed), "what the next coordinator loads"
    assert "etcd-catalog.sqlite" in printed[-1]
