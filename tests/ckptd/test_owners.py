"""Whose a daemon's directory is: another user, root above all, starts nothing in it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ckpt.aio.disk import RealDisk
from ckpt.aio.private import user_name
from ckpt.base.errors import Refused, Unauthorized
from ckpt.protocol.target.core import DIRECTORIES
from ckpt_client.local.cluster import is_supervised
from ckptd.catalog.backup import main as back_up
from ckptd.directory import check_owner
from ckptd.http.plane import served
from ckptd.http.server import TOKEN_NAME
from ckptd.target.access import check_access
from ckptd.target.reports import TargetReports
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


@needs_root
@pytest.mark.parametrize("name", ["term", "catalog", "documents/record-1", "columns", "aside", "."])
def test_a_target_begins_nothing_where_a_part_is_another_users(closed: Path, name: str) -> None:
    """After a `chown` it took the term and the catalog's position for none, and set documents
    aside.
    """
    _hold(closed)
    (closed / "columns" / "of-root").touch(0o600)
    with _as_other():
        check_access(closed)
        os.seteuid(0)
        os.chown(closed / name, 0, 0)
        (closed / name).chmod(0o755 if (closed / name).is_dir() else 0o600)
        os.seteuid(OTHER)
        with pytest.raises(Refused, match=f"belongs to user root, this is {OTHER}") as refused:
            check_access(closed)
    assert refused.value.hint == f"chown -R {OTHER} {closed}"


@needs_root
def test_what_its_mode_or_the_host_keeps_from_a_target_is_named_with_the_remedy(
    closed: Path,
) -> None:
    _hold(closed)
    term = closed / "term"
    term.chmod(0o200)
    with _as_other(), pytest.raises(Refused, match=f"keeps user {OTHER} from {term}") as refused:
        check_access(closed)
    assert refused.value.hint == f"chmod -R u+rwX {closed}"


@needs_root
def test_a_token_of_another_user_is_refused_by_name(closed: Path) -> None:
    """It was a traceback."""
    closed.chmod(0o711)
    token = closed / TOKEN_NAME
    token.touch(0o600)
    disk = RealDisk(closed)

    async def serve() -> None:
        reports = TargetReports(disk, asyncio.Event())
        async with served("127.0.0.1:0", reports, answers=None, secret=b"", directory=closed):
            raise AssertionError("it serves")

    with _as_other(), pytest.raises(Refused, match=f"^cannot use {token}: Permission denied"):
        asyncio.run(serve())
    disk.close()


def _hold(directory: Path) -> None:
    """As a target of the other user has it."""
    directory.chmod(0o700)
    os.chown(directory, OTHER, OTHER)
    for name in DIRECTORIES:
        (directory / name).mkdir(0o700)
        os.chown(directory / name, OTHER, OTHER)
    for name in ("term", "catalog", "documents/record-1"):
        (directory / name).touch(0o600)
        os.chown(directory / name, OTHER, OTHER)


@contextmanager
def _as_other() -> Iterator[None]:
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


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
