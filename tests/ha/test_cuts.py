"""Hosts that do not hear each other, in both directions or in one, and links that lose frames. With
root; else one loud line.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import ckpt
from tests.ha.clusters import FOUR, SharedCluster
from tests.ha.members import Etcd
from tests.ha.network import Network, leftovers, why_not
from tests.ha.places import Prefix
from tests.ha.test_takeovers import RUN, WAIT_S, check_loads, one_record_a_step, state
from tests.waiting import wait_until

ETCD, TARGETS, CLIENTS = "e", "t", ""
CUT_S = 5.0
LOST_PERCENT = 2.0
DATAGRAMS = 100
BOTH, TO, FROM = "both", "to", "from"


class ApartCluster(SharedCluster):
    """Each coordinator is a host, etcd is one, all targets are; clients are on the test's."""

    def __init__(self, directory: Path, etcd: Etcd, network: Network) -> None:
        super().__init__(directory, etcd, Prefix(etcd.addresses, options="?insecure=1"))
        self.network = network
        self.listen = {id: f"{network.address(id)}:7070" for id in self.listen}

    def within(self, id: str) -> Sequence[str]:
        return self.network.within(TARGETS if id in FOUR else id)

    @property
    def target_host(self) -> str:
        return self.network.address(TARGETS)

    def cut(self, id: str, other: str, how: str) -> None:
        """`to` and `from` the coordinator's peer."""
        for source, target in self._links(id, other, how):
            self.network.cut(source, target)

    def mend(self, id: str, other: str, how: str) -> None:
        for source, target in self._links(id, other, how):
            self.network.mend(source, target)

    def _links(self, id: str, other: str, how: str) -> list[tuple[str, str]]:
        to, back = (id, other), (other, id)
        return {BOTH: [to, back], TO: [to], FROM: [back]}[how]


@pytest.fixture(scope="module")
def _hosts_are_here() -> None:
    reason = why_not()
    if reason:
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)


@pytest.fixture
def apart(
    _hosts_are_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApartCluster]:
    with (
        Network(ETCD, TARGETS, "a", "b", "c") as network,
        Etcd(
            tmp_path / "etcd", host=network.address(ETCD), within=network.within(ETCD)
        ) as etcd,
        ApartCluster(tmp_path, etcd, network) as cluster,
    ):  # fmt: skip
        monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        yield cluster
    assert leftovers() == []


@pytest.mark.usefixtures("_hosts_are_here")
def test_what_is_cut_or_lossy_loses_frames_that_way() -> None:
    with Network("a") as network, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind((network.address(""), 0))
        heard.settimeout(0.5)
        assert arrived(network, heard) == DATAGRAMS
        network.cut("", "a")
        assert arrived(network, heard) == DATAGRAMS, "it is cut the other way"
        network.mend("", "a")
        network.cut("a", "")
        assert arrived(network, heard) == 0
        network.mend("a", "")
        # The address is known again: a question for it that is lost costs a whole second.
        assert arrived(network, heard) == DATAGRAMS
        network.lose(50.0)
        assert 0 < arrived(network, heard) < DATAGRAMS
    assert leftovers() == []


def arrived(network: Network, heard: socket.socket) -> int:
    """Of the datagrams that host `a` sends, by an address that it knows."""
    host, port = heard.getsockname()
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"for _ in range({DATAGRAMS}): s.sendto(b'x', ({host!r}, {port}))"
    )
    command = [*network.within("a"), sys.executable, "-S", "-c", send]
    subprocess.run(command, check=True, timeout=30)
    count = 0
    with suppress(TimeoutError):
        while heard.recv(8):
            count += 1
    return count


def test_a_leader_that_etcd_does_not_hear_is_followed_by_another(apart: ApartCluster) -> None:
    """Clients hear it still: it ends their sessions, and what they wait for goes on elsewhere."""
    step = 1
    with ckpt.open(apart.url) as store:
        store.save(RUN, step, state(step)).wait(WAIT_S)
        for how in (BOTH, TO, FROM):
            leader, step = apart.leader(), step + 1
            ended = apart.logged(leader, "the term ends")
            apart.cut(leader, ETCD, how)
            store.save(RUN, step, state(step)).wait(WAIT_S)
            assert apart.leader() != leader, how
            assert apart.logged(leader, "the term ends") == ended + 1, how
            apart.mend(leader, ETCD, how)
            wait_until(lambda id=leader: follows(apart, id), "it follows")  # type: ignore[misc]
        for earlier in range(1, step + 1):
            check_loads(store, earlier)
    one_record_a_step(apart, step)


def test_a_leader_that_clients_alone_do_not_hear_goes_on_when_they_do(
    apart: ApartCluster,
) -> None:
    """It renews its lease, and who stands by hears it, or does not: nobody deposes it, and no save
    fails.
    """
    step = 1
    with ckpt.open(apart.url) as store:
        store.save(RUN, step, state(step)).wait(WAIT_S)
        leader, term = apart.leader(), apart.term()
        others = sorted(set(apart.running) - {leader})
        for how, deaf in ((BOTH, []), (BOTH, others), (TO, others), (FROM, others[:1])):
            step += 1
            for other in (CLIENTS, *deaf):
                apart.cut(leader, other, how)
            save = store.save(RUN, step, state(step))
            threading.Event().wait(CUT_S)
            assert not save.ended, how
            for other in (CLIENTS, *deaf):
                apart.mend(leader, other, how)
            save.wait(WAIT_S)
            assert (apart.leader(), apart.term()) == (leader, term), how
        for earlier in range(1, step + 1):
            check_loads(store, earlier)
    one_record_a_step(apart, step)


def test_links_that_lose_frames_cost_no_save(apart: ApartCluster) -> None:
    steps = 12
    apart.network.lose(LOST_PERCENT)
    with ckpt.open(apart.url) as store:
        for step in range(1, steps + 1):
            store.save(RUN, step, state(step)).wait(WAIT_S)
            check_loads(store, step)
    one_record_a_step(apart, steps)


def follows(cluster: ApartCluster, id: str) -> bool:
    """It says so, after the end of its newest term."""
    _, _, after = cluster.log_of(id).read_text().rpartition("the term ends")
    return '"stands by"' in after
