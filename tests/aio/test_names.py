"""A host name with several addresses: the one that answers is found, and dialed first from then on.

Nobody listens on the first address, as on ::1 where a coordinator listens on 127.0.0.1 and the
name is `localhost`.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from ckpt.aio.clock import now_us
from ckpt.aio.net import address, link_loop, names
from ckpt.aio.net.address import TcpAddress, endpoint_by_resolver, endpoints_by_resolver
from ckpt.aio.net.link import LinkClosed, LinkEvent, LinkOpened
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Unavailable
from ckpt.base.units import US_PER_S
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckptd.coordinator.leader_watch import _refuses
from tests.aio.coordinatorkit import coordinators, dead_address
from tests.aio.netkit import PATIENCE_S, SECRET, serving
from tests.aio.test_finding_dialer import Dialing
from tests.aio.test_link import poll_until
from tests.waiting import wait_until

NAME = "twofold.test"
DEAD, ALIVE = "127.0.0.2", "127.0.0.1"
CALLER = Caller(SECRET, Role.READER, "host:1")


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = socket.getaddrinfo

    def found(host: str, port: int, **options: int) -> object:
        if host != NAME:
            return asked(host, port, **options)
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        return [(family, kind, 6, "", (one, port)) for one in (DEAD, DEAD, ALIVE)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(address, "_dialed", {})
    monkeypatch.setattr(names, "_said", {})


def named(there: str) -> str:
    """The same port of the name."""
    return f"{NAME}:{there.rpartition(':')[2]}"


def event_of(loop: LinkLoop, where: str) -> LinkEvent:
    loop.connect(where, CALLER)
    (event,) = poll_until(loop, bool)
    return event


def test_each_address_has_its_turn_and_the_one_that_answers_is_dialed_first() -> None:
    with coordinators("a") as (a,), LinkLoop() as loop:
        a.lead()
        where = named(a.address)
        assert isinstance(event_of(loop, where), LinkClosed)
        for _ in range(3):
            event = event_of(loop, where)
            assert isinstance(event, LinkOpened)
            loop.close(event.link)


def test_a_resolver_that_takes_its_time_costs_no_link_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two name servers the first may be dead: each first look takes 5 s then, and a link may
    take 3 to be made.
    """
    held_us, asked = [0], socket.getaddrinfo

    def slowly(host: str, port: int, **options: int) -> object:
        held_us[0] += 5 * US_PER_S
        return asked(host, port, **options)[-1:]

    caller = Caller(SECRET, Role.READER, "host:1", server_role=Role.TARGET)
    with serving() as server, LinkLoop() as loop:
        there = f"{ALIVE}:{server.server.port}"
        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        monkeypatch.setattr(link_loop, "now_us", lambda: now_us() + held_us[0])
        links = [loop.connect(where, caller) for where in (there, named(there))]
        events = poll_until(loop, lambda events: len(events) == len(links))
        assert {event.link for event in events if isinstance(event, LinkOpened)} == set(links)
        assert held_us[0]


def test_a_call_reaches_who_listens_on_the_second_address() -> None:
    with coordinators("a") as (a,), RpcClient(named(a.address), CALLER) as client:
        a.lead()
        assert bytes(client.call(Ask("who"), timeout_s=PATIENCE_S)[1]) == b"a"


def test_a_daemon_reaches_who_listens_on_the_second_address() -> None:
    async def work() -> None:
        with coordinators("a") as (a,):
            a.lead()
            dialing = Dialing(named(a.address))
            await dialing.until(lambda: len(dialing.heard.opened_) == 1)
            assert await dialing.who_answers() == "a"
            await dialing.dialer.close()

    asyncio.run(work(), debug=True)


def test_one_that_answered_and_does_no_more_gives_the_others_their_turn() -> None:
    where = TcpAddress(NAME, 1)
    address._dialed[where] = ALIVE, 0
    dialed = [endpoint_by_resolver(where).sockaddr[0] for _ in range(4)]
    assert dialed == [ALIVE, DEAD, ALIVE, DEAD]


def test_an_address_is_listed_once_and_a_name_that_is_none_is_out_of_reach() -> None:
    found = [endpoint.sockaddr for endpoint in endpoints_by_resolver(TcpAddress(NAME, 1))]
    assert found == [(DEAD, 1), (ALIVE, 1)]
    for host in ("nobody.invalid", "a" * 64 + ".invalid", ".."):
        with pytest.raises(Unavailable, match="no address for host"):
            endpoint_by_resolver(TcpAddress(host, 1))


def test_a_leader_that_listens_on_one_of_them_has_not_ended() -> None:
    with coordinators("a") as (a,):
        assert not asyncio.run(_refuses(named(a.address)))
    assert asyncio.run(_refuses(named(dead_address())))


class Resolver:
    """A name server that answers in its own time."""

    def __init__(self) -> None:
        self.addresses = ["10.0.0.1"]
        """Of every name; none: it does not know it."""
        self.may_answer = threading.Event()
        self.asked = 0
        self.may_answer.set()

    def __call__(self, _host: str, port: int, **_options: int) -> object:
        self.asked += 1
        if not self.may_answer.is_set():
            assert threading.current_thread() is not threading.main_thread(), "it would wait"
        self.may_answer.wait()
        if not self.addresses:
            raise socket.gaierror(-3, "no name server answers")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in self.addresses]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    monkeypatch.setattr(names, "FRESH_S", -1.0)
    return made


def where_is(name: str) -> object:
    return endpoint_by_resolver(TcpAddress(name, 1)).sockaddr


def test_nobody_waits_for_a_name_server_a_second_time(resolver: Resolver) -> None:
    assert where_is("moving.test") == ("10.0.0.1", 1)
    resolver.may_answer.clear()
    resolver.addresses = ["10.0.0.2"]
    for _ in range(3):
        assert where_is("moving.test") == ("10.0.0.1", 1)
    resolver.may_answer.set()
    wait_until(lambda: where_is("moving.test") == ("10.0.0.2", 1), "it has moved")


def test_a_name_stays_where_it_was_while_no_name_server_answers(resolver: Resolver) -> None:
    assert where_is("lasting.test") == ("10.0.0.1", 1)
    resolver.addresses = []
    asked = resolver.asked
    wait_until(lambda: where_is("lasting.test") and resolver.asked > asked + 2, "asked in vain")
    assert where_is("lasting.test") == ("10.0.0.1", 1)


def test_a_name_that_is_none_yet_is_found_once_it_is_one(resolver: Resolver) -> None:
    resolver.addresses = []
    with pytest.raises(Unavailable, match="no name server answers"):
        where_is("later.test")
    resolver.may_answer.clear()
    with pytest.raises(Unavailable, match="no name server answers"):
        where_is("later.test")
    resolver.addresses = ["10.0.0.1"]
    resolver.may_answer.set()
    wait_until(lambda: bool(names._said["later.test", 1].found), "it was asked again")
    assert where_is("later.test") == ("10.0.0.1", 1)
