"""Two processes save and load while at random who leads is killed, ended, stopped, or dies at a
write, while two or all coordinators are gone, and while members of etcd are killed, stand still or
are slow: nobody sees an error, each step has one record, and no process and no key is left over.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.local.processes import end_marked, find_marked, marked_environment
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, names_in, no_fault, pairs_in, proxied
from tests.ha.test_outages import leader_of
from tests.ha.writes import TRANSACTION, Assassin, Kind
from tests.stores.proxy import Fault, Proxy
from tests.waiting import wait_until

RUNS = ("one", "two")
WAIT_S = 60.0
STOPPED_S = (2.0, 10.0)
GONE_S = (0.0, 15.0)
SLOW_S = (0.02, 0.3)
EVERY_S = 20.0
MEMBERS_PART = 0.3
SECONDS = {"at-random": 1200.0, "every-20-s": 600.0}
"""Half an hour together."""
LEFT_S = 120.0
"""Until what was begun has ended, and stagers of whom nobody wants anything."""
UNUSUAL = ("copying", "outdated", "rebuilt", "unsettled/", "passed_over/")
"""Keys that nothing here leads to for good."""


class Harmed(SharedCluster):
    """Whose coordinators reach etcd by way of proxies, one before each member."""

    def __init__(self, directory: Path, etcd: Etcd, proxies: Sequence[Proxy]) -> None:
        ways = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        super().__init__(directory, etcd, Prefix(ways), targets=SEVEN, code="4+2")
        self.proxies = proxies


Harm = Callable[[Harmed, random.Random], None]


def save_on(url: str, run: str, stop: Path, said: Connection) -> None:
    """Until that file is there; says how many steps there are."""
    step = 0
    with ckpt.open(url) as store:
        while not stop.exists():
            step += 1
            state = {"w": np.arange(200_000) * step, "step": step}
            store.save(run, step, state).wait(WAIT_S)
            found = store.load(run, step)
            assert isinstance(found, dict)
            assert found["step"] == step
            assert np.array_equal(found["w"], state["w"])
            assert store.latest(run) == step
    said.send(step)


def rest(seconds: float) -> None:
    """Let the savers get somewhere."""
    threading.Event().wait(seconds)


def end_leader(cluster: Harmed, chance: random.Random) -> None:
    leader = cluster.leader()
    cluster.kill(leader, chance.choice((signal.SIGKILL, signal.SIGTERM)))
    rest(chance.uniform(0.0, 1.0))
    assert cluster.start(leader).ready


def end_two(cluster: Harmed, chance: random.Random) -> None:
    leader = cluster.leader()
    cluster.kill(leader)
    successor = cluster.leader(but=leader)
    rest(chance.uniform(0.0, 0.3))
    cluster.kill(successor)
    for id in (leader, successor):
        assert cluster.start(id).ready


def end_all(cluster: Harmed, chance: random.Random) -> None:
    ids = sorted(cluster.running)
    for id in ids:
        cluster.kill(id)
    rest(chance.uniform(*GONE_S))
    for id in ids:
        cluster.start(id)


def end_at_a_write(cluster: Harmed, chance: random.Random) -> None:
    """Ahead of the next one of some kind, or after it."""
    fault = chance.choice((Fault.CUT_BEFORE, Fault.CUT_AFTER))
    assassin = Assassin(cluster, fault)
    assassin.kind = chance.choice((Kind("row/"), Kind("record/"), Kind("position")))
    for proxy in cluster.proxies:
        proxy.decide = assassin
    wait_until(lambda: bool(assassin.killed), "it writes", timeout_s=WAIT_S)
    for proxy in cluster.proxies:
        proxy.decide = no_fault
    (killed,) = assassin.killed
    assert cluster.start(killed).ready


def stop_leader(cluster: Harmed, chance: random.Random) -> None:
    process = cluster.running[cluster.leader()].process
    process.send_signal(signal.SIGSTOP)
    rest(chance.uniform(*STOPPED_S))
    process.send_signal(signal.SIGCONT)


def end_member(cluster: Harmed, chance: random.Random) -> None:
    """The kit asks the first one."""
    member = chance.choice(cluster.etcd.members[1:])
    member.kill()
    rest(chance.uniform(0.0, 2.0))
    member.start()
    member.wait_up()


def end_etcd_s_leader(cluster: Harmed, chance: random.Random) -> None:
    member = cluster.etcd.members[leader_of(cluster.etcd)]
    member.kill()
    rest(chance.uniform(0.0, 2.0))
    member.start()
    member.wait_up()


def stop_majority(cluster: Harmed, chance: random.Random) -> None:
    for member in cluster.etcd.members[1:]:
        member.stop()
    rest(chance.uniform(*STOPPED_S))
    for member in cluster.etcd.members[1:]:
        member.go_on()


def slow_etcd(cluster: Harmed, chance: random.Random) -> None:
    delay_s = chance.uniform(*SLOW_S)
    for proxy in cluster.proxies:
        proxy.delay_s = lambda request: delay_s if request.path == TRANSACTION else 0.0
    rest(chance.uniform(1.0, 5.0))
    for proxy in cluster.proxies:
        proxy.delay_s = lambda _request: 0.0


def kill_and_rest(cluster: Harmed, chance: random.Random) -> None:
    """And a member of etcd now and then."""
    leader = cluster.leader()
    cluster.kill(leader, signal.SIGKILL)
    assert cluster.start(leader).ready
    rest(chance.uniform(0.0, EVERY_S / 2))
    if chance.random() < MEMBERS_PART:
        end_member(cluster, chance)
    rest(EVERY_S / 2)


HARMS: tuple[Harm, ...] = (
    end_leader, end_two, end_all, end_at_a_write, stop_leader, end_member, end_etcd_s_leader,
    stop_majority, slow_etcd,
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harmed]:
    word, runtime = secrets.token_hex(8), Path(tempfile.mkdtemp(prefix="ckpt-soak-"))
    # One of pytest's own processes, for as long as it runs: begun within, it would be found left.
    resource_tracker.ensure_running()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, runtime)
        stack.callback(end_marked, word, LEFT_S)
        stack.enter_context(marked_environment(word, runtime))
        etcd = stack.enter_context(Etcd(tmp_path / "etcd", 3))
        proxies = [stack.enter_context(proxied(member, no_fault)) for member in etcd.members]
        with Harmed(tmp_path, etcd, proxies) as made:
            monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
            yield made
        check_nothing_is_left(made, word)


def check_nothing_is_left(cluster: Harmed, word: str) -> None:
    """Its coordinators and targets have ended; only etcd runs."""
    members = {member.pid for member in cluster.etcd.members}
    left = lambda: [one for one in find_marked(word) if one.pid not in members]  # noqa: E731
    wait_until(lambda: not left(), "all processes have ended", LEFT_S)
    names = names_in(cluster.etcd, cluster.place)
    assert not [name for name in names if name.startswith(("leader", "coordinator/"))]
    leases = lambda: asked(cluster.etcd.members[0], "/v3/lease/leases", {})  # noqa: E731
    wait_until(lambda: not leases().get("leases"), "each lease has ended", LEFT_S)


def check_keys(cluster: Harmed) -> None:
    """Nothing is under way, each commit has its record, and who is written down runs."""

    def states() -> dict[str, str]:
        found = pairs_in(cluster.etcd, cluster.place).items()
        rows = {name[4:]: b64decode(value) for name, value in found if name.startswith("row/")}
        return {name: json.loads(value)["state"] for name, value in rows.items()}

    settled = lambda: set(states().values()) <= {"committed", "aborted"}  # noqa: E731
    wait_until(settled, "every attempt has ended", LEFT_S)
    names = names_in(cluster.etcd, cluster.place)
    records = {name[7:] for name in names if name.startswith("record/")}
    assert records == {name for name, state in states().items() if state == "committed"}
    roll = {name[12:] for name in names if name.startswith("coordinator/")}
    assert roll == set(cluster.running)
    assert not [name for name in names if name.startswith(UNUSUAL)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SECONDS)
def test_two_processes_save_on_whatever_becomes_of_who_leads(
    cluster: Harmed, tmp_path: Path, kind: str
) -> None:
    """$CKPT_SOAK_S seconds, by $CKPT_SOAK_SEED."""
    faulthandler.cancel_dump_traceback_later()  # It takes minutes.
    harms = HARMS if kind == "at-random" else (kill_and_rest,)
    seed = int(os.environ.get("CKPT_SOAK_SEED", time.time_ns() % 1_000_000))
    end_s = time.monotonic() + float(os.environ.get("CKPT_SOAK_S", SECONDS[kind]))
    chance, stop = random.Random(seed), tmp_path / "stop"
    done: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe(duplex=False) for _ in RUNS]
    savers = [
        spawn.Process(target=save_on, args=(cluster.url, run, stop, said))
        for run, (_, said) in zip(RUNS, ends, strict=True)
    ]
    for saver in savers:
        saver.start()
    try:
        while time.monotonic() < end_s and all(saver.is_alive() for saver in savers):
            rest(chance.uniform(0.3, 4.0))
            harm = chance.choice(harms)
            done[harm.__name__] += 1
            harm(cluster, chance)
    finally:
        stop.touch()
        for saver in savers:
            saver.join()
    assert [saver.exitcode for saver in savers] == [0, 0], f"seed {seed}"
    records = [name.split("/") for name in names_in(cluster.etcd, cluster.place)]
    sys.stdout.write(f"seed {seed}: {dict(done)}\n")
    for run, (heard, _) in zip(RUNS, ends, strict=True):
        steps = sorted(int(name[2]) for name in records if name[:2] == ["record", run])
        count = heard.recv()
        sys.stdout.write(f"{run}: {count} steps\n")
        assert steps == list(range(1, count + 1)), f"seed {seed}"
    check_keys(cluster)
    for id, daemon in cluster.running.items():
        assert daemon.process.poll() is None, f"seed {seed}: {id}"
        assert cluster.logged(id, "defect") == 0, f"seed {seed}: {id}"
