"""What somebody on the way can do to bulks, and that tags end it."""

from __future__ import annotations

import random
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.net.wire_policy import WirePolicy, check_settled, is_one_host, wanted_for
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Wire
from ckpt.native import libcrypto
from ckpt.testing.network import Heard
from tests.aio.netkit import PATIENCE_S, ServerThread
from tests.aio.tap import Way, dialed, tapped

POLYNOMIAL = (1 | 0xEDB88320 << 1).to_bytes(5, "little")
"""CRC-32's own: bytes that differ by it have one checksum."""
GOOD = random.Random(4).randbytes(64)
"""What the one in the middle looks for."""


def evil(content: bytes) -> bytes:
    """Other bytes with the same checksum."""
    return bytes(a ^ b for a, b in zip(content, POLYNOMIAL, strict=False)) + content[5:]


class Middle:
    """I change bulks that I know in what one peer says."""

    def __init__(self) -> None:
        self.changed = 0
        self._held = b""

    def change(self, part: bytes) -> bytes:
        held = self._held + part
        if GOOD in held:
            held, self.changed = held.replace(GOOD, evil(GOOD)), self.changed + 1
        # What may be the beginning of it waits for its rest. One byte is not enough: each 256th
        # handshake ends with it, and has no rest.
        keep = next((n for n in range(len(GOOD) - 1, 1, -1) if held.endswith(GOOD[:n])), 0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


@contextmanager
def between(
    wire: WirePolicy, way: Way = Way.UP
) -> Iterator[tuple[ServerThread, Middle, RpcClient]]:
    """`way`: what is changed."""
    middle = Middle()
    with tapped(wire) as (running, tap), dialed(tap) as rpc:
        tap.changes[way] = middle.change
        yield running, middle, rpc


def answering(running: ServerThread, bulk: Callable[[Heard], bytes]) -> list[bytes]:
    """Every question gets this; what came with it is listed."""
    heard: list[bytes] = []

    def answer(question: Heard) -> None:
        if isinstance(question.message, Ask):
            heard.append(bytes(question.bulk))
            running.server.send(question.session, question.request, Answer(), bulk(question))

    running.handler.answer = answer
    return heard


SIZES = pytest.mark.parametrize("around", [0, 300_000], ids=["small", "large"])
"""With its message in one segment; landing by itself."""


def content(around: int) -> bytes:
    return random.Random(around).randbytes(around) + GOOD + random.Random(5).randbytes(around)


def test_a_checksum_alone_does_not_see_who_changes_bytes_on_purpose() -> None:
    """Why there are tags: this is what `plain` does not do."""
    assert evil(GOOD) != GOOD
    assert zlib.crc32(evil(GOOD)) == zlib.crc32(GOOD)
    with between(WirePolicy.PLAIN) as (running, middle, rpc):
        heard = answering(running, lambda _: b"")
        rpc.call(Ask("status"), content(0), timeout_s=PATIENCE_S)
        assert (heard, middle.changed) == ([evil(GOOD)], 1)


@SIZES
def test_what_was_changed_on_the_way_to_a_server_is_never_heard(around: int) -> None:
    with between(WirePolicy.MAC) as (running, middle, rpc):
        heard = answering(running, lambda _: b"fine")
        assert bytes(rpc.call(Ask("status"), b"other bytes", timeout_s=PATIENCE_S)[1]) == b"fine"
        with pytest.raises(Unavailable):
            rpc.call(Ask("status"), content(around), timeout_s=1.0)
        assert middle.changed
        assert heard == [b"other bytes"]
        assert running.do(running.server.statistics).malformed >= 1


@SIZES
def test_what_was_changed_on_the_way_back_is_never_returned(around: int) -> None:
    with between(WirePolicy.MAC, Way.DOWN) as (running, middle, rpc):
        answering(running, lambda _: content(around))
        with pytest.raises(Unavailable):
            rpc.call(Ask("status"), timeout_s=1.0)
        assert middle.changed


@SIZES
def test_tags_of_what_nobody_changed_fit(around: int) -> None:
    with between(WirePolicy.MAC) as (running, _, rpc):
        assert rpc.peer is None or rpc.peer.wire is Wire.MAC
        sent = content(around).replace(GOOD, b"")
        heard = answering(running, lambda question: bytes(question.bulk)[::-1])
        for number in range(3):
            part = sent[number:] + b"."
            assert bytes(rpc.call(Ask("status"), part, timeout_s=PATIENCE_S)[1]) == part[::-1]
            assert heard[-1] == part
        assert rpc.peer is not None
        assert rpc.peer.wire is Wire.MAC


def test_by_default_what_stays_on_this_host_has_no_tags() -> None:
    with between(WirePolicy.AUTO) as (running, _, rpc):
        answering(running, lambda _: b"fine")
        rpc.call(Ask("status"), timeout_s=PATIENCE_S)
        assert rpc.peer is not None
        assert rpc.peer.wire is Wire.PLAIN


@pytest.mark.parametrize(
    ("policy", "wanted", "settled"),
    [
        (WirePolicy.AUTO, Wire.PLAIN, Wire.PLAIN),
        (WirePolicy.AUTO, Wire.MAC, Wire.MAC),
        (WirePolicy.MAC, Wire.PLAIN, Wire.MAC),
        (WirePolicy.MAC, Wire.MAC, Wire.MAC),
        (WirePolicy.ENCRYPT, Wire.PLAIN, Wire.ENCRYPT),
        (WirePolicy.ENCRYPT, Wire.MAC, Wire.ENCRYPT),
        (WirePolicy.PLAIN, Wire.MAC, Wire.PLAIN),
    ],
)
def test_a_client_that_is_remote_gets_tags_through_a_proxy_on_the_server_s_host(
    policy: WirePolicy, wanted: Wire, settled: Wire
) -> None:
    """Its connection comes from the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        far, _ = door.accept()
        with near, far:
            assert policy.settled(far)(wanted) is settled
            assert wanted_for(near) is Wire.PLAIN


@pytest.mark.parametrize("policy", WirePolicy)
def test_nobody_stands_on_the_way_of_a_unix_socket(policy: WirePolicy) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert policy.settled(far)(wanted_for(near)) is Wire.PLAIN


@pytest.mark.parametrize(
    ("theirs", "ours", "one"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.3.2.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
    ],
)
def test_what_one_host_is(theirs: str, ours: str, one: bool) -> None:
    assert is_one_host(theirs, ours) is one


@pytest.mark.parametrize(
    ("wire", "host", "served"),
    [
        (WirePolicy.AUTO, "127.0.0.1", True),
        (WirePolicy.AUTO, "localhost", True),
        (WirePolicy.AUTO, "0.0.0.0", False),
        (WirePolicy.AUTO, "::", False),
        (WirePolicy.AUTO, "node7", False),
        (WirePolicy.MAC, "127.0.0.1", False),
        (WirePolicy.ENCRYPT, "127.0.0.1", False),
        (WirePolicy.PLAIN, "0.0.0.0", True),
    ],
)
def test_without_libcrypto_nobody_listens_to_other_hosts(
    wire: WirePolicy, host: str, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libcrypto, "_candidates", lambda: iter(["/nowhere/libcrypto.so"]))
    libcrypto.find_libcrypto.cache_clear()
    try:
        with nullcontext() if served else pytest.raises(CkptError, match="no libcrypto"):
            wire.prepare(host)
    finally:
        libcrypto.find_libcrypto.cache_clear()


def test_another_word_is_refused() -> None:
    with pytest.raises(Refused, match="'tls': one of auto, mac, encrypt, plain"):
        WirePolicy.parse("tls")


@pytest.mark.parametrize(
    ("least", "policy", "given"),
    [
        ("mac", WirePolicy.AUTO, Wire.MAC),
        ("mac", WirePolicy.ENCRYPT, Wire.ENCRYPT),
        ("encrypt", WirePolicy.AUTO, Wire.ENCRYPT),
        ("encrypt", WirePolicy.MAC, Wire.ENCRYPT),
        ("auto", WirePolicy.PLAIN, Wire.PLAIN),
        ("plain", WirePolicy.MAC, Wire.MAC),
    ],
)
def test_a_client_gets_no_less_than_it_insists_on(
    least: str, policy: WirePolicy, given: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_WIRE", least)
    with between(policy) as (running, _, rpc):
        answering(running, lambda _: b"fine")
        rpc.call(Ask("status"), timeout_s=PATIENCE_S)
        assert rpc.peer is not None
        assert rpc.peer.wire is given


@pytest.mark.parametrize("least", ["mac", "encrypt"])
def test_a_client_that_insists_says_nothing_to_a_server_that_gives_less(
    least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_WIRE", least)
    with between(WirePolicy.PLAIN) as (running, _, rpc):
        heard = answering(running, lambda _: b"fine")
        text = f"the coordinator gives its sessions 'plain', and CKPT_WIRE={least} takes no less"
        with pytest.raises(Refused, match=text) as caught:
            rpc.call(Ask("status"), b"a secret", timeout_s=PATIENCE_S)
        assert f'set wire to "{least}"' in (caught.value.hint or "")
        assert heard == []


def test_a_client_that_insists_on_no_known_word_connects_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with between(WirePolicy.MAC) as (_, _, rpc):
        monkeypatch.setenv("CKPT_WIRE", "tls")
        with pytest.raises(Refused, match="CKPT_WIRE 'tls': one of auto, mac, encrypt, plain"):
            rpc.call(Ask("status"), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("policy", WirePolicy)
def test_a_daemon_does_not_begin_with_an_unknown_word(
    policy: WirePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_WIRE", "tls")
    with pytest.raises(Refused, match="CKPT_WIRE 'tls'"):
        policy.prepare("127.0.0.1")


def test_a_unix_socket_is_enough_for_whoever_insists() -> None:
    near, far = socket.socketpair()
    with near, far:
        insisting = {"CKPT_WIRE": "encrypt"}
        assert wanted_for(near, insisting) is Wire.PLAIN
        check_settled(near, Wire.PLAIN, "the target t1", insisting)
