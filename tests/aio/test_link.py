"""Links: non-blocking connections of plain threads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt.aio.clock import now_us
from ckpt.aio.net.link import (
    LINK_QUEUED_BYTES_MAX,
    Link,
    LinkClosed,
    LinkDrained,
    LinkEvent,
    LinkOpened,
    LinkReceived,
    LinkState,
    Sink,
)
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.net.socketpath import socket_path
from ckpt.base.errors import PeerError, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone
from ckpt.format.messages.writing import AskPace, CreditGranted, Fragment
from ckpt.protocol.handshake import Caller, Identity
from tests.aio.netkit import PATIENCE_S, SECRET, ServerThread, serving


@pytest.fixture
def loop() -> Iterator[LinkLoop]:
    with LinkLoop() as loop:
        yield loop


@pytest.fixture(params=["tcp", "unix"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerThread]:
    unix = socket_path(tmp_path, "s") if request.param == "unix" else None
    with serving(unix=unix) as server:
        yield server


def connect(
    loop: LinkLoop,
    running: ServerThread | str,
    *,
    secret: bytes = SECRET,
    sink: Sink | None = None,
    cluster: str = "cluster-a",
    server_name: str = "t3",
    server_role: Role = Role.TARGET,
    connect_timeout_us: int = 30_000_000,
) -> Link:
    if isinstance(running, ServerThread):
        server = running.server
        address = f"unix:{server.unix}" if server.unix else f"127.0.0.1:{server.port}"
    else:
        address = running
    return loop.connect(
        address,
        Caller(
            secret,
            Role.STAGER,
            "host:1",
            server_role=server_role,
            cluster=cluster,
            server_name=server_name,
        ),
        sink=sink,
        connect_timeout_us=connect_timeout_us,
    )


def poll_until(loop: LinkLoop, condition: Callable[[list[LinkEvent]], bool]) -> list[LinkEvent]:
    """Everything that happened until the condition held on it."""
    events: list[LinkEvent] = []
    deadline_us = now_us() + int(PATIENCE_S * 1e6)
    while not condition(events):
        assert now_us() < deadline_us, events
        events += loop.poll(100_000)
    return events


def opened(loop: LinkLoop, link: Link) -> Link:
    poll_until(loop, lambda _: link.state is not LinkState.CONNECTING)
    assert link.state is LinkState.OPEN
    return link


def closing_error(loop: LinkLoop, link: Link) -> Exception:
    events = poll_until(loop, lambda events: any(isinstance(e, LinkClosed) for e in events))
    (closed,) = events
    assert isinstance(closed, LinkClosed)
    assert closed.link is link
    assert link.state is LinkState.CLOSED
    return closed.error


def test_a_link_opens_and_says_who_is_there(loop: LinkLoop, running: ServerThread) -> None:
    link = connect(loop, running)
    assert link.state is LinkState.CONNECTING
    assert not link.try_send(1, Ask("too early"))
    events = poll_until(loop, bool)
    assert link.peer is not None
    assert events == [LinkOpened(link, link.peer)]
    assert (link.peer.name, link.peer.cluster, link.peer.boot) == ("t3", "cluster-a", 77)
    assert link.deadline_us is None
    running.wait_until(lambda: len(running.handler.opened_) == 1)


def test_fragments_arrive_whole_whatever_the_socket_takes(
    loop: LinkLoop, running: ServerThread
) -> None:
    link = opened(loop, connect(loop, running))
    bulks = [bytes([number]) * (MiB + number) for number in range(24)]
    sent: list[int] = []
    drained = 0
    for number, bulk in enumerate(bulks):
        while not link.try_send(
            9, Fragment(number, crc32(bulk)), memoryview(bulk), sent=lambda n=number: sent.append(n)
        ):
            drained += sum(isinstance(event, LinkDrained) for event in loop.poll(1_000_000))
    poll_until(loop, lambda _: link.writable_now)
    running.wait_until(lambda: len(running.handler.received_) == len(bulks))
    assert [heard.bulk for heard in running.handler.received_] == bulks
    assert {heard.request for heard in running.handler.received_} == {9}
    assert sent == list(range(24))
    assert link.channel is not None
    assert link.channel.queued_bytes == 0


def test_a_full_link_takes_nothing_more_and_says_when_it_drained(
    loop: LinkLoop, running: ServerThread
) -> None:
    link = opened(loop, connect(loop, running))
    bulk = bytes(4 * MiB)
    frame = Fragment(0, crc32(bulk))
    taken = 0

    def stop_the_server() -> None:
        nonlocal taken
        while link.try_send(1, frame, bulk):
            taken += 1

    running.do(stop_the_server)
    assert not link.writable_now
    assert link.channel is not None
    assert link.channel.queued_bytes >= LINK_QUEUED_BYTES_MAX
    assert link.say(1, AskPace()), "a word goes after what is queued"
    events = poll_until(loop, lambda events: LinkDrained(link) in events)
    assert events == [LinkDrained(link)]
    assert link.writable_now
    running.wait_until(lambda: len(running.handler.received_) == taken + 1)


@pytest.mark.parametrize("unix", [False, True])
def test_a_coordinator_s_link_takes_a_whole_table_whatever_its_socket_takes(
    loop: LinkLoop, tmp_path: Path, unix: bool
) -> None:
    """A stager says each part once: those that were not taken were lost, and its save waited."""
    coordinator = Identity("cluster-a", Role.COORDINATOR, "", BootId(5))
    path = socket_path(tmp_path, "s") if unix else None
    part = bytes(4 * MiB)
    parts = [Fragment(number, crc32(part)) for number in range(16)]
    with serving(unix=path, identity=coordinator) as running:
        link = opened(loop, connect(loop, running, server_role=Role.COORDINATOR, server_name=""))
        # The server hears nothing meanwhile.
        assert running.do(lambda: [link.try_send(1, each, part) for each in parts]) == [True] * 16
        poll_until(loop, lambda _: link.writable_now)
        running.wait_until(lambda: len(running.handler.received_) == 16)
        assert [heard.message for heard in running.handler.received_] == parts


def test_a_sink_gets_the_bulk_where_it_wants_it(loop: LinkLoop, running: ServerThread) -> None:
    destination = bytearray(3 * MiB)
    asked: list[tuple[int, Message]] = []

    def sink(head: FrameHead, message: Message) -> memoryview | None:
        asked.append((head.request, message))
        if not isinstance(message, RangeData):
            return None
        (wanted,) = message.ranges
        return memoryview(destination)[wanted.start : wanted.end]

    parts = [bytes([number + 1]) * MiB for number in range(3)]
    places = [(ByteRuns(number * MiB, (number + 1) * MiB),) for number in range(3)]

    def answer(_: object) -> None:
        session = running.handler.opened_[0][0]
        for number, part in enumerate(parts):
            running.server.send(session, 5, RangeData(places[number], crc32(part)), part)
        running.server.send(session, 5, Answer(), b"own memory")
        running.server.send(session, 5, RangesDone())

    running.handler.answer = answer
    link = opened(loop, connect(loop, running, sink=sink))
    assert link.try_send(5, Ask("ranges"))
    events = poll_until(loop, lambda events: len(events) == 5)
    assert bytes(destination) == b"".join(parts)
    messages = [event.message for event in events if isinstance(event, LinkReceived)]
    data: list[Message] = [RangeData(places[n], crc32(part)) for n, part in enumerate(parts)]
    assert messages == [*data, Answer(), RangesDone()]
    assert asked == [(5, message) for message in [*data, Answer()]]
    own = events[3]
    assert isinstance(own, LinkReceived)
    assert own.bulk is not None
    assert bytes(own.bulk.view) == b"own memory"
    own.bulk.release()
    assert link.heard_us > 0


def test_another_secret_is_unauthorized(loop: LinkLoop, running: ServerThread) -> None:
    link = connect(loop, running, secret=b"another secret, long enough too")
    assert isinstance(closing_error(loop, link), Unauthorized)
    assert running.handler.opened_ == []


@pytest.mark.parametrize(("cluster", "name"), [("cluster-b", "t3"), ("cluster-a", "t4")])
def test_another_target_than_expected_is_refused(
    loop: LinkLoop, running: ServerThread, cluster: str, name: str
) -> None:
    link = connect(loop, running, cluster=cluster, server_name=name)
    assert isinstance(closing_error(loop, link), Refused)
    assert running.handler.opened_ == []


def test_another_role_than_expected_is_unauthorized(loop: LinkLoop, running: ServerThread) -> None:
    link = connect(loop, running, server_role=Role.COORDINATOR)
    assert isinstance(closing_error(loop, link), Unauthorized)


def test_nobody_there_is_unavailable(loop: LinkLoop, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"unix:{socket_path(tmp_path, 'nobody')}"):
        link = connect(loop, address)
        assert isinstance(closing_error(loop, link), Unavailable)
        assert not link.try_send(1, Ask("late"))


def test_a_server_that_accepts_and_says_nothing_is_given_up(loop: LinkLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = connect(loop, f"127.0.0.1:{silent.getsockname()[1]}", connect_timeout_us=50_000)
        assert link.deadline_us is not None
        assert isinstance(closing_error(loop, link), Unavailable)
    assert loop.links == ()


def test_a_server_that_speaks_something_else_is_a_peer_error(loop: LinkLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        link = connect(loop, f"127.0.0.1:{other.getsockname()[1]}")
        with other.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + b"x" * 64)
            assert isinstance(closing_error(loop, link), PeerError)


def test_silence_past_the_owners_deadline_closes_the_link(
    loop: LinkLoop, running: ServerThread
) -> None:
    link = opened(loop, connect(loop, running))
    link.deadline_us = now_us() + 20_000
    assert isinstance(closing_error(loop, link), Unavailable)
    running.wait_until(lambda: len(running.handler.closed_) == 1)


def test_a_lost_server_closes_the_link_and_gives_the_bulks_back(
    loop: LinkLoop, running: ServerThread
) -> None:
    link = opened(loop, connect(loop, running))
    running.wait_until(lambda: len(running.handler.opened_) == 1)
    returned: list[int] = []
    bulk = bytes(4 * MiB)

    def cut_with_much_queued() -> None:
        for number in range(3):
            link.try_send(1, Fragment(number, 0), bulk, sent=lambda n=number: returned.append(n))
        running.server.close_session(running.handler.opened_[0][0], "for a test")

    running.do(cut_with_much_queued)
    events = poll_until(loop, lambda events: any(isinstance(e, LinkClosed) for e in events))
    assert events[-1] == LinkClosed(link, events[-1].error)  # type: ignore[union-attr]
    assert returned == [0, 1, 2]


def test_closing_a_link_ends_it_without_an_event(loop: LinkLoop, running: ServerThread) -> None:
    link = opened(loop, connect(loop, running))
    other = opened(loop, connect(loop, running))
    running.wait_until(lambda: len(running.handler.opened_) == 2)
    session = running.handler.opened_[0][0]
    running.do(lambda: running.server.send(session, 0, CreditGranted(1)))
    loop.close(link)
    loop.close(link)
    assert loop.links == (other,)
    running.wait_until(lambda: len(running.handler.closed_) == 1)
    loop.wake()
    assert loop.poll(None) == []


def test_links_do_not_wait_for_each_other(loop: LinkLoop, running: ServerThread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = connect(loop, f"127.0.0.1:{silent.getsockname()[1]}")
        link = opened(loop, connect(loop, running))
        assert link.try_send(1, Ask("status"))
        running.wait_until(lambda: len(running.handler.received_) == 1)
        assert stuck.state is LinkState.CONNECTING


def test_a_malformed_address_is_refused(loop: LinkLoop) -> None:
    for address in ("", "host", "host:", ":1", "host:0", "host:65536", "::1:80", "unix:relative"):
        with pytest.raises(Refused):
            connect(loop, address)
    with pytest.raises(Refused):
        connect(loop, "127.0.0.1:1", secret=b"short")


def test_a_link_is_closed_also_when_an_interrupt_made_the_selector_forget_its_socket(
    loop: LinkLoop, running: ServerThread
) -> None:
    link = connect(loop, running)
    assert link.channel is not None
    loop._selector.unregister(link.channel.sock)  # As `modify` does when it raises.
    loop.shut()
    assert link.state is LinkState.CLOSED
    assert link.channel.closed
