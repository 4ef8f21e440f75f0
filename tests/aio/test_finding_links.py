"""Links and calls to several coordinators over real sockets: the one that leads is found."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from ckpt.aio.clock import now_us
from ckpt.aio.net import dial, rpc
from ckpt.aio.net.link import LinkClosed, LinkEvent, LinkOpened, LinkState
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, PeerError, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.format.frame import PREFIX_BYTES, FrameReader, FrameWriter
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.writing import Fragment
from ckpt.protocol import finding
from ckpt.protocol.handshake import Caller, Identity, ServerHandshake
from ckpt_client import locate
from tests.aio.coordinatorkit import (
    coordinators,
    dead_address,
    full_address,
    silent_address,
)
from tests.aio.netkit import PATIENCE_S, SECRET
from tests.aio.test_link import poll_until

SLOW_S = 0.3
"""Of a leader, for each part of a table: of 16 more than PING_AFTER_US and GIVE_UP_US together."""
LONG_US = 600_000_000
"""An address that never answers would cost this, were it waited for."""


def caller(role: Role = Role.STAGER, cluster: str = "") -> Caller:
    return Caller(SECRET, role, "host:1", cluster=cluster)


def client(*addresses: str, secret: bytes = SECRET) -> RpcClient:
    return RpcClient(",".join(addresses), Caller(secret, Role.READER, "host:1"))


def who_answers(rpc: RpcClient) -> str:
    return bytes(rpc.call(Ask("who"), timeout_s=PATIENCE_S)[1]).decode()


def ask_again_and_again(rpc: RpcClient) -> None:
    """Until an error says something else; the session is checked aside."""
    deadline_us = now_us() + int(PATIENCE_S * 1e6)
    while now_us() < deadline_us:
        who_answers(rpc)


@pytest.fixture
def loop() -> Iterator[LinkLoop]:
    with LinkLoop() as loop:
        yield loop


def opened(loop: LinkLoop, *addresses: str) -> str:
    """The address of the link that opens."""
    link = loop.connect(",".join(addresses), caller(), connect_timeout_us=LONG_US)
    (event,) = poll_until(loop, bool)
    assert isinstance(event, LinkOpened), event
    assert event.link is link
    assert link.state is LinkState.OPEN
    return link.address


def closing_error(loop: LinkLoop, *addresses: str) -> CkptError:
    loop.connect(",".join(addresses), caller(), connect_timeout_us=LONG_US)
    (event,) = poll_until(loop, bool)
    assert isinstance(event, LinkClosed)
    assert loop.links == ()
    return event.error


def _has_closed(events: list[LinkEvent]) -> bool:
    return any(isinstance(event, LinkClosed) for event in events)


def dead() -> AbstractContextManager[str]:
    return nullcontext(dead_address())


@pytest.mark.parametrize("make", [dead, silent_address, full_address])
def test_a_link_opens_past_an_address_that_does_not_answer(
    loop: LinkLoop, make: Callable[[], AbstractContextManager[str]]
) -> None:
    with make() as first, coordinators("a") as (a,):
        a.lead()
        assert opened(loop, first, a.address) == a.address


def test_a_thread_that_waits_for_nothing_else_still_tries_the_next_address(loop: LinkLoop) -> None:
    with silent_address() as silent, coordinators("a") as (a,):
        a.lead()
        link = loop.connect(f"{silent},{a.address}", caller(), connect_timeout_us=LONG_US)
        while link.state is LinkState.CONNECTING:
            loop.poll(None)
        assert link.address == a.address


def test_a_link_speaks_with_the_one_that_was_found(loop: LinkLoop) -> None:
    with silent_address() as silent, coordinators("ab") as (a, b):
        b.lead(a, b)
        link = loop.connect(
            f"{silent},{a.address},{b.address}", caller(), connect_timeout_us=LONG_US
        )
        assert not link.try_send(1, Ask("too early"))
        poll_until(loop, lambda _: link.state is LinkState.OPEN)
        assert link.try_send(7, Ask("who"))
        events = poll_until(loop, bool)
        assert [getattr(event, "request", None) for event in events] == [7]
        b.follow(None)
        (closed,) = poll_until(loop, bool)
        assert isinstance(closed, LinkClosed)
        assert closed.link is link


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_leader_that_takes_what_is_said_slowly_is_no_silent_one(
    loop: LinkLoop, goes_on: bool
) -> None:
    """A large table takes longer to cross than a leader may be silent."""
    part = bytes(4 * MiB)
    parts = [Fragment(number, crc32(part)) for number in range(16)]
    go_on = threading.Event()
    with coordinators("ab") as (a, b):
        a.lead(a, b)
        link = loop.connect(f"{a.address},{b.address}", caller(), connect_timeout_us=LONG_US)
        poll_until(loop, lambda _: link.state is LinkState.OPEN)
        handler = a.running.handler
        handler.answer = lambda _: go_on.wait(SLOW_S if goes_on else PATIENCE_S) and None
        assert all(link.try_send(1, each, part) for each in parts)
        try:
            events = poll_until(
                loop, lambda events: len(handler.received_) == 16 or _has_closed(events)
            )
        finally:
            go_on.set()
        assert _has_closed(events) is not goes_on


def test_a_standby_sends_a_link_to_a_leader_that_is_in_no_list(loop: LinkLoop) -> None:
    with coordinators("abc") as (a, b, c):
        c.lead(b, c)
        a.follow(c)
        assert opened(loop, a.address) == c.address
        c.running.wait_until(lambda: c.peers == [Role.STAGER])
        # The next link of the loop begins there, and goes on to whom that one named.
        asked = a.turned_away
        assert opened(loop, a.address) == c.address
        assert a.turned_away == asked
        loop.shut()


def test_standbys_that_name_each_other_end_the_search(loop: LinkLoop) -> None:
    with coordinators("ab") as (a, b):
        a.follow(b)
        b.follow(a)
        error = closing_error(loop, a.address, b.address)
        assert type(error) is Unavailable
        for text in ("a stands by", "b stands by"):
            assert text in error.message
        assert (a.turned_away, b.turned_away) == (1, 1)


def prove_and_talk_nonsense(listening: socket.socket) -> None:
    """A coordinator that proves itself, and breaks the protocol in the same packet."""
    handshake = ServerHandshake(
        secret=SECRET,
        identity=lambda: Identity("cluster-a", Role.COORDINATOR, "", BootId(5)),
        nonce=b"s" * 32,
    )
    sock, _ = listening.accept()
    with sock, sock.makefile("rb") as stream:
        reader, writer = FrameReader(), FrameWriter()
        for nonsense in (b"", b"x" * 64):
            head = reader.prefix(stream.read(PREFIX_BYTES))
            answer = handshake.receive(reader.message(head, stream.read(head.meta_bytes)))
            if handshake.keys is not None:
                writer.set_key(handshake.keys.server_to_client)
            sock.sendall(writer.encode(answer, 0) + nonsense)
        stream.read()


def test_one_that_breaks_the_protocol_as_soon_as_it_was_found_is_lost(loop: LinkLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=prove_and_talk_nonsense, args=(listening,))
        server.start()
        link = loop.connect(f"127.0.0.1:{listening.getsockname()[1]}", caller())
        first, last = poll_until(loop, lambda events: len(events) == 2)
        server.join(PATIENCE_S)
    assert isinstance(first, LinkOpened)
    assert isinstance(last, LinkClosed)
    assert first.link is last.link is link
    assert isinstance(last.error, PeerError)
    assert link.state is LinkState.CLOSED
    assert loop.links == ()


def test_every_address_is_named_when_none_answers(loop: LinkLoop) -> None:
    addresses = [dead_address() for _ in range(3)]
    error = closing_error(loop, *addresses)
    assert isinstance(error, Unavailable)
    for address in addresses:
        assert f"cannot connect to {address}: Connection refused" in error.message


def test_one_address_alone_fails_as_it_did(loop: LinkLoop) -> None:
    address = dead_address()
    assert closing_error(loop, address).message == (
        f"cannot connect to {address}: Connection refused"
    )


def test_a_link_that_is_closed_while_it_searches_leaves_nothing(loop: LinkLoop) -> None:
    with silent_address() as one, silent_address() as two:
        link = loop.connect(f"{one},{two}", caller(), connect_timeout_us=LONG_US)
        poll_until(loop, lambda _: len(loop.links) == 2)
        loop.close(link)
        assert loop.links == ()
        loop.wake()
        assert loop.poll(None) == []


def test_a_forked_child_lets_go_of_what_its_parent_tries(loop: LinkLoop) -> None:
    with silent_address() as one, silent_address() as two:
        link = loop.connect(f"{one},{two}", caller(), connect_timeout_us=LONG_US)
        poll_until(loop, lambda _: len(loop.links) == 2)
        sockets = [each.channel.sock for each in loop.links if each.channel is not None]
        loop.abandon()
        assert [each.fileno() for each in sockets] == [-1, -1]
        assert link.state is LinkState.CLOSED


def test_nobody_rests_longer_than_half_a_second_where_another_one_may_lead() -> None:
    longest = (dial.BACKOFF_S[1], rpc.COORDINATOR_BACKOFF_S[1], finding.REST_S[1], locate.DIAL_S)
    assert max(longest) <= 0.5
    with client("127.0.0.1:1", "127.0.0.1:2") as several:
        rests = [several._rests.next_s() for _ in range(20)]
    assert max(rests) <= 0.5
    assert len(set(rests)) > 1
    pauses = {locate.dial_us() for _ in range(20)}
    assert len(pauses) > 1, "no two stagers of a crowd have the same"
    assert locate.DIAL_S / 2 <= min(pauses) / 1e6 <= max(pauses) / 1e6 <= locate.DIAL_S


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("127.0.0.1:1,", "''"),
        ("127.0.0.1:1,host", "'host'"),
        ("127.0.0.1:1,127.0.0.1:1", "twice"),
        (",".join(f"127.0.0.1:{port}" for port in range(1, 18)), "at most 16"),
    ],
)
def test_a_wrong_list_is_refused_by_the_part_that_is_wrong(
    loop: LinkLoop, text: str, match: str
) -> None:
    with pytest.raises(Refused, match=match):
        loop.connect(text, caller())
    with pytest.raises(Refused, match=match):
        RpcClient(text, caller())


def test_a_target_has_one_address(loop: LinkLoop) -> None:
    with pytest.raises(Refused, match="HOST:PORT"):
        loop.connect(
            "127.0.0.1:1,127.0.0.1:2",
            Caller(SECRET, Role.STAGER, "host:1", server_role=Role.TARGET),
        )


# --------------------------------------------------------------------------- calls


def test_calls_go_on_when_another_one_leads() -> None:
    with coordinators("abc") as (a, b, c), client(a.address, b.address, c.address) as rpc:
        a.lead(a, b, c)
        assert who_answers(rpc) == "a"
        assert rpc.server == a.address
        for one in (a, c):
            one.follow(b)
        # For now nobody leads: the call waits.
        heard: list[str] = []
        call = threading.Thread(target=lambda: heard.append(who_answers(rpc)))
        call.start()
        b.lead(a, b, c)
        call.join(PATIENCE_S)
        assert heard == ["b"]
        assert rpc.server == b.address


def test_a_call_under_way_is_answered_by_the_next_leader() -> None:
    with coordinators("ab") as (a, b), client(a.address, b.address) as rpc:
        a.lead(a, b)
        a.running.handler.answer = lambda _heard: None
        heard: list[str] = []
        call = threading.Thread(target=lambda: heard.append(who_answers(rpc)))
        call.start()
        a.running.wait_until(lambda: len(a.running.handler.received_) == 1)
        b.lead(a, b)
        a.follow(b)
        call.join(PATIENCE_S)
        assert heard == ["b"]


def test_coordinators_that_were_replaced_are_followed() -> None:
    with coordinators("bc") as (b, c):
        with coordinators("a") as (a,):
            rpc = client(a.address)
            a.lead(a, b)
            assert who_answers(rpc) == "a"
            b.lead(b, c)
            a.follow(b)
            assert who_answers(rpc) == "b"
        c.lead(b, c)
        b.follow(None)
        with rpc:
            assert who_answers(rpc) == "c"


def test_one_that_knows_another_secret_does_not_end_calls_while_others_may_lead() -> None:
    with coordinators("a") as (a,):
        a.lead()
        rpc = client(dead_address(), a.address, secret=b"y" * 32)
        with rpc, pytest.raises(Unavailable, match="does not know this cluster's secret"):
            rpc.call(Ask("who"), timeout_s=2.0)
        with client(a.address, secret=b"y" * 32) as rpc, pytest.raises(Unauthorized):
            rpc.call(Ask("who"), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("other_leads", [True, False])
def test_members_of_two_clusters_in_one_list_are_refused_by_name(other_leads: bool) -> None:
    with coordinators("a", "cluster-a") as (a,), coordinators("b", "cluster-b") as (b,):
        a.lead()
        if other_leads:
            b.lead()
        with client(a.address, b.address) as rpc, pytest.raises(Refused) as caught:
            ask_again_and_again(rpc)
        for text in (a.address, b.address, "cluster-a", "cluster-b"):
            assert text in caught.value.message
