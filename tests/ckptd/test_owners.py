"""Whose a daemon's directory is: another user, root above all, starts nothing in it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ckpt.aio.private import user_name
from ckpt.base.errors import Refused, Unauthorized
from ckpt_client.local.cluster import is_supervised
from ckptd.catalog.backup import main as back_up
from ckptd.directory import check_owner
from tests.client.clikit import run_installed

OTHER = 12_345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")


@needs_root
@pytest.mark.parametrize("name", ["cluster.toml", "target.toml", "catalog.sqlite"])
def test_a_daemon_begins_nothing_among_another_users_files(tmp_path: Path, name: str) -> None:
    begun = tmp_path / name
    begun.touch()
    check_owner(tmp_path)
    os.chown(begun, OTHER, OTHER)
    with pytest.raises(Refused, match=rf"user {OTHER}, this is root; run it as {OTHER}"):
        check_owner(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@contextmanager
def as_another_user(directory: Path) -> Iterator[None]:
    """The directory, which stands below one that is open to all, is root's alone."""
    directory.chmod(0o700)
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory of root's, in one that all may enter."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@needs_root
def test_a_directory_that_is_closed_to_this_user_is_named_with_its_owner(closed: Path) -> None:
    whose = pytest.raises(Refused, match=rf"^{closed} belongs to user root, this is {OTHER}")
    with as_another_user(closed):
        with whose:
            check_owner(closed)
        with whose:
            check_owner(closed / "not" / "made")
        with whose:
            back_up(["--directory", str(closed)])
        with pytest.raises(Unauthorized, match=f"no access to the cluster in {closed}"):
            is_supervised(closed)


def test_where_nobody_has_begun_anybody_may(tmp_path: Path) -> None:
    check_owner(tmp_path)
    sqlite3.connect(tmp_path / "catalog.sqlite").close()
    check_owner(tmp_path)


def test_a_user_whom_no_list_knows_has_a_number() -> None:
    assert (user_name(0), user_name(OTHER)) == ("root", str(OTHER))


@needs_root
def test_a_look_by_root_leaves_another_users_cluster_as_it_is(tmp_path: Path) -> None:
    """A cluster that rests is started by who looks: by its user alone."""
    url = f"ckpt+local://{tmp_path}/c?targets=3&code=2+1"
    assert (
        subprocess.run([sys.executable, "-c", f"import ckpt; ckpt.open({url!r})"]).returncode == 0
    )
    assert run_installed("local", "stop", f"{tmp_path}/c").code == 0
    for folder, _, names in os.walk(tmp_path / "c"):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, OTHER, OTHER)
    ended = run_installed("ls", "--store", f"ckpt+local://{tmp_path}/c")
    assert (ended.code, f"belongs to user {OTHER}, this is root" in ended.err) == (2, True)
    owners = {path.stat().st_uid for path in (tmp_path / "c").rglob("*")}
    assert owners == {OTHER}
