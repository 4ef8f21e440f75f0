"""One machine's cluster as processes: it starts, restarts, refuses, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import ckpt
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.secret import make_secret, read_secret
from ckpt.base.errors import Refused
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckpt_client.local.cluster import is_supervised
from ckptd.http.client import HttpAsker
from ckptd.local.cluster_file import ClusterOptions, load_or_create, read_cluster
from ckptd.local.supervisor import IDLE_POLL_S
from tests.harm import WITHOUT_LIBRARY, WRONG_ISAL, harmed
from tests.waiting import WAIT_S, wait_until
from tests.warm_child import start_daemon

Ready = dict[str, object]
DEAF = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"""


class Local:
    """A supervisor of DIR."""

    def __init__(self, directory: Path, *flags: str, within: Sequence[str] = ()) -> None:
        self.directory = directory
        self.errors = directory.with_suffix(".errors").open("ab")
        self.process = start_daemon(
            ["local", str(directory), *flags], stderr=self.errors.fileno(), within=within
        )

    def ready(self) -> Ready:
        path = self.directory / "ready.json"
        wait_until(lambda: path.exists() or self.process.poll() is not None, "ready")
        found: Ready = json.loads(path.read_text())
        return found

    def target_pids(self) -> dict[str, int | None]:
        found = json.loads((self.directory / "ready.json").read_text())
        return {target["id"]: target["pid"] for target in found["targets"]}

    def all_pids(self) -> list[int]:
        ready = json.loads((self.directory / "ready.json").read_text())
        pids = [ready["pid"], ready["coordinator_pid"], *self.target_pids().values()]
        return [pid for pid in pids if pid is not None]

    def client(self) -> RpcClient:
        secret = read_secret(self.directory / "secret")
        return RpcClient(str(self.ready()["address"]), Caller(secret, Role.ADMIN, "test"))

    def live(self) -> list[str]:
        with self.client() as client:
            _, bulk = client.call(Ask("status"))
        targets = json.loads(bytes(bulk))["targets"]
        return [target["id"] for target in targets if target["state"] == "live"]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)

    def close(self) -> None:
        """Nothing of it is left."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


@pytest.fixture
def locals_(tmp_path: Path) -> Iterator[list[Local]]:
    running: list[Local] = []
    yield running
    for each in running:
        each.close()


def start(locals_: list[Local], tmp_path: Path, *flags: str) -> Local:
    locals_.append(local := Local(tmp_path / "d", *flags))
    return local


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def test_when_it_says_ready_every_target_is_live_and_a_stop_leaves_nothing(
    tmp_path: Path, locals_: list[Local]
) -> None:
    local = start(locals_, tmp_path, "--targets", "3", "--code", "2+1")
    ready = local.ready()
    assert ready["pid"] == local.process.pid
    assert local.live() == ["t0", "t1", "t2"]
    assert read_cluster(tmp_path / "d" / "cluster.toml").cluster == ready["cluster"]
    pids = local.all_pids()
    assert len(pids) == 5
    os.kill(pids[-1], signal.SIGSTOP)
    assert local.stop() == 0
    assert all(is_gone(pid) for pid in pids)
    assert not (tmp_path / "d" / "ready.json").exists()


def test_a_killed_coordinator_comes_back_at_its_address_and_the_targets_find_it(
    tmp_path: Path, locals_: list[Local]
) -> None:
    local = start(locals_, tmp_path, "--targets", "2")
    ready = local.ready()
    pid = ready["coordinator_pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: local.ready()["coordinator_pid"] not in (pid, None), "a new coordinator")
    assert local.ready()["address"] == ready["address"]
    wait_until(lambda: local.live() == ["t0", "t1"], "both targets are live again")


def test_a_disk_that_takes_no_ready_file_ends_nothing_and_is_tried_again(
    locals_: list[Local], tmp_path: Path
) -> None:
    local = start(locals_, tmp_path, "--targets", "1", "--code", "1+0", "--unprotected")
    before = local.ready()
    target = local.target_pids()["t0"]
    in_its_way = local.directory / f".ready.json.{before['pid']}"
    in_its_way.mkdir()
    os.kill(int(str(before["coordinator_pid"])), signal.SIGKILL)
    log = local.directory.with_suffix(".errors")
    wait_until(lambda: "ready.json not written" in log.read_text(), "it was tried")
    assert local.ready() == before
    in_its_way.rmdir()
    old = (None, before["coordinator_pid"])
    wait_until(lambda: local.ready()["coordinator_pid"] not in old, "the file says what is")
    assert local.target_pids()["t0"] == target
    wait_until(lambda: local.live() == ["t0"], "the target is live again")
    assert local.stop() == 0


def test_a_cluster_whose_directory_was_removed_ends_and_leaves_a_new_one_alone(
    locals_: list[Local], tmp_path: Path
) -> None:
    old = start(locals_, tmp_path, "--targets", "2")
    old.ready()
    pids = old.all_pids()
    old.directory.rename(tmp_path / "away")
    new = start(locals_, tmp_path, "--targets", "2")
    ready = new.ready()
    assert old.process.wait(timeout=WAIT_S) == 0
    assert all(is_gone(pid) for pid in pids)
    assert new.ready() == ready
    assert new.live() == ["t0", "t1"]


def test_a_killed_target_comes_back_a_held_one_not_until_it_is_released(
    tmp_path: Path, locals_: list[Local]
) -> None:
    local = start(locals_, tmp_path, "--targets", "2")
    local.ready()
    first, second = local.target_pids()["t0"], local.target_pids()["t1"]
    assert first is not None
    assert second is not None
    (tmp_path / "d" / "targets" / "t1" / "held").touch()
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: local.target_pids()["t0"] not in (first, None), "t0 runs again")
    wait_until(lambda: local.target_pids()["t1"] is None, "t1 is down")
    (tmp_path / "d" / "targets" / "t1" / "held").unlink()
    wait_until(lambda: local.target_pids()["t1"] not in (second, None), "t1 runs again")


def test_what_its_starter_ignores_or_blocks_keeps_nobody_from_running_again_or_ending(
    tmp_path: Path, locals_: list[Local]
) -> None:
    """A training that wants no zombies, and a thread that leaves signals to another one."""
    within = [sys.executable, "-c", DEAF]
    locals_.append(local := Local(tmp_path / "d", "--targets", "1", within=within))
    local.ready()
    killed = local.target_pids()["t0"]
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: local.target_pids()["t0"] not in (killed, None), "t0 runs again")
    pids = local.all_pids()
    assert local.stop() == 0
    assert all(is_gone(pid) for pid in pids)


def test_with_restart_never_a_killed_target_stays_down(
    tmp_path: Path, locals_: list[Local]
) -> None:
    local = start(locals_, tmp_path, "--targets", "2", "--restart", "never")
    local.ready()
    pid = local.target_pids()["t0"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: local.target_pids()["t0"] is None, "t0 is down")
    wait_until(lambda: local.live() == ["t1"], "the coordinator noticed")


def test_a_target_that_cannot_start_does_not_keep_the_others_from_serving(
    tmp_path: Path, locals_: list[Local]
) -> None:
    (tmp_path / "d" / "targets" / "t1").mkdir(parents=True)
    (tmp_path / "d" / "targets" / "t1" / "target.toml").write_text("no TOML [")
    local = start(locals_, tmp_path, "--targets", "2", "--restart", "never")
    local.ready()
    assert local.live() == ["t0"]
    assert "target.toml" in (tmp_path / "d" / "logs" / "t1.log").read_text()


def test_a_second_supervisor_is_refused_and_one_after_a_kill_takes_over(
    tmp_path: Path, locals_: list[Local]
) -> None:
    first = start(locals_, tmp_path, "--targets", "2")
    boot = first.ready()["boot"]
    pids = first.all_pids()
    second = start(locals_, tmp_path)
    assert second.process.wait(timeout=30) == 11
    first.process.kill()
    third = start(locals_, tmp_path)
    wait_until(lambda: third.ready()["boot"] != boot, "the third supervisor is ready")
    assert all(is_gone(pid) for pid in pids)
    assert third.live() == ["t0", "t1"]


def test_the_word_of_one_that_was_killed_goes_before_another_starts_anything(
    tmp_path: Path, locals_: list[Local]
) -> None:
    """Who opens DIR meanwhile would ask an address where nobody is."""
    killed = start(locals_, tmp_path, "--targets", "1")
    killed.ready()
    killed.process.kill()
    killed.process.wait()
    assert (tmp_path / "d" / "ready.json").exists()
    wrong = start(locals_, tmp_path, "--targets", "2")
    assert wrong.process.wait(timeout=30) == 2
    assert not (tmp_path / "d" / "ready.json").exists()


def test_a_question_waits_for_a_cluster_that_somebody_just_starts(
    tmp_path: Path, locals_: list[Local]
) -> None:
    first = start(locals_, tmp_path, "--targets", "1", "--code", "1+0", "--unprotected")
    first.ready()
    with ckpt.open(f"ckpt+local://{tmp_path / 'd'}") as store:
        first.stop()
        start(locals_, tmp_path)
        wait_until(lambda: is_supervised(tmp_path / "d"), "the next supervisor")
        assert store.latest("run") is None


def test_it_stops_when_nobody_was_connected_for_the_linger_time(
    tmp_path: Path, locals_: list[Local]
) -> None:
    (tmp_path / "d").mkdir()
    with (tmp_path / "d" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # As whoever opens the store, until it is connected.
        local = start(locals_, tmp_path, "--targets", "1", "--linger-s", "0")
        local.ready()
        client = local.client()
        client.call(Ask("status"))
    pids = local.all_pids()
    client.close()
    assert local.process.wait(timeout=30) == 0
    assert all(is_gone(pid) for pid in pids)
    assert not (tmp_path / "d" / "ready.json").exists()


def test_a_service_stays_without_a_client_whatever_its_directory_says_of_rest(
    tmp_path: Path, locals_: list[Local]
) -> None:
    """Of a cluster that an open made, and that rests at once."""
    options = ClusterOptions(targets=1, linger_s=0.0, unprotected=True)
    (tmp_path / "d").mkdir()
    load_or_create(tmp_path / "d", options, socket.gethostname(), "test")
    local = start(locals_, tmp_path)
    asker = HttpAsker(str(local.ready()["http"]), read_secret(local.directory / "secret"))

    def rest_s() -> float:
        told = asker.ask("/v1/sessions")
        assert isinstance(told, dict)
        return float(told["idle_s"])

    wait_until(lambda: rest_s() > 3 * IDLE_POLL_S, "nobody was there for long")
    assert local.process.poll() is None
    assert local.stop() == 0


def test_options_that_contradict_the_directory_are_refused_naming_both(tmp_path: Path) -> None:
    load_or_create(tmp_path, ClusterOptions(targets=3), "host", "test")
    again = load_or_create(tmp_path, ClusterOptions(targets=3, code="2+1"), "host", "test")
    assert (again.targets, again.code, again.restart) == (3, "2+1", "always")
    with pytest.raises(Refused, match=r"targets=4 contradicts targets=3"):
        load_or_create(tmp_path, ClusterOptions(targets=4), "host", "test")
    with pytest.raises(Refused, match=r"belongs to host host, this is other"):
        load_or_create(tmp_path, ClusterOptions(), "other", "test")


def test_a_secret_file_that_is_named_is_the_clusters_and_every_open_finds_it(
    locals_: list[Local], tmp_path: Path
) -> None:
    named = tmp_path / "ours"
    make_secret(named)
    local = start(locals_, tmp_path, "--targets", "1", "--secret-file", str(named))
    assert local.ready()
    wait_until(lambda: local.live() == ["t0"], "its target is live")  # Asked with DIR/secret.
    assert read_secret(local.directory / "secret") == read_secret(named)
    assert local.stop() == 0
    other = tmp_path / "another"
    make_secret(other)
    line = [sys.executable, "-m", "ckptd.cli", "local", str(local.directory)]
    refused = subprocess.run(
        [*line, "--secret-file", str(other)], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert str(other) in refused.stderr
    again = start(locals_, tmp_path, "--secret-file", str(named))
    assert again.ready()
    wait_until(lambda: again.live() == ["t0"], "it serves again")
    assert again.stop() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ClusterOptions(targets=5, code="4+2"), "needs 6 targets"),
        (ClusterOptions(targets=5, code="4+0"), "unprotected=1"),
        (ClusterOptions(targets=0), "1 to 64"),
        (ClusterOptions(restart="sometimes"), "always or never"),
        (ClusterOptions(linger_s=-1.0), "negative"),
        (ClusterOptions(cell_bytes=1000), "multiple"),
    ],
)
def test_options_that_make_no_cluster_are_refused_before_anything_is_written(
    tmp_path: Path, options: ClusterOptions, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        load_or_create(tmp_path, options, "host", "test")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "code"), [(7, "4+2"), (6, "4+2"), (5, "2+1"), (3, "2+1"), (2, "1+1"), (1, "1+0")]
)
def test_the_code_follows_from_the_number_of_targets(
    tmp_path: Path, targets: int, code: str
) -> None:
    made = load_or_create(tmp_path, ClusterOptions(targets=targets), "a 'host' \\", "test")
    assert made.code == code
    assert read_cluster(tmp_path / "cluster.toml") == made


def test_pretended_domains_are_one_device_for_each_target(tmp_path: Path) -> None:
    made = load_or_create(tmp_path, ClusterOptions(pretend_domains=True), "host", "test")
    assert made.domain("t3", "259:1") == "local/local/host/dev-t3"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (WITHOUT_LIBRARY, ("ckpt's native library cannot be used", "pip install ckpt-burst")),
        (WRONG_ISAL, ("erasure code gives wrong answers; unsafe to start", "check memory and CPU")),
    ],
)
def test_nothing_begins_without_native_code_that_answers_well(
    tmp_path: Path, code: str, said: tuple[str, str]
) -> None:
    environ = harmed(tmp_path, code)
    directory = tmp_path / "burst"
    done = subprocess.run(
        [sys.executable, "-m", "ckptd.cli", "local", directory], env=environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert all(words in done.stderr for words in said)
    assert not directory.exists()
