"""What every session promises to its handler, real or fake: one suite for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import pytest

from ckpt.aio.net.send_queue import Sent
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.format.messages.writing import CreditGranted
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import Established, Identity
from ckpt.testing.network import Heard, RecordingHandler

SERVER_IDENTITY = Identity("cluster-a", Role.COORDINATOR, "", BootId(9))
CLIENT_NAME = "t1"


class Endpoint(Protocol):
    """What `Server`, `Dialer` and the fake's endpoints have in common."""

    def send(
        self,
        session: Session,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        sent: Sent | None = None,
    ) -> None:
        """Queue one frame."""

    def queued_bytes(self, session: Session) -> int:
        """What the peer has not taken."""

    def close_session(self, session: Session, reason: str) -> None:
        """Cut the peer off."""


class SessionWorld(Protocol):
    """One server of SERVER_IDENTITY and one dialer, a target named CLIENT_NAME, both started."""

    server: Endpoint
    client: Endpoint
    at_server: RecordingHandler
    at_client: RecordingHandler

    def settle(self, until: Callable[[], bool]) -> None:
        """Let things happen until it is true; fails when it never is."""


class SessionContract:
    """Subclass me and say how a world is made."""

    def make_world(self) -> AbstractContextManager[SessionWorld]:
        """A fresh world."""
        raise NotImplementedError

    @pytest.fixture
    def world(self) -> Iterator[SessionWorld]:
        """A world whose first session stands."""
        with self.make_world() as world:
            world.settle(lambda: bool(world.at_client.opened_ and world.at_server.opened_))
            yield world

    def test_both_ends_hear_who_the_other_is(self, world: SessionWorld) -> None:
        """Once each."""
        ((_, server),) = world.at_client.opened_
        ((_, client),) = world.at_server.opened_
        wire = server.wire
        assert server == Established(
            Role.COORDINATOR, "", "cluster-a", BootId(9), Epoch(0), PROTOCOL_VERSION, wire=wire
        )
        assert client == Established(
            Role.TARGET, CLIENT_NAME, "cluster-a", BootId(0), Epoch(0), PROTOCOL_VERSION, wire=wire
        )

    def test_frames_arrive_in_order_with_their_bulks(self, world: SessionWorld) -> None:
        """From nothing to more than any buffer holds."""
        (session, _), *_ = world.at_client.opened_
        (there, _), *_ = world.at_server.opened_
        sizes = [0, 1, 0, 4096, 1 << 20, 0, 65_537, 3]
        bulks = [bytes([number]) * size for number, size in enumerate(sizes)]
        for number, bulk in enumerate(bulks):
            world.client.send(session, number, Ask("status"), bulk)
        world.settle(lambda: len(world.at_server.received_) == len(sizes))
        assert world.at_server.received_ == [
            Heard(there, number, Ask("status"), bulk) for number, bulk in enumerate(bulks)
        ]

    def test_a_server_answers_and_pushes(self, world: SessionWorld) -> None:
        """On the same session."""
        (session, _), *_ = world.at_client.opened_
        (there, _), *_ = world.at_server.opened_
        world.at_server.answer = lambda heard: world.server.send(
            heard.session, heard.request, Answer(), b"{}"
        )
        world.client.send(session, 41, Ask("status"))
        world.settle(lambda: len(world.at_client.received_) == 1)
        world.server.send(there, 0, CreditGranted(5))
        world.settle(lambda: len(world.at_client.received_) == 2)
        assert world.at_client.received_ == [
            Heard(session, 41, Answer(), b"{}"),
            Heard(session, 0, CreditGranted(5), b""),
        ]

    def test_sent_is_called_once_and_then_the_memory_may_change(self, world: SessionWorld) -> None:
        """A bulk is not copied before."""
        (session, _), *_ = world.at_client.opened_
        memory = bytearray(b"a" * 300_000)
        calls: list[int] = []

        def send(number: int) -> None:
            def sent() -> None:
                calls.append(number)
                if number < 5:
                    memory[:] = bytes([number]) * len(memory)
                    send(number + 1)

            world.client.send(session, number, Ask("x"), memory, sent=sent)

        send(1)
        world.settle(lambda: len(world.at_server.received_) == 5)
        assert calls == [1, 2, 3, 4, 5]
        assert [heard.bulk[:1] for heard in world.at_server.received_] == [
            b"a", b"\1", b"\2", b"\3", b"\4",
        ]  # fmt: skip

    def test_a_cut_session_closes_at_both_ends_and_is_dialed_again(
        self, world: SessionWorld
    ) -> None:
        """With a number that was never used."""
        (old, _), *_ = world.at_client.opened_
        (there, _), *_ = world.at_server.opened_
        world.server.close_session(there, "for a test")
        world.settle(
            lambda: len(world.at_client.opened_) == 2 and len(world.at_server.opened_) == 2
        )
        assert [session for session, _ in world.at_client.closed_] == [old]
        assert world.at_server.closed_ == [(there, "for a test")]
        numbers = [
            session for each in (world.at_client, world.at_server) for session, _ in each.opened_
        ]
        assert len(set(numbers)) == 4

    def test_a_dialer_may_cut_too(self, world: SessionWorld) -> None:
        """And dials again."""
        (session, _), *_ = world.at_client.opened_
        world.client.close_session(session, "for a test")
        world.settle(
            lambda: len(world.at_client.opened_) == 2 and len(world.at_server.closed_) == 1
        )
        assert world.at_client.closed_ == [(session, "for a test")]

    def test_what_is_sent_to_a_gone_session_is_dropped(self, world: SessionWorld) -> None:
        """Silently, with its memory given back."""
        (there, _), *_ = world.at_server.opened_
        world.server.close_session(there, "for a test")
        world.settle(lambda: len(world.at_client.opened_) == 2)
        calls: list[int] = []
        world.server.send(there, 1, Answer(), b"late", sent=lambda: calls.append(1))
        assert calls == [1]
        assert world.server.queued_bytes(there) == 0
        assert world.at_client.received_ == []

    def test_a_cut_gives_back_what_was_queued(self, world: SessionWorld) -> None:
        """Every `sent` is called once, whether its bytes left or not."""
        (session, _), *_ = world.at_client.opened_
        calls: list[int] = []
        for number in range(8):
            world.client.send(
                session, number, Ask("x"), bytes(4 << 20), sent=partial(calls.append, number)
            )
        world.client.close_session(session, "for a test")
        world.settle(lambda: len(world.at_client.opened_) == 2)
        assert calls == list(range(8))
