"""PayloadJob on links of its own, where a test says what the sockets take and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import cast

import pytest

from ckpt.aio.net.link import Link, LinkState
from ckpt.base.ids import BootId, ReservationId, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    BeginColumn,
    ColumnAccepted,
    CreditGranted,
    Fragment,
)
from ckpt.protocol.writer.payload_writer import PayloadWriter
from ckpt.transfer import payload_job
from ckpt.transfer.encoder import PayloadEncoder
from ckpt.transfer.parity_ring import ParityRing
from ckpt.transfer.payload_job import PayloadJob, SenderResult
from ckpt.transfer.target_links import TargetLinks
from tests.transfer.test_payload_sender import CELL, LAUNCH, Arena, payload_of, start_of

TICK_US = 10_000
QUIET_US = 400_000
"""Silence alone makes a target mute within half of it; a link is not called slow so early."""


@dataclass(eq=False)
class Socket:
    """What a Link shows to the job. It is full for good after its first fragment if `narrow`."""

    target: TargetId
    narrow: bool
    state: LinkState = LinkState.OPEN
    writable_now: bool = True
    moved_us: int = 0
    full: bool = False
    """As much is queued as a link takes, for other streams."""
    sent: list[tuple[int, Message]] = field(default_factory=list)
    asked: int = 0
    """Questions that it was asked and has answered."""

    def say(self, stream: int, message: Message) -> bool:
        self.sent.append((stream, message))
        return True

    def try_send(
        self, stream: int, message: Message, bulk: object = b"", *, sent: object = None
    ) -> bool:
        if self.full:
            return False
        self.sent.append((stream, message))
        if self.narrow and isinstance(message, Fragment):
            self.writable_now = False
        elif callable(sent):
            sent()
        return True


class Sockets:
    """One for each target; the first one's is narrow."""

    def __init__(self, full: bool) -> None:
        self.of: dict[TargetId, Socket] = {}
        self._full = full

    def obtain(self, place: Place) -> Socket:
        first = place.target == "t0"
        made = Socket(place.target, first, full=first and self._full)
        return self.of.setdefault(place.target, made)


class World:
    """One payload of 2+1 with a spare; the first target's socket is full, the others answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, full: bool = False) -> None:
        """full: so that it takes no word of this payload at first."""
        self.now_us = 1_000_000
        monkeypatch.setattr(payload_job, "_now_us", lambda: self.now_us)
        arena = Arena("2+1", 8 * 2 * CELL)
        start = start_of(1, arena, [_place(0), _place(1), _place(2)], [_place(3)])
        rings = ParityRing(CELL, 16), ParityRing(CELL, 2)
        self.encoder = PayloadEncoder(
            payload_of(1), LAUNCH, arena.layout, memoryview(arena.map), rings
        )
        writer = PayloadWriter(start.plan, start.payload_bytes, count(1), self.now_us)
        self.sockets = Sockets(full)
        self.cut: list[Link] = []
        emit: Callable[[SenderResult], None] = [].append
        links = cast(TargetLinks, self.sockets)
        self.job = PayloadJob(start, self.encoder, writer, links, emit, self.cut.append)
        self.job.begin()
        while self.encoder.step():
            assert not self.encoder.starved_since_us
        for socket in list(self.sockets.of.values()):
            self.accepts(socket)
        self.job.pump()

    def accepts(self, socket: Socket) -> None:
        """The target answers what it was said."""
        for stream in [at for at, said in socket.sent if isinstance(said, BeginColumn)]:
            self.hears(socket, stream, ColumnAccepted(4 * CELL, answers=True))

    def hears(self, socket: Socket, stream: int, message: Message) -> None:
        assert self.job.received(stream, cast(Link, socket), message)

    def pass_time(self, span_us: int, *, trickles: bool) -> None:
        """All but the narrow one answer what they are asked."""
        end_us = self.now_us + span_us
        while self.now_us < end_us:
            self.now_us += TICK_US
            if trickles:
                self.sockets.of[TargetId("t0")].moved_us = self.now_us
            self.job.tick(self.now_us)
            for socket in self.sockets.of.values():
                asked = [stream for stream, said in socket.sent if isinstance(said, AskPace)]
                socket.sent = [each for each in socket.sent if not isinstance(each[1], AskPace)]
                socket.asked += len(asked)
                for stream in asked if not socket.narrow else ():
                    self.hears(socket, stream, CreditGranted(0))

    def gave_up(self) -> bool:
        """Whether the narrow socket's column went elsewhere."""
        said = [type(message) for _, message in self.sockets.of[TargetId("t0")].sent]
        return AbandonColumn in said or bool(self.cut)


def _place(number: int) -> Place:
    return Place(TargetId(f"t{number}"), BootId(7), f"h:{number}", ReservationId(number), "")


def test_who_reads_slowly_what_lies_before_a_question_is_not_mute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.pass_time(QUIET_US, trickles=True)
    assert not world.gave_up()


def test_who_reads_no_more_while_its_peers_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.pass_time(QUIET_US // 4, trickles=True)
    world.pass_time(QUIET_US * 3 // 4, trickles=False)
    assert world.gave_up()
    assert TargetId("t3") in world.sockets.of


def test_a_question_goes_out_however_much_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that was never asked gave no answer, and lost its column for that."""
    world = World(monkeypatch)
    other = world.sockets.of[TargetId("t1")]
    other.full = True
    world.pass_time(QUIET_US, trickles=False)
    assert other.asked


def test_a_target_hears_that_its_column_went_elsewhere_however_much_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It kept the stream open, and memory for what would not come, until the save was over."""
    world = World(monkeypatch)
    socket = world.sockets.of[TargetId("t0")]
    socket.full = True
    world.pass_time(QUIET_US, trickles=False)
    assert TargetId("t3") in world.sockets.of
    assert AbandonColumn in [type(said) for _, said in socket.sent]


def test_a_column_begins_once_the_link_takes_words_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another payload's cell had filled it."""
    world = World(monkeypatch, full=True)
    socket = world.sockets.of[TargetId("t0")]
    assert socket.sent == []
    socket.full = False
    for _ in range(2):
        world.job.link_drained(cast(Link, socket))
    assert [type(said) for _, said in socket.sent] == [BeginColumn]
    world.accepts(socket)
    assert world.job.pump()
    assert Fragment in [type(said) for _, said in socket.sent]
