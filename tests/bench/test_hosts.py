"""Ranks on two agents are one launch; who does not know the secret starts nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.aio.secret import make_secret, read_secret
from ckpt.base.errors import Refused, Unauthorized
from ckptbench.cli import main
from ckptbench.hosts.remote import Hosts, parse_hosts
from ckptbench.hosts.words import Drop, End, Tell


@contextmanager
def agent(secret: Path) -> Iterator[str]:
    """A real one, on a free port; its address."""
    command = [sys.executable, "-P", "-m", "ckptbench.cli", "agent", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, f"--secret-file={secret}"],
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "CKPT_SECRET_FILE"},
    ) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["address"])
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_two_hosts_save_and_read_what_the_other_one_wrote(tmp_path: Path) -> None:
    secret, report = tmp_path / "secret", tmp_path / "a.json"
    make_secret(secret)
    job = tmp_path / "job.fio"
    job.write_text(
        f"[global]\nioengine=posix\ndirectory={tmp_path}\nnumjobs=1\nsize=64k\n"
        "[save]\nrw=write\nloops=2\n[load]\nstonewall\nrw=read\nreader=rotate\n"
    )
    with agent(secret) as first, agent(secret) as second:
        flags = [f"--hosts={first},{second}", f"--secret-file={secret}", f"--output={report}"]
        assert main([str(job), *flags, "--output-format=json+"]) == 0
        with Hosts([first], read_secret(secret)) as hosts:
            # What one session started is nobody else's, and what never was is refused.
            with pytest.raises(Refused, match="started no such ranks"):
                hosts.ask(0, Tell("group", 1, (("wait",),)))
            hosts.ask(0, End("group", kindly=True))
            hosts.ask(0, Drop((str(tmp_path / "gone"),)))
            assert hosts.start_skew_s() > 0
    stats = json.loads(report.read_text())["client_stats"]
    names = [one["jobname"] for one in stats]
    assert names == ["save", "save", "All clients", "load", "load", "All clients"]
    assert [one["write"]["total_ios"] for one in stats[:3]] == [2, 2, 4]
    assert [one["read"]["total_ios"] for one in stats[3:]] == [1, 1, 2]
    assert {f"{one['hostname']}:{one['port']}" for one in stats[:2]} == {first, second}
    assert stats[5]["checkpoint"]["verified"] is True
    assert not list(tmp_path.glob("ckptbench-*"))


def test_another_secret_opens_nothing(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    make_secret(right)
    make_secret(wrong)
    with agent(right) as address, Hosts([address], read_secret(wrong)) as hosts:
        refused = pytest.raises(Unauthorized, match=address)
        with refused:
            hosts.start_skew_s()


def test_hosts_need_a_storage_that_all_of_them_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["save", "--size=1m", "--hosts=a,b"]) == 2
    assert "all of them see" in capsys.readouterr().err
    assert parse_hosts("a, b:9000,") == ("a:8765", "b:9000")
