"""The stager's end of its socket: what a trainer said before it went away is heard, whatever was
still on its way to it.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ckpt.base.errors import PeerError
from ckpt_client.stager import wire
from ckpt_client.stager.channel import TrainerChannel
from tests.deep import too_deep

NEWS = wire.HalfOpen(0)
LAST_WORD = wire.DropStaging(7)


class Pair(NamedTuple):
    """Both ends of one socket."""

    trainer: socket.socket
    channel: TrainerChannel

    def say(self) -> None:
        """The trainer's last word."""
        self.trainer.send(wire.encode_packet(LAST_WORD))


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = Pair(ours, TrainerChannel(theirs))
    with ours:
        yield made
    made.channel.close()
    made.channel.forget_process()


def test_a_trainer_that_died_with_news_unread_is_heard_to_its_last_word(pair: Pair) -> None:
    pair.channel.send(NEWS)
    pair.say()
    pair.trainer.close()
    assert list(pair.channel.receive()) == [LAST_WORD]
    assert pair.channel.ended()


def test_news_that_no_trainer_takes_any_more_does_not_lose_its_last_word(pair: Pair) -> None:
    pair.say()
    pair.trainer.close()
    pair.channel.send(NEWS)
    assert not pair.channel.ended(), "the owner hears of the end from receive, after the last word"
    assert list(pair.channel.receive()) == [LAST_WORD]
    assert pair.channel.ended()


def test_a_descriptor_that_was_not_taken_is_closed(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pair.trainer.close()
    memory = os.memfd_create("test")
    pair.channel.send(wire.HalfReady(0, 4096, 0), memory)
    os.close(memory)
    assert len(os.listdir("/proc/self/fd")) == before - 1, "the trainer's end is closed, no more"


def test_the_trainer_hears_a_stager_that_ended_with_a_packet_unread(pair: Pair) -> None:
    pair.say()
    pair.channel.send(NEWS)
    pair.channel.close()
    packet, _ = wire.receive_packet(pair.trainer)
    assert wire.decode_from_stager(packet) == NEWS
    assert wire.receive_packet(pair.trainer) == (b"", None)


def test_a_store_that_was_closed_is_no_process_that_ended(pair: Pair) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pair.channel.watch_process(process.pid)
        pair.trainer.close()
        assert list(pair.channel.receive()) == []
        assert pair.channel.ended()
        assert not pair.channel.process_ended()
        process.kill()
        (watched,) = pair.channel.descriptors
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        assert poll.poll(60_000), "it wakes who waits for it"
        assert pair.channel.process_ended()
        assert pair.channel.descriptors == []
        assert pair.channel.process_ended(), "for good"


def test_a_process_that_nobody_can_watch_ends_with_its_socket(pair: Pair) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    pair.channel.watch_process(process.pid)
    assert not pair.channel.process_ended()
    pair.trainer.close()
    assert list(pair.channel.receive()) == []
    assert pair.channel.process_ended()


def test_a_packet_of_arrays_within_arrays_is_the_trainer_s_fault() -> None:
    packet = wire.encode_packet(LAST_WORD)
    deep = bytes([packet[0] + 1]) + packet[1:] + too_deep(wire.PACKET_BYTES_MAX - len(packet))
    with pytest.raises(PeerError, match="does not parse"):
        wire.decode_from_trainer(deep)
    with pytest.raises(PeerError, match="does not parse"):
        wire.decode_from_stager(deep)
