"""The cluster's secret is found in one place, is its owner's alone, and is made once."""

from __future__ import annotations

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


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(path)
    first = read_secret(path)
    make_secret(path)
    assert read_secret(path) == first
    assert len(first) == SECRET_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


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


def test_a_directory_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is a directory"):
        read_secret(tmp_path)


def test_a_missing_secret_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match="CKPT_SECRET_FILE"):
        read_secret(tmp_path / "secret")
