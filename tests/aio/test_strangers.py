"""However many strangers hold a server's door, whoever knows the secret gets in."""

from __future__ import annotations

import dataclasses
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckpt.aio.descriptors import RESERVE_COUNT, DescriptorReserve, limit, raise_limit
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.net.serving.server_limits import ServerLimits
from ckpt.aio.net.socketpath import socket_path
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from tests.aio.netkit import SECRET, RawPeer, ServerThread, serving
from tests.aio.strangers import ASK_S, HELLO, SAYINGS, Crowd, Where, flood
from tests.waiting import wait_until

CROWD = 600
SEATS = 128
LONG = ServerLimits(unauthenticated_life_us=600_000_000, unauthenticated_peers_max=SEATS)
"""Nobody goes by itself: what frees a seat is that somebody else came."""


def answering(running: ServerThread) -> None:
    running.handler.answer = lambda heard: running.server.send(
        heard.session, heard.request, Answer(), b"yes"
    )


def asks(running: ServerThread, role: Role = Role.READER, timeout_s: float = ASK_S) -> None:
    """A client of its own connects, proves itself, asks and is answered, in its time limit."""
    with client_of(running, role) as client:
        assert client.call(Ask("status"), timeout_s=timeout_s)[0] == Answer()


def client_of(running: ServerThread, role: Role) -> RpcClient:
    unix = running.server.unix
    address = f"unix:{unix}" if unix else f"127.0.0.1:{running.server.port}"
    return RpcClient(address, Caller(SECRET, role, "honest", server_role=Role.TARGET))


def where(running: ServerThread) -> Where:
    return running.server.unix or ("127.0.0.1", running.server.port)


def statistic(running: ServerThread, name: str) -> int:
    return int(dataclasses.asdict(running.do(running.server.statistics))[name])


@pytest.mark.parametrize("saying", SAYINGS)
def test_whoever_knows_the_secret_is_in_beside_a_crowd(saying: str) -> None:
    with serving(limits=LONG) as running:
        answering(running)
        with Crowd(where(running), CROWD, SAYINGS[saying]) as crowd:
            crowd.wait_connected(CROWD)
            for _ in range(5):
                asks(running)
            assert statistic(running, "strangers") <= SEATS
            assert statistic(running, "evicted") > 0


def test_a_crowd_on_a_unix_path_shuts_nobody_out(tmp_path: Path) -> None:
    with serving(limits=LONG, unix=socket_path(tmp_path, "s")) as running:
        answering(running)
        with Crowd(where(running), CROWD) as crowd:
            crowd.wait_connected(CROWD)
            asks(running)


def test_a_crowd_that_drips_and_comes_again_shuts_nobody_out() -> None:
    with serving(limits=LONG) as running:
        answering(running)
        with Crowd(where(running), CROWD, dripping=HELLO, returning=True) as crowd:
            crowd.wait_connected(CROWD)
            for _ in range(3):
                asks(running)


def test_a_flood_that_connects_and_closes_shuts_nobody_out() -> None:
    with serving(limits=LONG) as running, flood(where(running)):
        answering(running)
        for _ in range(3):
            asks(running)


def test_a_session_that_stands_is_served_beside_a_flood() -> None:
    with serving(limits=LONG) as running, RawPeer(running.server.port) as peer:
        answering(running)
        peer.shake()
        with flood(where(running)), Crowd(where(running), CROWD, HELLO, returning=True):
            for number in range(1, 50):
                peer.send(Ask("status"), request=number)
                assert peer.receive() == (number, Answer())


def test_a_burst_of_honest_peers_takes_nobodys_seat() -> None:
    limits = dataclasses.replace(LONG, unauthenticated_peers_max=2048)
    with serving(limits=limits) as running, ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(running.server.port)) for _ in range(300)]
        for peer in peers:
            peer.shake()
        assert statistic(running, "evicted") == 0
        assert statistic(running, "opened") == 300


# --------------------------------------------------------------------------- descriptors


class Tight:
    """This process has so few descriptors left; what it holds is given back at the end."""

    def __init__(self, free_count: int) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as probe:
            first_free = probe.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + free_count, self._limits[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def test_the_limit_is_raised_to_the_hard_one() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        assert limit() == 200
        assert raise_limit() == limit() == min(limits[1], 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_reserve_gives_what_it_has_and_takes_it_back() -> None:
    reserve = DescriptorReserve()
    tight = Tight(0)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            socket.socket()
        assert reserve.give()
        with socket.socket():
            assert not reserve.refill()
            assert not reserve.is_full
        assert reserve.refill()
        assert sum(reserve.give() for _ in range(100)) == RESERVE_COUNT
    finally:
        tight.end()
        reserve.close()


def test_without_descriptors_trainers_hear_why_and_tools_get_in() -> None:
    with serving() as running, ExitStack() as stack:
        answering(running)
        tool = stack.enter_context(client_of(running, Role.ADMIN))
        trainer = stack.enter_context(client_of(running, Role.STAGER))
        spare = stack.enter_context(socket.socket())
        # For the tool's own socket: the server has none.
        tight = Tight(1)
        stack.callback(tight.end)
        assert tool.call(Ask("status"), timeout_s=20.0)[0] == Answer()
        spare.close()
        trainer.tell(Ask("status"))
        wait_until(
            lambda: f"no free descriptor (its limit is {limit()})" in str(trainer.last_error),
            "the trainer was told why",
        )
        assert statistic(running, "turned_away") > 0
        tight.end()
        assert trainer.call(Ask("status"), timeout_s=20.0)[0] == Answer()
