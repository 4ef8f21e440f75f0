"""How a session is guarded is the server's word, which nobody on the way changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import astuple
from functools import partial

import pytest
from msgspec import structs

from ckpt.base.errors import Refused, Unauthorized
from ckpt.format.messages.hello import ClientProof, Failed, ServerHello, Wire
from ckpt.protocol import handshake
from ckpt.protocol.handshake import Established, ServerHandshake
from tests.protocol.test_handshake import SECRET, TARGET, Earlier, client, server, shake


@pytest.mark.parametrize("wire", Wire)
def test_the_server_says_how_bulks_are_guarded(wire: Wire) -> None:
    a, b = client(), server(wire=wire)
    assert shake(a, b).wire is wire
    assert b.established is not None
    assert b.established.wire is wire
    assert a.keys is not None
    assert len(set(astuple(a.keys))) == 6, "each key for one thing"


@pytest.mark.parametrize("wanted", Wire)
def test_a_server_hears_what_its_client_wants_and_nobody_changes_that(wanted: Wire) -> None:
    a = client()
    b = ServerHandshake(secret=SECRET, identity=lambda: TARGET, nonce=b"s" * 32)
    proof = a.receive(b.receive(a.hello(wanted)))
    assert isinstance(proof, ClientProof)
    other = Wire.PLAIN if wanted is Wire.MAC else Wire.MAC
    with pytest.raises(Unauthorized):
        copy.copy(b).receive(structs.replace(proof, wire=other))
    end = a.receive(b.receive(proof))
    assert isinstance(end, Established)
    assert end.wire is wanted


@pytest.mark.parametrize("changed", ["hello of the client", "hello of the server"])
def test_nobody_on_the_way_talks_two_peers_down_to_the_version_without_tags(changed: str) -> None:
    a, b = client(), server(wire=Wire.MAC)
    hello = a.hello(Wire.MAC)
    if changed == "hello of the client":
        hello = structs.replace(hello, version=1)
    answer = b.receive(hello)
    assert isinstance(answer, ServerHello)
    if changed == "hello of the server":
        answer = structs.replace(answer, version=1)
    with pytest.raises(Unauthorized):
        a.receive(answer)


@pytest.mark.parametrize("older", ["client", "server"])
def test_with_a_peer_of_0_1_0_bulks_have_no_tags(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = client(), server(wire=Wire.MAC)

    def step(who: str, work: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            if who == older:
                patch.setattr(handshake, "PROTOCOL_VERSION", 1)
                patch.setattr(handshake, "HELLO_VERSION", 1)
            return work()

    said = step("client", lambda: a.hello(Wire.MAC))
    for who, hear in (("server", b.receive), ("client", a.receive), ("server", b.receive)):
        said = step(who, partial(hear, said))  # type: ignore[arg-type]
    end = a.receive(said)  # type: ignore[arg-type]
    assert isinstance(end, Established)
    assert (end.wire, end.version) == (Wire.PLAIN, 1)
    assert b.established is not None
    assert b.established.wire is Wire.PLAIN


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_that_cannot_encrypt_is_refused_by_name_where_that_was_asked_for(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = client(), server(wire=Wire.ENCRYPT)

    def as_ever(work: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(handshake, "PROTOCOL_VERSION", version)
            patch.setattr(handshake, "MOVES_VERSION", 99)
            patch.setattr(handshake, "HELLO_VERSION", version)
            return work()

    said = b.receive(as_ever(a.hello))  # type: ignore[arg-type]
    refusal = b.receive(as_ever(partial(a.receive, said)))  # type: ignore[arg-type]
    assert isinstance(refusal, Failed)
    assert refusal.code == Refused.code
    assert refusal.message == (
        "target t3 encrypts all that it says; "
        f"stager host:42 speaks protocol {version}, which cannot"
    )
    assert refusal.hint == ('upgrade it, or set wire to "mac" on the target until all are upgraded')
    assert b.established is None
    with pytest.raises(Refused, match="encrypts all that it says"):
        as_ever(partial(a.receive, refusal))


def test_a_server_of_before_says_nothing_of_encryption_and_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client asks for tags at most: it follows."""
    a, b, earlier = client(), server(wire=Wire.MAC), Earlier(monkeypatch)
    proof = a.receive(earlier(b.receive, a.hello(Wire.MAC)))
    assert isinstance(proof, ClientProof)
    assert proof.wire is Wire.MAC
    end = a.receive(earlier(b.receive, proof))
    assert isinstance(end, Established)
    assert (end.wire, end.version) == (Wire.MAC, 2)
