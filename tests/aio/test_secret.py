"""The cluster's secret is found in one place, is its owner's alone, and is made once."""

from __future__ import annotations

import os
import pwd
import socket
from contextlib import closing
from pathlib import Path

import pytest

from ckpt.aio.secret import SECRET_BYTES, find_secret_file, make_secret, read_secret
from ckpt.base.errors import Refused, Unauthorized


def test_the_environment_stands_before_a_flag_the_directory_and_the_home(
    tmp_path: Path,
) -> None:
    environ = {"CKPT_SECRET_FILE": "/x", "XDG_CONFIG_HOME": str(tmp_path)}
    assert find_secret_file(tmp_path, environ, named=Path("/f")) == Path("/x")
    assert find_secret_file(tmp_path, {}, named=Path("/f")) == Path("/f")
    assert find_secret_file(tmp_path, {}) == tmp_path / "secret"
    assert (
        find_secret_file(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "ckpt" / "secret"
    )


def test_a_user_without_a_home_hears_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a container's, whose number no list of users knows."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(Refused, match=r"no home directory.*set CKPT_SECRET_FILE"):
        find_secret_file(None, {})


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(path)
    first = read_secret(path)
    make_secret(path)
    assert read_secret(path) == first
    assert len(first) == SECRET_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_whoever_has_no_secret_hears_where_it_may_come_from(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized) as refused:
        read_secret(tmp_path / "secret")
    assert "No such file" in refused.value.message
    assert "set CKPT_SECRET_FILE to a copy of it" in refused.value.hint
    assert f"`openssl rand -hex {SECRET_BYTES}` makes one" in refused.value.hint


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(path)
    path.chmod(0o640)
    with pytest.raises(Refused, match="chmod 600"):
        read_secret(path)


@pytest.mark.parametrize("text", ["", "abcd", "no hex at all", "ab" * 31])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Refused, match="openssl rand -hex 32"):
        read_secret(path)


def test_what_is_no_file_is_refused_by_what_it_is(tmp_path: Path) -> None:
    """A pipe that nobody writes into is not waited for."""
    pipe, door = tmp_path / "pipe", tmp_path / "door"
    os.mkfifo(pipe, 0o600)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(door))
        for path, what in (
            (tmp_path, "directory"), (pipe, "pipe"), (door, "socket"),
            (Path("/dev/zero"), "device"),
        ):  # fmt: skip
            with pytest.raises(Refused, match=f"the secret {path} is a {what}, not a file"):
                read_secret(path)


def test_a_missing_secret_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match="CKPT_SECRET_FILE"):
        read_secret(tmp_path / "secret")
