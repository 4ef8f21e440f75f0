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
from ckpt.base.errors import Refused, Unauthorized, Unavailable
from ckpt.erasure.code import Code
from ckptbench.cli import main
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.hosts.remote import Hosts, parse_hosts
from ckptbench.hosts.words import Drop, End, Tell
from ckptbench.results import HostSpent, Spent
from ckptbench.run.counters import add_hosts
from tests.waiting import WAIT_S, wait_until

CKPTBENCH = [sys.executable, "-P", "-m", "ckptbench.cli"]


def started(secret: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A real agent on a free port, and its address."""
    command = [*CKPTBENCH, "agent", "--listen", "127.0.0.1:0"]
    # One that is killed cannot clear its folder: it lies below the test's own.
    environ = {**os.environ, "CKPT_SECRET_FILE": str(secret), "TMPDIR": str(secret.parent)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    return process, str(json.loads(process.stdout.readline())["address"])


@contextmanager
def agent(secret: Path) -> Iterator[str]:
    """The address of one that is ended by SIGTERM."""
    process, address = started(secret)
    with process:
        try:
            yield address
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
    for one in stats[0]["checkpoint"]["checkpoints"]:
        spent = one["spent"]
        assert [host["host"] for host in spent["hosts"]] == [first, second]
        assert spent["device_written"] == sum(host["device_written"] for host in spent["hosts"])
        assert spent["device_written"] >= 2 * 65536, "each rank's file is synced"
        assert len({host["machine"] for host in spent["hosts"]}) == 1
    assert not list(tmp_path.glob("ckptbench-*"))


@pytest.mark.usefixtures("warm_daemons")
def test_what_agents_count_of_stagers_and_networks_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "a.json"
    plan = ClusterPlan(Code(2, 1), targets=3, discard=False, tcp=True, directory=tmp_path)
    with BenchCluster(plan) as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        secret = Path(cluster.environment["CKPT_SECRET_FILE"])
        with agent(secret) as first, agent(secret) as second:
            words = ["save", f"--url={cluster.url}", "--size=4Mi", f"--hosts={first},{second}"]
            formats = ["--output-format=json", f"--output={report}"]
            assert main([*words, *formats, "--warmups=1", "--loops=2"]) == 0
    (phase,) = json.loads(report.read_text())["client_stats"][-1]["checkpoint"]["phases"]
    assert phase["cpu_s_per_gb"]["stager"] > 0
    assert phase["wire_by_payload"] is None, "no loopback is the run's own"
    assert phase["hosts_by_payload"] >= 1.5, "n/k, and what else passed"


def test_what_hosts_counted_is_added_and_shared_interfaces_count_once() -> None:
    def host(machine: str, sent: int) -> HostSpent:
        return HostSpent(machine, {"stager": 0.5}, 1, 10, 7, sent, private_bytes=sent)

    alone = Spent({"trainer": 1.0, "stager": 0.25}, device_read=0, device_written=0)
    assert add_hosts(alone, ()) == alone
    assert (alone.sent, alone.received) == (None, None)
    found = add_hosts(alone, [host("a", 100), host("a", 101), host("b", 50)])
    assert found.cpu_s == {"trainer": 1.0, "stager": 1.75}
    assert (found.device_read, found.device_written, found.private_bytes) == (3, 30, 101)
    assert (found.sent, found.received) == (151, 14)


def test_an_agent_that_is_killed_ends_the_run_and_is_named(tmp_path: Path) -> None:
    secret, files = tmp_path / "secret", tmp_path / "files"
    make_secret(secret)
    files.mkdir()
    words = ["save", "--ioengine=posix", f"--directory={files}", "--size=64k", "--loops=1000000"]
    with agent(secret) as first:
        killed, second = started(secret)
        flags = [f"--hosts={first},{second}", f"--secret-file={secret}"]
        run = subprocess.Popen([*CKPTBENCH, *words, *flags], stdout=subprocess.PIPE, text=True)
        with killed, run:
            wait_until(lambda: len(list(files.rglob("*.bin"))) >= 2, "a rank of each host saves")
            killed.kill()
            told, _ = run.communicate(timeout=WAIT_S)
        assert run.returncode == Unavailable.exit_code
        assert f"ERROR  save: {second}: " in told
        assert "is `ckptbench agent` running there?" in told
        with Hosts([first], read_secret(secret)) as hosts:
            assert hosts.start_skew_s() > 0, "the other one takes the next run"


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
