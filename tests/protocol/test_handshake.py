"""The handshake proves the secret both ways and tells strangers nothing."""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ckpt.base.errors import PeerError, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages import Message
from ckpt.format.messages.hello import (
    HELLO_VERSION,
    PROTOCOL_VERSION,
    CancelRequest,
    ClientHello,
    ClientProof,
    Failed,
    Role,
    ServerHello,
    ServerProof,
    Wire,
)
from ckpt.protocol import handshake
from ckpt.protocol.handshake import (
    NAME_BYTES_MAX,
    Caller,
    ClientHandshake,
    Elsewhere,
    Established,
    HandshakeState,
    Identity,
    ServerHandshake,
)

SECRET = b"the cluster's secret, long enough"
TARGET = Identity("cluster-a", Role.TARGET, "t3", BootId(77), Epoch(5))


def client(
    *,
    secret: bytes = SECRET,
    name: str = "host:42",
    nonce: bytes = b"c" * 32,
    server_role: Role = Role.TARGET,
    cluster: str = "",
    server_name: str = "",
) -> ClientHandshake:
    return ClientHandshake(
        Caller(
            secret,
            Role.STAGER,
            name,
            server_role=server_role,
            cluster=cluster,
            server_name=server_name,
        ),
        nonce=nonce,
    )


def server(
    *, secret: bytes = SECRET, nonce: bytes = b"s" * 32, identity: Identity = TARGET,
    wire: Wire = Wire.PLAIN,
) -> ServerHandshake:  # fmt: skip
    return ServerHandshake(
        secret=secret, identity=lambda: identity, nonce=nonce, wire_for=lambda _: wire
    )


def shake(a: ClientHandshake, b: ServerHandshake) -> Established:
    """All four messages; what the client ends with."""
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    end = a.receive(b.receive(proof))
    assert isinstance(end, Established)
    return end


def test_both_sides_end_with_the_same_keys_and_know_each_other() -> None:
    a, b = client(cluster="cluster-a", server_name="t3"), server()
    assert shake(a, b) == Established(
        Role.TARGET, "t3", "cluster-a", BootId(77), Epoch(5), PROTOCOL_VERSION
    )
    assert b.established == Established(
        Role.STAGER, "host:42", "cluster-a", BootId(0), Epoch(0), PROTOCOL_VERSION
    )
    assert a.keys is not None
    assert a.keys == b.keys
    assert a.keys.client_to_server != a.keys.server_to_client


def test_neither_the_secret_nor_a_key_is_in_any_message() -> None:
    a, b = client(), server()
    said: list[object] = [a.hello()]
    for hear in (b.receive, a.receive, b.receive):
        said.append(hear(said[-1]))  # type: ignore[arg-type]
    assert isinstance(a.receive(said[-1]), Established)  # type: ignore[arg-type]
    assert a.keys is not None
    sent = b"".join(msgspec.msgpack.encode(message) for message in said)
    for hidden in (SECRET, a.keys.client_to_server, a.keys.server_to_client):
        assert len(hidden) >= 32
        for form in (hidden, hidden.hex().encode(), b64encode(hidden)):
            assert form not in sent


@pytest.mark.parametrize("side", ["client", "server"])
def test_every_nonce_enters_the_keys(side: str) -> None:
    first, second = client(), server()
    shake(first, second)
    other = client(nonce=b"C" * 32) if side == "client" else client()
    other_server = server(nonce=b"S" * 32) if side == "server" else server()
    shake(other, other_server)
    assert first.keys is not None
    assert other.keys is not None
    assert first.keys.client_to_server != other.keys.client_to_server
    assert first.keys.server_to_client != other.keys.server_to_client


def test_a_client_refuses_a_server_with_another_secret_before_it_names_itself() -> None:
    a, b = client(), server(secret=b"another secret of some length")
    with pytest.raises(Unauthorized):
        a.receive(b.receive(a.hello()))
    assert a.keys is None
    assert a.state is HandshakeState.FAILED


def test_a_server_refuses_a_client_with_another_secret() -> None:
    # An attacker that goes on although the server's mac tells it nothing.
    b = server()
    b.receive(client().hello())
    forged = ClientProof(mac=bytes(32), name="host:42", cluster="", server="")
    with pytest.raises(Unauthorized):
        b.receive(forged)
    assert b.established is None
    assert b.keys is None


def test_a_hello_names_nobody() -> None:
    a, b = client(cluster="cluster-a", server_name="t3"), server()
    hello = a.hello()
    assert hello == ClientHello(HELLO_VERSION, Role.STAGER, b"c" * 32)
    answer = b.receive(hello)
    assert isinstance(answer, ServerHello)
    assert set(answer.__struct_fields__) == {"version", "nonce", "mac"}


def test_a_server_cannot_pass_for_another_role() -> None:
    a, b = client(server_role=Role.COORDINATOR), server()
    with pytest.raises(Unauthorized):
        a.receive(b.receive(a.hello()))


def test_a_client_that_is_thrown_its_own_words_back_notices() -> None:
    # Reflection: the attacker opens a second connection to the client's own listener and copies.
    a = client(server_role=Role.STAGER)
    with pytest.raises(PeerError):
        a.receive(a.hello())
    b = server()
    hello = b.receive(client().hello())
    assert isinstance(hello, ServerHello)
    with pytest.raises(Unauthorized):
        b.receive(ClientProof(mac=hello.mac, name="host:42"))


def test_a_recorded_proof_does_not_open_a_second_session() -> None:
    a, b = client(), server()
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    later = server(nonce=b"n" * 32)
    later.receive(a.hello())
    with pytest.raises(Unauthorized):
        later.receive(proof)


@pytest.mark.parametrize("name", ["name", "cluster", "server"])
def test_a_changed_name_in_a_proof_is_refused(name: str) -> None:
    a, b = client(cluster="cluster-a", server_name="t3"), server()
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    match name:
        case "name":
            changed = structs.replace(proof, name="x")
        case "cluster":
            changed = structs.replace(proof, cluster="")
        case _:
            changed = structs.replace(proof, server="")
    with pytest.raises(Unauthorized):
        b.receive(changed)


@pytest.mark.parametrize("expected", [("cluster-b", ""), ("", "t4"), ("cluster-b", "t4")], ids=str)
def test_another_cluster_or_target_than_expected_is_refused_with_its_name(
    expected: tuple[str, str],
) -> None:
    cluster, name = expected
    a, b = client(cluster=cluster, server_name=name), server()
    answer = b.receive(a.hello())
    proof = a.receive(answer)
    assert isinstance(proof, ClientProof)
    failed = b.receive(proof)
    assert isinstance(failed, Failed)
    assert b.established is None
    assert b.keys == a.keys
    with pytest.raises(Refused):
        a.receive(failed)


def test_whom_the_server_has_no_room_for_is_told_so_once_it_has_proved_itself() -> None:
    asked: list[Role] = []

    def admit(role: Role) -> Failed:
        asked.append(role)
        return Failed(Unavailable.code, "full")

    b = ServerHandshake(secret=SECRET, identity=lambda: TARGET, nonce=b"s" * 32, admit=admit)
    a, stranger = client(), client(secret=b"another secret, long enough")
    with pytest.raises(Unavailable, match="full"):
        shake(a, b)
    assert asked == [Role.STAGER]
    assert b.established is None
    assert b.state is HandshakeState.FAILED
    b = ServerHandshake(secret=SECRET, identity=lambda: TARGET, nonce=b"s" * 32, admit=admit)
    b.receive(stranger.hello())
    with pytest.raises(Unauthorized):
        b.receive(ClientProof(bytes(32), "x"))
    assert asked == [Role.STAGER], "a stranger learns nothing"


def test_a_standby_says_who_leads_to_whoever_proves_itself() -> None:
    coordinator = Identity("cluster-a", Role.COORDINATOR, "", BootId(7))
    aside = Failed(Unavailable.code, "b leads", leader="10.0.0.2:7070")
    b = ServerHandshake(
        secret=SECRET, identity=lambda: coordinator, nonce=b"s" * 32, admit=lambda _role: aside
    )
    with pytest.raises(Elsewhere, match="b leads") as caught:
        shake(client(server_role=Role.COORDINATOR), b)
    assert caught.value.leader == "10.0.0.2:7070"


def test_the_leader_names_all_coordinators() -> None:
    everybody = ("10.0.0.1:7070", "10.0.0.2:7070")
    coordinator = Identity("cluster-a", Role.COORDINATOR, "", BootId(7), coordinators=everybody)
    b = ServerHandshake(secret=SECRET, identity=lambda: coordinator, nonce=b"s" * 32)
    assert shake(client(server_role=Role.COORDINATOR), b).coordinators == everybody


def test_a_client_checks_the_names_itself() -> None:
    a, b = client(cluster="cluster-a", server_name="t3"), server()
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    good = b.receive(proof)
    assert isinstance(good, ServerProof)
    with pytest.raises(Refused):
        a.receive(structs.replace(good, name="t4"))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 1, PROTOCOL_VERSION, 2, 1])
def test_every_version_that_was_released_and_the_next_one_is_accepted(version: int) -> None:
    hello = structs.replace(client().hello(), version=version)
    answer = server().receive(hello)
    assert isinstance(answer, ServerHello)
    # No version takes more than its neighbour.
    assert answer.version == min(PROTOCOL_VERSION, version + 1)


class Earlier:
    """A peer of version 2 as it was: it says so in its hello, and proves no version."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, hear: Callable[[Message], Message | Established], said: Message) -> Message:
        with self._patch.context() as patch:
            patch.setattr(handshake, "PROTOCOL_VERSION", 2)
            patch.setattr(handshake, "MOVES_VERSION", 99)
            patch.setattr(handshake, "HELLO_VERSION", 2)
            answer = hear(said)
        assert not isinstance(answer, Established)
        return answer


@pytest.mark.parametrize("older", ["client", "server", "neither"])
def test_both_ends_know_which_version_is_spoken(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, earlier = client(), server(), Earlier(monkeypatch)
    hello: Message = a.hello()
    answer = earlier(b.receive, hello) if older == "server" else b.receive(hello)
    proof = earlier(a.receive, answer) if older == "client" else a.receive(answer)
    assert isinstance(proof, ClientProof)
    assert proof.version == (PROTOCOL_VERSION if older == "neither" else 0)
    last = earlier(b.receive, proof) if older == "server" else b.receive(proof)
    with monkeypatch.context() as patch:
        if older == "client":
            patch.setattr(handshake, "PROTOCOL_VERSION", 2)
        end = a.receive(last)
    spoken = PROTOCOL_VERSION if older == "neither" else 2
    assert isinstance(end, Established)
    assert b.established is not None
    assert (end.version, b.established.version) == (spoken, spoken)


def test_nobody_on_the_way_talks_two_peers_down_to_a_version_without_moves() -> None:
    a, b = client(), server()
    answer = b.receive(a.hello())
    assert isinstance(answer, ServerHello)
    with pytest.raises(Unauthorized):
        copy.copy(a).receive(structs.replace(answer, version=2))
    proof = a.receive(answer)
    assert isinstance(proof, ClientProof)
    for version in (0, 2):
        with pytest.raises(Unauthorized):
            copy.copy(b).receive(structs.replace(proof, version=version))


def test_whoever_speaks_less_than_the_cluster_needs_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needing = replace(TARGET, needs=PROTOCOL_VERSION)
    a, b, earlier = client(), server(identity=needing), Earlier(monkeypatch)
    proof = earlier(a.receive, b.receive(a.hello()))
    refusal = b.receive(proof)
    assert isinstance(refusal, Failed)
    assert refusal.code == Refused.code
    assert refusal.message == "cluster cluster-a needs protocol 3; stager host:42 speaks 2"
    assert refusal.hint.startswith("upgrade it")
    assert b.established is None
    assert shake(client(), server(identity=needing)).needs == PROTOCOL_VERSION


@pytest.mark.parametrize("version", [-1, 1 << 32, 1 << 62])
def test_a_proof_of_no_version_that_there_can_be_ends_the_handshake(version: int) -> None:
    a, b = client(), server()
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    with pytest.raises(PeerError, match="protocol version"):
        b.receive(structs.replace(proof, version=version))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 2, 0, -1, 1 << 62])
def test_a_far_version_is_not(version: int) -> None:
    b = server()
    with pytest.raises(PeerError):
        b.receive(structs.replace(client().hello(), version=version))


@pytest.mark.parametrize("nonce", [b"", b"x" * 31, b"x" * 33])
def test_a_nonce_of_another_length_is_not_accepted(nonce: bytes) -> None:
    with pytest.raises(PeerError):
        server().receive(ClientHello(PROTOCOL_VERSION, Role.READER, nonce))


HELLO = client().hello()
MESSAGES: list[Message] = [
    HELLO,
    ServerHello(PROTOCOL_VERSION, b"s" * 32, bytes(32)),
    ClientProof(bytes(32), "x"),
    ServerProof("cluster-a", Role.TARGET, "t3", BootId(1), Epoch(0)),
    Failed("refused", "no"),
    CancelRequest(),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5))
def test_no_order_of_messages_without_the_secret_establishes_a_server(said: list[Message]) -> None:
    b = server()
    for message in said:
        try:
            b.receive(message)
        except (PeerError, Unauthorized):
            assert b.state is HandshakeState.FAILED
    assert b.established is None
    assert b.keys is None


@given(st.lists(st.sampled_from(MESSAGES), max_size=5))
def test_no_order_of_messages_without_the_secret_establishes_a_client(said: list[Message]) -> None:
    a = client()
    for message in said:
        try:
            answer = a.receive(message)
        except (PeerError, Unauthorized):
            assert a.state is HandshakeState.FAILED
        else:
            raise AssertionError(f"{message} was answered with {answer}")
    assert a.keys is None


@pytest.mark.parametrize("make", [client, server])
def test_a_short_secret_is_refused(make: Callable[..., object]) -> None:
    with pytest.raises(Refused):
        make(secret=b"short")


def test_a_name_without_end_is_not_accepted() -> None:
    b = server()
    b.receive(HELLO)
    with pytest.raises(PeerError):
        b.receive(ClientProof(bytes(32), "x" * 4000))


@pytest.mark.parametrize(("size", "taken"), [(NAME_BYTES_MAX, True), (NAME_BYTES_MAX + 1, False)])
def test_a_name_is_as_long_as_its_bound_and_no_longer(size: int, taken: bool) -> None:
    name = "é" * (size // 2) + "x" * (size % 2)
    a, b = client(name=name), server()
    if taken:
        shake(a, b)
        assert b.established is not None
        assert b.established.name == name
        return
    proof = a.receive(b.receive(a.hello()))
    assert isinstance(proof, ClientProof)
    with pytest.raises(PeerError, match="too long"):
        b.receive(proof)
