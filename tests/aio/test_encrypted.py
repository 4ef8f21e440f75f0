"""What somebody on the way sees of an encrypted session, and can do to it: sizes, and ending it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import (
    ClientHello,
    ClientProof,
    Failed,
    Role,
    ServerHello,
    Wire,
)
from ckpt.native import gcm
from ckpt.native.gcm import TAG_BYTES
from ckpt.protocol import session_keys
from ckpt.testing.network import Heard
from tests.aio.netkit import PATIENCE_S, SECRET, RawPeer, ServerThread, serving
from tests.aio.tap import COORDINATOR, Hangup, Tap, Way, dialed, tapped
from tests.waiting import wait_until

SMALL, LARGE = 100, 700_001
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
"""With its message in one segment; landing by itself, in several blocks and slices."""
WAYS = pytest.mark.parametrize("way", Way)


def content(size: int, seed: int = 4) -> bytes:
    return random.Random(seed).randbytes(size)


class Conversation:
    """A client that asks, a server that answers backwards, and somebody between them."""

    def __init__(self, running: ServerThread, tap: Tap, rpc: RpcClient) -> None:
        self.running, self.tap, self.rpc = running, tap, rpc
        self.heard: list[bytes] = []
        running.handler.answer = self._answer

    def _answer(self, question: Heard) -> None:
        if isinstance(question.message, Ask):
            bulk = bytes(question.bulk)
            self.heard.append(bulk or question.message.what.encode())
            self.running.server.send(question.session, question.request, Answer(), bulk[::-1])

    def ask(self, bulk: bytes, what: str = "status") -> None:
        """The answer is right, however often it was asked for."""
        answer = self.rpc.call(Ask(what), bulk, timeout_s=PATIENCE_S)[1]
        assert bytes(answer) == bulk[::-1]

    def wait_until_refused(self) -> None:
        server = self.running.server
        wait_until(lambda: self.running.do(server.statistics).malformed > 0, "it was cut off")


@pytest.fixture
def talk() -> Iterator[Conversation]:
    with tapped(WirePolicy.ENCRYPT) as (running, tap), dialed(tap) as rpc:
        conversation = Conversation(running, tap, rpc)
        conversation.ask(b"the first question")
        yield conversation


def test_nothing_that_is_said_can_be_read_on_the_way() -> None:
    secrets = content(SMALL), content(LARGE, 5)
    for policy, shown in ((WirePolicy.MAC, True), (WirePolicy.ENCRYPT, False)):
        with tapped(policy) as (running, tap), dialed(tap) as rpc:
            conversation = Conversation(running, tap, rpc)
            for bulk in secrets:
                conversation.ask(bulk, what="name-of-a-tensor")
            up, down = bytes(tap.said[Way.UP]), bytes(tap.said[Way.DOWN])
            assert (b"name-of-a-tensor" in up) is shown
            for bulk in secrets:
                for at in range(0, len(bulk) - 50, 9973):
                    assert (bulk[at : at + 50] in up) is shown
                    assert (bulk[::-1][at : at + 50] in down) is shown


@SIZES
def test_what_nobody_changed_arrives(talk: Conversation, size: int) -> None:
    assert talk.rpc.peer is not None
    assert talk.rpc.peer.wire is Wire.ENCRYPT
    asked = [content(size + more, more) for more in (0, 1, 131_072)]
    for bulk in asked:
        talk.ask(bulk)
    assert talk.heard == [b"the first question", *asked]
    assert talk.running.do(talk.running.server.statistics).malformed == 0


def test_keys_that_change_in_the_middle_of_a_session_are_the_same_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcm, "FRAMES_PER_KEY", 3)
    with tapped(WirePolicy.ENCRYPT) as (running, tap), dialed(tap) as rpc:
        conversation = Conversation(running, tap, rpc)
        asked = [content(size, size) for size in (1, SMALL, LARGE, 5, 6, 7, 8, LARGE + 1, 9, 10)]
        for bulk in asked:
            conversation.ask(bulk)
        assert conversation.heard == asked
        assert running.do(running.server.statistics).accepted == 1, "in one session"


@WAYS
@SIZES
@pytest.mark.parametrize("where", ["length", "head", "tag of the head", "bulk", "tag of the bulk"])
def test_a_changed_bit_ends_the_session_and_is_never_heard(
    talk: Conversation, way: Way, size: int, where: str
) -> None:
    bulk = content(size)

    def flip(frames: list[bytes]) -> bytes:
        frame = bytearray(frames[0])
        end = len(frame) - TAG_BYTES - size
        frame[
            {"length": 0, "head": 5, "tag of the head": end - 1, "bulk": end + size // 2}.get(
                where, len(frame) - 1
            )
        ] ^= 1
        return bytes(frame)

    talk.tap.on_frames(way, flip, bulk_bytes=size)
    talk.ask(bulk)
    assert talk.heard == [b"the first question", *[bulk] * (1 if way is Way.UP else 2)]
    assert talk.running.do(talk.running.server.statistics).accepted == 2
    if way is Way.UP:
        talk.wait_until_refused()


@SIZES
def test_what_is_said_again_is_not_heard_again(talk: Conversation, size: int) -> None:
    bulk = content(size)
    talk.tap.on_frames(Way.UP, lambda frames: frames[0] * 2, bulk_bytes=size)
    talk.ask(bulk)
    talk.wait_until_refused()
    assert set(talk.heard) == {b"the first question", bulk}


def test_answers_that_come_again_are_not_taken_for_other_answers(talk: Conversation) -> None:
    kept: list[bytes] = []
    talk.tap.on_frames(Way.DOWN, lambda frames: kept.append(frames[0]) or frames[0], bulk_bytes=9)
    talk.ask(b"question1")
    talk.tap.on_frames(Way.DOWN, lambda _: kept[0], bulk_bytes=9)
    talk.ask(b"question2")
    assert talk.heard[-2:] == [b"question2"] * 2, "it was asked once more"


def test_frames_that_changed_places_are_refused(talk: Conversation) -> None:
    talk.tap.on_frames(Way.UP, lambda frames: frames[1] + frames[0], count=2)
    talk.rpc.tell(Ask("one"))
    talk.rpc.tell(Ask("two"))
    talk.wait_until_refused()
    assert talk.heard == [b"the first question"]


def test_a_frame_that_is_left_out_is_missed(talk: Conversation) -> None:
    talk.tap.on_frames(Way.UP, lambda frames: frames[1], count=2)
    talk.rpc.tell(Ask("one"))
    talk.rpc.tell(Ask("two"))
    talk.wait_until_refused()
    assert talk.heard == [b"the first question"]


@SIZES
def test_the_bulk_of_another_frame_is_refused(talk: Conversation, size: int) -> None:
    kept: list[bytes] = []
    talk.tap.on_frames(Way.UP, lambda frames: kept.append(frames[0]) or frames[0], bulk_bytes=size)
    talk.ask(content(size, 1))
    bulk_bytes = size + TAG_BYTES
    talk.tap.on_frames(
        Way.UP, lambda frames: frames[0][:-bulk_bytes] + kept[0][-bulk_bytes:], bulk_bytes=size
    )
    talk.ask(content(size, 2))
    talk.wait_until_refused()
    assert talk.heard == [b"the first question", content(size, 1), content(size, 2)]


def test_what_another_session_said_is_refused(talk: Conversation) -> None:
    kept: list[bytes] = []
    with dialed(talk.tap) as other:
        other.call(Ask("status"), b"another first", timeout_s=PATIENCE_S)
        talk.tap.on_frames(Way.UP, lambda frames: kept.append(frames[0]) or frames[0], bulk_bytes=5)
        other.call(Ask("status"), b"spend", timeout_s=PATIENCE_S)
        talk.tap.on_frames(Way.UP, lambda _: kept[0], bulk_bytes=5)
        talk.ask(b"spare")
    talk.wait_until_refused()
    assert talk.heard.count(b"spend") == 1
    assert talk.heard[-1] == b"spare"


def test_what_the_server_said_is_not_taken_from_its_client(talk: Conversation) -> None:
    kept: list[bytes] = []
    talk.tap.on_frames(Way.DOWN, lambda frames: kept.append(frames[0]) or frames[0], bulk_bytes=5)
    talk.ask(b"12345")
    talk.tap.on_frames(Way.UP, lambda _: kept[0], bulk_bytes=5)
    talk.ask(b"54321")
    talk.wait_until_refused()
    assert talk.heard == [b"the first question", b"12345", b"54321"]


@WAYS
@SIZES
@pytest.mark.parametrize("missing", [1, TAG_BYTES, TAG_BYTES + 50])
def test_a_bulk_that_ends_too_soon_is_never_heard(
    talk: Conversation, way: Way, size: int, missing: int
) -> None:
    bulk, passed = content(size), Passed()
    talk.tap.on_frames(way, passed.all_but(missing), bulk_bytes=size)
    talk.ask(bulk)
    assert passed.count == 1
    assert talk.heard == [b"the first question", *[bulk] * (1 if way is Way.UP else 2)]


class Passed:
    """What went on, before the connection was ended."""

    def __init__(self) -> None:
        self.count = 0

    def all_but(self, missing: int) -> Callable[[list[bytes]], bytes]:
        def change(frames: list[bytes]) -> bytes:
            self.count += 1
            raise Hangup(frames[0][:-missing])

        return change


@pytest.mark.parametrize("version", [1, 2])
def test_a_peer_of_before_hears_why_it_cannot_stay_and_nothing_else(version: int) -> None:
    """As it speaks: it says its version in its hello, and proves none."""
    nonce, wire = b"n" * 32, None if version == 1 else Wire.MAC
    with (
        serving(identity=COORDINATOR, wire=WirePolicy.ENCRYPT) as running,
        RawPeer(running.server.port) as peer,
    ):
        peer.send(ClientHello(version, Role.TARGET, nonce))
        hello = peer.receive()[1]
        assert isinstance(hello, ServerHello)
        offer = session_keys.offer_of(
            version, hello.version, Role.TARGET, Role.COORDINATOR, nonce, hello.nonce
        )
        claim = session_keys.claim_of(offer, "t7", "cluster-a", "", wire, 0)
        mac = session_keys.mac_of(SECRET, b"ckpt client", claim)
        peer.send(ClientProof(mac, "t7", "cluster-a", "", wire or Wire.PLAIN))
        peer.reader.set_key(session_keys.session_keys(SECRET, claim).server_to_client)
        refusal = peer.receive()[1]
        assert isinstance(refusal, Failed)
        assert (refusal.code, refusal.message) == (
            "refused",
            "coordinator encrypts all that it says; "
            f"target t7 speaks protocol {version}, which cannot",
        )
        assert peer.is_cut()
        assert running.handler.opened_ == []


def test_a_word_in_the_clear_ends_an_encrypted_session(talk: Conversation) -> None:
    talk.tap.on_frames(Way.UP, lambda _: b"CKPF" + bytes(60))
    talk.rpc.tell(Ask("one"))
    talk.wait_until_refused()
    talk.ask(b"another session")
    assert talk.heard == [b"the first question", b"another session"]
