"""A local cluster's DIR remembers what it was made as,
and its lock says whether a supervisor lives.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt_client.local.cluster import check_options, is_supervised, opened_cluster, start_arguments
from ckpt_client.local.detach import start_detached
from ckpt_client.locate import Locator, read_ready
from ckpt_client.url import LocalOptions, LocalUrl
from tests.client.clikit import run
from tests.no_descriptors import no_descriptors
from tests.waiting import wait_until

WAIT_S = 30.0


def _make(directory: Path, host: str | None = None) -> None:
    (directory / "cluster.toml").write_text(
        f'cluster = "c0"\nhost = "{host or socket.gethostname()}"\n'
        'targets = 7\ncode = "4+2"\nkeep = 0\nrestart = "never"\n'
        "linger_s = 300.0\ncapacity_bytes = 0\npretend_domains = false\n"
        "cell_bytes = 524288\nunprotected = false\n"
    )


def test_equal_options_and_no_options_are_taken(tmp_path: Path) -> None:
    _make(tmp_path)
    check_options(tmp_path, LocalOptions())
    check_options(tmp_path, LocalOptions(targets=7, code="4+2", restart="never", linger=300.0))


@pytest.mark.parametrize(
    ("options", "asked", "kept"),
    [
        (LocalOptions(targets=6), "targets=6", "targets=7"),
        (LocalOptions(code="2+1"), r"code=2\+1", r"code=4\+2"),
        (LocalOptions(restart="always"), "restart=always", "restart=never"),
        (LocalOptions(pretend_domains=True), "pretend_domains=1", "pretend_domains=0"),
        (LocalOptions(keep=3), "keep=3", "keep=0"),
    ],
)
def test_a_contradiction_names_both_sides(
    tmp_path: Path, options: LocalOptions, asked: str, kept: str
) -> None:
    _make(tmp_path)
    with pytest.raises(Refused, match=asked) as caught:
        check_options(tmp_path, options)
    assert kept.replace("\\", "") in str(caught.value)


def test_another_host_is_refused(tmp_path: Path) -> None:
    _make(tmp_path, "elsewhere")
    with pytest.raises(Refused, match="elsewhere"):
        check_options(tmp_path, LocalOptions())


def test_a_new_directory_is_checked_before_anything_is_started(tmp_path: Path) -> None:
    url = LocalUrl(str(tmp_path / "new"), LocalOptions(targets=3, code="4+2"))
    with pytest.raises(Refused, match="needs 6 targets"), opened_cluster(url, 1.0):
        raise AssertionError("it must not open")
    assert not (tmp_path / "new" / "secret").exists()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    directory = str(tmp_path / os.fsdecode(b"\xfc"))
    url = LocalUrl(directory, LocalOptions())
    wrong = pytest.raises(Refused, match=r"udcfc is no text in utf-8; say it")
    with wrong, opened_cluster(url, WAIT_S):
        raise AssertionError("it must not open")


def test_the_supervisor_is_told_what_the_url_says(tmp_path: Path) -> None:
    options = LocalOptions(code="8+2", linger=2.5, pretend_domains=True, unprotected=False)
    assert start_arguments(tmp_path, options) == [
        "-m", "ckptd.cli", "local", str(tmp_path), "--json", "--ends-idle",
        "--targets", "10", "--code", "8+2", "--linger-s", "2.5", "--pretend-domains",
    ]  # fmt: skip


def test_a_held_lock_means_a_supervisor(tmp_path: Path) -> None:
    assert not is_supervised(tmp_path)
    lock = os.open(tmp_path / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    assert not is_supervised(tmp_path)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert is_supervised(tmp_path)
    os.close(lock)
    assert not is_supervised(tmp_path)


def test_an_open_waits_for_another_open_and_no_longer_than_asked(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    url = LocalUrl(str(tmp_path), LocalOptions())
    with pytest.raises(Unavailable, match="still starting"), opened_cluster(url, 0.05):
        raise AssertionError("it must not open")
    os.close(lock)


def test_the_ready_file_says_where_the_coordinator_is(tmp_path: Path) -> None:
    locator = Locator(str(tmp_path), "")
    with pytest.raises(Unavailable, match="not running"):
        locator.address()
    text = '{"address": "127.0.0.1:7", "pid": 1, "cluster": "c", "boot": "b", "later": []}'
    (tmp_path / "ready.json").write_text(text)
    assert locator.address() == "127.0.0.1:7"
    (tmp_path / "ready.json").write_text(text[:20])
    assert read_ready(tmp_path) is None
    assert Locator("", "h:1").address() == "h:1"


def test_what_starts_on_its_own_finds_modules_where_this_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tmp_path / "relative", tmp_path / "made"
    folder.mkdir()
    (folder / "found_by_path.py").write_text("import sys; open(sys.argv[1], 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", folder.name)
    start_detached(["-m", "found_by_path", str(made)], log=tmp_path / "log")
    wait_until(made.exists, "its module ran")


@pytest.mark.parametrize("executable", ["", None])
def test_a_program_that_has_python_in_it_hears_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    """Without a name in sys.executable the first save was a TypeError."""
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(Refused, match=r"part of another program.*set sys\.executable"):
        start_detached(["-m", "json.tool"], log=tmp_path / "log")


def test_what_starts_on_its_own_needs_no_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job whose scratch is cleaned, or whose tree is checked out again, while it trains."""
    gone, made = tmp_path / "gone", tmp_path / "made"
    gone.mkdir()
    (tmp_path / "found_by_path.py").write_text("import sys; open(sys.argv[1], 'w').close()")
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("src", str(tmp_path))))
    gone.rmdir()
    start_detached(["-m", "found_by_path", str(made)], log=tmp_path / "log")
    wait_until(made.exists, "its module ran")


def test_an_unknown_word_in_ckpt_wire_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemons would inherit it, and reach each other never."""
    monkeypatch.setenv("CKPT_WIRE", "tls")
    url = LocalUrl(str(tmp_path / "burst"), LocalOptions(targets=3))
    with pytest.raises(Refused, match="CKPT_WIRE 'tls'"), opened_cluster(url, WAIT_S):
        raise AssertionError
    assert not (tmp_path / "burst").exists()


def test_a_program_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CkptError, match=r"ckpt_client\.stager by '/nowhere/python': No such file"):
        start_detached(["-m", "ckpt_client.stager"], log=tmp_path / "log")


def test_targets_without_a_place_for_sockets_serve_over_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(long))
    try:
        with ckpt.open(f"ckpt+local://{long}/burst?targets=3&code=2+1") as store:
            store.save("r", 1, {"a": np.arange(5)}).wait(WAIT_S)
            assert store.latest("r") == 1
    finally:
        assert run("local", "stop", f"{long}/burst").code == 0
    assert "clients of this host come over TCP" in (long / "burst/logs/t0.log").read_text()


def test_a_process_without_a_free_descriptor_is_not_said_to_have_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "supervisor.lock").touch()
    with no_descriptors():
        with pytest.raises(Unavailable, match=r"is served: Too many open files.*ulimit -n"):
            is_supervised(tmp_path)
        with pytest.raises(Unavailable, match="no connection can be made: Too many"):
            LinkLoop()
