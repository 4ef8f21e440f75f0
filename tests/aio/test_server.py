"""A server's peers may be malformed, oversized, truncated, silent or greedy;
it cuts them off and lives on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.serving.server_limits import ServerLimits
from ckpt.aio.net.socketpath import socket_path
from ckpt.base.errors import Busy, Refused
from ckpt.base.ids import BootId, Epoch
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, UNAUTHENTICATED_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import CancelRequest, ClientHello, ClientProof, Role
from ckpt.format.messages.writing import CreditGranted, Fragment
from ckpt.protocol.events import Session
from ckpt.testing.network import RecordingHandler
from tests.aio.netkit import IDENTITY, RawPeer, ServerThread, serving

QUICK = ServerLimits(unauthenticated_life_us=200_000, frame_silence_us=200_000, unread_us=200_000)

PATIENT_US = 10**9


@pytest.fixture
def running() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


@pytest.fixture
def quick() -> Iterator[ServerThread]:
    with serving(limits=QUICK) as server:
        yield server


def still_serves(running: ServerThread) -> None:
    """A good peer gets its answer."""
    running.handler.answer = lambda heard: running.server.send(
        heard.session, heard.request, Answer(), b"yes"
    )
    with RawPeer(running.server.port) as peer:
        peer.shake().send(Ask("status"), request=7)
        assert peer.receive() == (7, Answer())


def statistic(running: ServerThread, name: str) -> int:
    return int(dataclasses.asdict(running.do(running.server.statistics))[name])


def test_a_session_opens_and_its_frames_carry_the_epoch(running: ServerThread) -> None:
    running.do(lambda: setattr(running.server, "epoch", Epoch(12)))
    with RawPeer(running.server.port) as peer:
        peer.shake()
        running.wait_until(lambda: len(running.handler.opened_) == 1)
        ((session, who),) = running.handler.opened_
        assert (who.role, who.name) == (Role.STAGER, "raw")
        running.do(lambda: running.server.send(session, 0, CreditGranted(1)))
        head = peer.reader.prefix(peer._exactly(48))
        assert head.epoch == 12
        assert peer.handshake.state.value == "done"


def test_another_secret_is_counted_and_cut(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.send(ClientHello(1, Role.STAGER, b"x" * 32))
        peer.receive()
        peer.send(ClientProof(bytes(32), "raw"))
        assert peer.is_cut()
    assert statistic(running, "unauthorized") == 1
    assert running.handler.opened_ == []
    still_serves(running)


def test_a_stranger_cannot_send_a_request_or_a_bulk(running: ServerThread) -> None:
    for message, bulk in ((Ask("status"), b""), (Fragment(0, crc32(b"x")), b"x")):
        with RawPeer(running.server.port) as peer:
            peer.send(message, bulk=bulk)
            assert peer.is_cut()
    assert statistic(running, "malformed") == 2
    assert running.handler.received_ == []
    still_serves(running)


def test_a_stranger_gets_no_more_than_a_page(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.send(ClientHello(1, Role.STAGER, b"x" * 8000))
        assert peer.is_cut()
    assert statistic(running, "malformed") == 1
    still_serves(running)


@pytest.mark.parametrize("told", [b"", b"CKPF", b"GET / HTTP/1.1\r\n"])
def test_a_silent_stranger_is_cut_after_its_time(quick: ServerThread, told: bytes) -> None:
    with RawPeer(quick.server.port) as peer:
        peer.sock.sendall(told)
        assert peer.is_cut()
    assert statistic(quick, "timeout") == 1
    assert statistic(quick, "strangers") == 0
    still_serves(quick)


def test_a_peer_that_stops_within_a_frame_is_cut(quick: ServerThread) -> None:
    with RawPeer(quick.server.port) as peer:
        peer.shake()
        bulk = b"x" * 100_000
        frame = peer.writer.encode(Fragment(0, crc32(bulk)), 1, bulk)
        peer.sock.sendall(frame + bulk[:50_000])
        assert peer.is_cut()
    assert statistic(quick, "silent") == 1
    quick.wait_until(lambda: len(quick.handler.closed_) == 1)
    assert quick.handler.received_ == []
    assert quick.pool.free_bytes == quick.pool.total_bytes
    still_serves(quick)


def test_a_quiet_session_between_frames_stays(quick: ServerThread) -> None:
    with RawPeer(quick.server.port) as peer, RawPeer(quick.server.port) as silent:
        peer.shake()
        # By the time that a stranger was cut, several limits have passed.
        assert silent.is_cut()
        peer.send(Ask("status"))
        quick.wait_until(lambda: len(quick.handler.received_) == 1)


def test_a_truncated_frame_is_counted(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.shake()
        peer.sock.sendall(peer.writer.encode(Ask("status"), 1)[:60])
    running.wait_until(lambda: len(running.handler.closed_) == 1)
    assert statistic(running, "malformed") == 1
    still_serves(running)


def test_a_bulk_that_fails_its_checksum_is_not_delivered(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.shake()
        frame = peer.writer.encode(Fragment(0, crc32(b"good")), 1, b"good")
        peer.sock.sendall(frame + b"evil")
        assert peer.is_cut()
    assert running.handler.received_ == []
    assert statistic(running, "malformed") == 1
    assert running.pool.free_bytes == running.pool.total_bytes


def test_a_repeated_frame_is_not_delivered(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.shake()
        frame = peer.writer.encode(Ask("status"), 1)
        peer.sock.sendall(frame + frame)
        assert peer.is_cut()
    assert len(running.handler.received_) == 1


def test_a_peer_that_does_not_read_is_cut_by_bytes() -> None:
    with serving(limits=ServerLimits(queued_bytes_max=8 * MiB)) as running:
        with RawPeer(running.server.port) as peer:
            peer.shake()
            running.wait_until(lambda: len(running.handler.opened_) == 1)
            session = running.handler.opened_[0][0]
            given_back: list[int] = []

            def flood() -> None:
                for number in range(16):
                    running.server.send(
                        session,
                        1,
                        Answer(),
                        bytes(4 * MiB),
                        sent=lambda n=number: given_back.append(n),
                    )

            running.do(flood)
            running.wait_until(lambda: len(running.handler.closed_) == 1)
        assert statistic(running, "unread") == 1
        assert sorted(given_back) == list(range(16))
        still_serves(running)


def test_a_peer_that_does_not_read_is_cut_by_time(quick: ServerThread) -> None:
    with RawPeer(quick.server.port) as peer:
        peer.shake()
        quick.wait_until(lambda: len(quick.handler.opened_) == 1)
        session = quick.handler.opened_[0][0]
        quick.do(
            lambda: [quick.server.send(session, 1, Answer(), bytes(8 * MiB)) for _ in range(4)]
        )
        quick.wait_until(lambda: len(quick.handler.closed_) == 1)
    assert statistic(quick, "unread") == 1


class Hoarder(RecordingHandler):
    """Keeps every bulk until told."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Bulk] = []

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        assert bulk is not None
        self.held.append(bulk)
        super().received(session, request, message, None)


def test_peers_wait_for_slots_and_all_go_on() -> None:
    handler = Hoarder()
    with serving(handler=handler, pool_bytes=8 * MiB) as running, ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(running.server.port)).shake() for _ in range(4)]
        bulk = os.urandom(3 * MiB)
        # The kernel does not take all of it while nobody reads.
        senders = [
            threading.Thread(target=peer.send, args=(Fragment(0, crc32(bulk)), 1, bulk))
            for peer in peers
        ]
        for sender in senders:
            sender.start()
            stack.callback(sender.join)
        running.wait_until(lambda: len(handler.held) == 2)
        assert any(statistic(running, "waiting") == 2 for _ in range(100_000))
        assert statistic(running, "slot_waits") >= 2
        # From this thread, as a disk writer would.
        for number in range(4):
            running.wait_until(lambda n=number: len(handler.held) > n)
            assert bytes(handler.held[number].view) == bulk
            handler.held[number].release()
        assert running.pool.free_bytes == running.pool.total_bytes
        assert statistic(running, "waiting") == 0


def test_what_waited_for_a_slot_goes_on_at_once() -> None:
    """The bulk before it asked to be woken for a MiB; of this one, and of what follows, that much
    never comes."""
    handler = Hoarder()
    patient = ServerLimits(frame_silence_us=PATIENT_US, unread_us=PATIENT_US)
    with (
        serving(handler=handler, pool_bytes=8 * MiB, limits=patient) as running,
        RawPeer(running.server.port) as peer,
    ):
        peer.shake()
        first, second = bytes(8 * MiB), os.urandom(100_000)
        frame = peer.writer.encode(Fragment(0, crc32(first)), 1, first) + first
        peer.sock.sendall(frame[: 4 * MiB])
        # What has come since the last MiB wakes nobody.
        while statistic(running, "received_bytes") < 3 * MiB:
            assert not handler.held
        peer.sock.sendall(frame[4 * MiB :])
        peer.send(Fragment(0, crc32(second)), 2, second)
        running.wait_until(lambda: len(handler.held) == 1)
        while not statistic(running, "waiting"):
            assert len(handler.held) == 1
        handler.held[0].release()
        running.wait_until(lambda: len(handler.held) == 2)
        assert handler.held[1].view == second
        peer.send(Fragment(0, crc32(b"x")), 3, b"x")
        running.wait_until(lambda: len(handler.held) == 3)
        for bulk in handler.held[1:]:
            bulk.release()


def test_the_largest_bulk_passes_and_one_byte_more_does_not(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.shake()
        bulk = bytes(FRAME_BULK_BYTES_MAX)
        peer.send(Fragment(0, crc32(bulk)), 1, bulk)
        running.wait_until(lambda: len(running.handler.received_) == 1)
        frame = bytearray(peer.writer.encode(Fragment(0, 0), 1))
        struct.pack_into("<I", frame, 12, FRAME_BULK_BYTES_MAX + 1)
        peer.sock.sendall(frame)
        assert peer.is_cut()
    assert statistic(running, "malformed") == 1


def test_without_descriptors_a_server_rests_and_comes_back(running: ServerThread) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        waiting = stack.enter_context(socket.socket())
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        try:
            waiting.connect(("127.0.0.1", running.server.port))
            assert any(statistic(running, "shortages") for _ in range(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        still_serves(running)


def test_a_unix_path_of_a_dead_server_is_taken_over_and_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    path = socket_path(tmp_path, "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    with serving(unix=path):
        with pytest.raises(Busy), serving(unix=path):
            raise AssertionError("two servers on one path")
        assert os.stat(path).st_mode & 0o077 == 0
    assert not os.path.exists(path)


def test_a_unix_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused), serving(unix=str(tmp_path / ("x" * 120))):
        raise AssertionError("listening")


def test_bytes_are_counted(running: ServerThread) -> None:
    with RawPeer(running.server.port) as peer:
        peer.shake()
        peer.send(Fragment(0, crc32(b"x" * 1000)), 1, b"x" * 1000)
        running.wait_until(lambda: len(running.handler.received_) == 1)
    running.wait_until(lambda: len(running.handler.closed_) == 1)
    assert statistic(running, "received_bytes") > 1000
    assert statistic(running, "sent_bytes") > 100
    assert statistic(running, "opened") == 1


# --------------------------------------------------------------------------- fuzz


@pytest.mark.parametrize("seed", range(12))
def test_noise_never_opens_a_session_and_never_ends_the_server(seed: int) -> None:
    rng = random.Random(seed)
    with serving(limits=QUICK) as running:
        for _ in range(20):
            with RawPeer(running.server.port) as peer:
                _send_quietly(peer.sock, _noise(rng, peer))
                if rng.random() < 0.5:
                    _hang_up(peer.sock)
                    assert peer.is_cut()
        assert running.handler.opened_ == []
        still_serves(running)


@pytest.mark.parametrize("seed", range(12))
def test_noise_within_a_session_ends_only_this_session(seed: int) -> None:
    rng = random.Random(1000 + seed)
    with serving(limits=QUICK) as running:
        with RawPeer(running.server.port) as steady:
            steady.shake()
            for count in range(2, 14):
                with RawPeer(running.server.port) as peer:
                    peer.shake()
                    _send_quietly(peer.sock, _damaged_frames(rng, peer))
                    _hang_up(peer.sock)
                    assert peer.is_cut()
                running.wait_until(lambda n=count: len(running.handler.closed_) == n - 1)
            steady.send(Ask("steady"))
            running.wait_until(
                lambda: any(heard.message == Ask("steady") for heard in running.handler.received_)
            )
        assert running.pool.free_bytes == running.pool.total_bytes
        still_serves(running)


def _send_quietly(sock: socket.socket, data: bytes) -> None:
    """The server may have cut the connection already."""
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def _hang_up(sock: socket.socket) -> None:
    """No more will be sent; the server may have gone first."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _noise(rng: random.Random, peer: RawPeer) -> bytes:
    hello = peer.writer.encode(peer.handshake.hello(), 0)
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(1, 9000))
        case 1:
            return hello[: rng.randrange(1, len(hello))]
        case 2:
            return _flip(rng, hello)
        case _:
            return hello + rng.randbytes(rng.randrange(1, 9000))


def _damaged_frames(rng: random.Random, peer: RawPeer) -> bytes:
    """A few good frames, then one that is damaged somewhere outside its bulk, or cut short."""
    parts: list[bytes] = []
    for _ in range(rng.randrange(4)):
        bulk = rng.randbytes(rng.choice((0, 1, 5000, 200_000)))
        parts.append(peer.writer.encode(Fragment(1, crc32(bulk)), 1, bulk) + bulk)
    last = peer.writer.encode(rng.choice((CancelRequest(), Ask("x" * rng.randrange(9000)))), 3)
    if rng.random() < 0.7:
        return b"".join(parts) + _flip(rng, last)
    return b"".join(parts) + last[: rng.randrange(len(last))]


def _flip(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def test_a_stranger_has_five_seconds_four_kibibytes_and_2047_others_beside_it() -> None:
    limits = ServerLimits()
    assert limits.unauthenticated_life_us == 5_000_000
    assert limits.unauthenticated_peers_max == 2048
    assert UNAUTHENTICATED_BYTES_MAX == 4096


def test_who_proves_itself_as_another_term_begins_hears_of_that_one() -> None:
    """It came while nobody led; who leads now names all coordinators."""
    later = dataclasses.replace(
        IDENTITY, boot=BootId(78), epoch=Epoch(5), coordinators=("10.0.0.1:1",)
    )
    with serving() as served, RawPeer(served.server.port) as peer:
        proof = peer.greet()

        def begin() -> None:
            served.server.identity, served.server.epoch = later, later.epoch

        served.do(begin)
        heard = peer.prove(proof)
        assert (heard.boot, heard.epoch, heard.coordinators) == (
            later.boot, later.epoch, later.coordinators
        )  # fmt: skip
