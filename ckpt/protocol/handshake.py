"""How two processes prove to each other that they know the cluster's secret, without showing it.

    client                                              server
    ClientHello(version, role, nonce_c)  ------------->             names nobody
                                         <-------------  ServerHello(version, nonce_s, mac_s)
    mac_s is right: the server knows the secret
    ClientProof(mac_c, name, cluster, server,  ------->             only now are names sent
                wire, version)
                                                         mac_c is right: the client knows it too
                                         <-------------  ServerProof(cluster, role, name, boot,
                                                         epoch) or Failed, already under the
                                                         session's key; of a coordinator that
                                                         stands by: Failed(leader)

`ckpt.protocol.session_keys` says of what the macs and the keys are made.

Invariants:
- `role_s` is what the client dials for and what the server is: a target cannot pass for a
  coordinator.
- ServerProof is the first frame under the session's keys; the frame's own mac authenticates it.
- The server says in ServerProof how the session is guarded (`Wire`). Nobody on the way can change
  that, nor the versions by which it is decided. ServerProof itself is not encrypted; all after it
  is, where it says so. Who does not know how is refused by name: nobody gets less than was asked
  for.
- A client's hello says HELLO_VERSION, and a server's one more than the client's at most, so that
  0.1.0 takes either for a neighbour. A server of MOVES_VERSION hears in the proof what its client
  really speaks.
- Who speaks less than a server needs (`Identity.needs`) hears so by name once it has proved itself.
- A server tells a stranger a nonce and a mac over nonces; a client tells a stranger its role and a
  nonce.

I am given every nonce (32 random bytes, used once). Errors: Unauthorized when the secret differs,
Refused when cluster or server is another than expected, PeerError when a message is out of turn.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ckpt.base.errors import PeerError, Refused, Unauthorized, Unavailable, error_from_wire
from ckpt.base.ids import BootId, Epoch
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import (
    ENCRYPT_VERSION,
    HELLO_VERSION,
    MOVES_VERSION,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    TAGS_VERSION,
    ClientHello,
    ClientProof,
    Failed,
    Role,
    ServerHello,
    ServerProof,
    Wire,
)
from ckpt.protocol.session_keys import SessionKeys, claim_of, mac_of, offer_of, session_keys

NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
_VERSION_MAX: Final = (1 << 32) - 1
NAME_BYTES_MAX: Final = 512
"""Longest name in a proof: a peer's name goes into logs."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server is."""

    cluster: str
    role: Role
    name: str
    """A target's id; empty for the coordinator."""
    boot: BootId
    epoch: Epoch = Epoch(0)
    coordinators: tuple[str, ...] = ()
    """Of a coordinator, as HOST:PORT: where all of its cluster listen."""
    needs: int = 0
    """Who speaks less is refused."""


class Elsewhere(Unavailable):
    """A standby answered: who can answer listens at `leader`, HOST:PORT."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message, hint=failed.hint)
        self.leader = failed.leader


_WHERE_IT_IS_ANOTHER: Final = (
    "where the cluster was made again, start this process again; else name its own coordinators"
)


class OtherCluster(Refused):
    """The server is of `cluster`, and the client wants another one."""

    def __init__(self, message: str, cluster: str) -> None:
        super().__init__(message, hint=_WHERE_IT_IS_ANOTHER)
        self.cluster = cluster


@dataclass(frozen=True, slots=True)
class Established:
    """Who the other end proved to be.

    `boot` and `epoch` are 0 and `cluster` is what it expects when it is a client.
    """

    role: Role
    name: str
    cluster: str
    boot: BootId
    epoch: Epoch
    version: int
    """The lower of both sides' versions: what is spoken."""
    borrows: bool = False
    """Bulks may be lent to it."""
    wire: Wire = Wire.PLAIN
    coordinators: tuple[str, ...] = ()
    """Where all coordinators of the cluster listen, as HOST:PORT; empty where there is one."""
    needs: int = 0
    """Who speaks less is refused there."""
    lends: bool = False
    """It lends columns, on this connection."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects, by which secret, and whom it wants: every connection begins with one."""

    secret: bytes = field(repr=False)
    """The cluster's, SECRET_BYTES_MIN or more."""
    role: Role
    name: str
    """For the server's logs; a target's id."""
    server_role: Role = Role.COORDINATOR
    cluster: str = ""
    """Empty: any that has this secret."""
    server_name: str = ""
    """A target's id; empty: whoever answers in that role."""

    @classmethod
    def of_target(
        cls, secret: bytes, role: Role, name: str, target: str, cluster: str = ""
    ) -> Caller:
        """Who wants this target, and no other that answers at its address."""
        return cls(secret, role, name, Role.TARGET, cluster, target)

    def check(self) -> None:
        """Raises Refused for a secret that is too short."""
        _check_secret(self.secret)


class HandshakeState(Enum):
    """Where a handshake stands."""

    HELLO = "hello"
    PROOF = "proof"
    DONE = "done"
    FAILED = "failed"


class ClientHandshake:
    """I speak first.

    Send `hello()`, then hand me each message; I answer with what to send, or with Established.

    After I returned a ClientProof, `keys` stand: send the proof, then change to them.
    """

    def __init__(self, caller: Caller, nonce: bytes) -> None:
        _check_arguments(caller.secret, nonce)
        self.keys: SessionKeys | None = None
        self.state = HandshakeState.HELLO
        self._caller = caller
        self._nonce = nonce
        self._version = HELLO_VERSION
        self._wire = Wire.PLAIN

    def hello(self, wire: Wire = Wire.PLAIN) -> ClientHello:
        """The first frame. `wire`: the least that this connection needs."""
        self._wire = wire
        return ClientHello(version=HELLO_VERSION, role=self._caller.role, nonce=self._nonce)

    def receive(self, message: Message) -> ClientProof | Established:
        """The next step, or an error after which nothing but closing is left."""
        try:
            match self.state, message:
                case HandshakeState.HELLO, ServerHello():
                    proof = self._prove(message)
                    self.state = HandshakeState.PROOF
                    return proof
                case HandshakeState.PROOF, ServerProof():
                    established = self._accept(message)
                    self.state = HandshakeState.DONE
                    return established
                case HandshakeState.PROOF, Failed():
                    raise _failure(message)
                case _:
                    raise PeerError(f"{type(message).__name__} out of turn in a handshake")
        except Exception:
            self.state = HandshakeState.FAILED
            raise

    def _prove(self, hello: ServerHello) -> ClientProof:
        _check_version(hello.version, HELLO_VERSION + 1)
        proves = hello.version >= MOVES_VERSION
        self._version = min(PROTOCOL_VERSION if proves else HELLO_VERSION, hello.version)
        _check_nonce(hello.nonce)
        caller = self._caller
        offer = offer_of(
            HELLO_VERSION, hello.version, caller.role, caller.server_role, self._nonce,
            hello.nonce,
        )  # fmt: skip
        if not hmac.compare_digest(hello.mac, mac_of(caller.secret, b"ckpt server", offer)):
            raise Unauthorized(
                f"the {caller.server_role.value} there does not know this cluster's secret",
                hint="compare the secret files, and that "
                f"a {caller.server_role.value} listens at this address",
            )
        wire = self._wire if self._version >= TAGS_VERSION else None
        said = PROTOCOL_VERSION if proves else 0
        claim = claim_of(offer, caller.name, caller.cluster, caller.server_name, wire, said)
        self.keys = session_keys(caller.secret, claim)
        return ClientProof(
            mac=mac_of(caller.secret, b"ckpt client", claim),
            name=caller.name,
            cluster=caller.cluster,
            server=caller.server_name,
            wire=wire or Wire.PLAIN,
            version=said,
        )

    def _accept(self, proof: ServerProof) -> Established:
        caller = self._caller
        if proof.role is not caller.server_role:
            raise PeerError(f"a {proof.role.value} proved itself as {caller.server_role.value}")
        if caller.cluster and proof.cluster != caller.cluster:
            text = f"the server is of cluster {proof.cluster!r}, not {caller.cluster!r}"
            raise OtherCluster(text, proof.cluster)
        if caller.server_name and proof.name != caller.server_name:
            raise Refused(f"the server is {proof.name!r}, not {caller.server_name!r}")
        return Established(
            proof.role, proof.name, proof.cluster, proof.boot, proof.epoch, self._version,
            proof.borrows, proof.wire, proof.coordinators, proof.needs, proof.lends,
        )  # fmt: skip


class ServerHandshake:
    """I answer. Hand me each message and send what I return.

    Once I returned ServerProof or Failed, `keys` stand and that answer already goes out under them.
    With ServerProof `established` says who the client is; after Failed the connection is to be
    closed.
    """

    def __init__(
        self, *, secret: bytes, identity: Callable[[], Identity], nonce: bytes,
        borrows: bool = False, lends: bool = False,
        wire_for: Callable[[Wire], Wire] = lambda wanted: wanted,
        admit: Callable[[Role], Failed | None] = lambda role: None,
    ) -> None:  # fmt: skip
        """`identity` is asked when it is said: a coordinator may begin or end a term meanwhile.
        `wire_for` says what a client gets that wants so much; one from before TAGS_VERSION knows
        no other than plain, and is refused where it must not have that. `admit` is asked for a peer
        that proved itself: what it hears when it cannot stay.
        """
        _check_arguments(secret, nonce)
        self.keys: SessionKeys | None = None
        self.established: Established | None = None
        self.state = HandshakeState.HELLO
        self._secret = secret
        self._identity = identity
        self._nonce = nonce
        self._borrows = borrows
        self._lends = lends
        self._wire_for = wire_for
        self._admit = admit
        self._role = Role.ADMIN
        #: What the client's hello said, then what both speak; and what mine said.
        self._version = self._answered = PROTOCOL_VERSION
        self._offer = b""

    def receive(self, message: Message) -> ServerHello | ServerProof | Failed:
        """The answer, or an error after which the connection is closed without a word."""
        try:
            match self.state, message:
                case HandshakeState.HELLO, ClientHello():
                    answer = self._greet(message)
                    self.state = HandshakeState.PROOF
                    return answer
                case HandshakeState.PROOF, ClientProof():
                    verdict = self._judge(message)
                    accepted = isinstance(verdict, ServerProof)
                    self.state = HandshakeState.DONE if accepted else HandshakeState.FAILED
                    return verdict
                case _:
                    raise PeerError(f"{type(message).__name__} out of turn in a handshake")
        except Exception:
            self.state = HandshakeState.FAILED
            raise

    def _greet(self, hello: ClientHello) -> ServerHello:
        _check_version(hello.version, PROTOCOL_VERSION + 1)
        self._version = min(hello.version, PROTOCOL_VERSION)
        self._answered = min(hello.version + 1, PROTOCOL_VERSION)
        _check_nonce(hello.nonce)
        self._role = hello.role
        self._offer = offer_of(
            hello.version,
            self._answered,
            hello.role,
            self._identity().role,
            hello.nonce,
            self._nonce,
        )
        return ServerHello(
            version=self._answered,
            nonce=self._nonce,
            mac=mac_of(self._secret, b"ckpt server", self._offer),
        )

    def _judge(self, proof: ClientProof) -> ServerProof | Failed:
        names = (proof.name, proof.cluster, proof.server)
        if any(len(name.encode(errors="replace")) > NAME_BYTES_MAX for name in names):
            raise PeerError("a name in a proof is too long")
        tags = self._version >= TAGS_VERSION
        said = proof.version if self._answered >= MOVES_VERSION else 0
        if said:
            _check_version(said, _VERSION_MAX)
        claim = claim_of(self._offer, *names, proof.wire if tags else None, said)
        if not hmac.compare_digest(proof.mac, mac_of(self._secret, b"ckpt client", claim)):
            raise Unauthorized("a client does not know the cluster's secret")
        self.keys = session_keys(self._secret, claim)
        if said:
            self._version = min(said, PROTOCOL_VERSION)
        mine = self._identity()
        if proof.cluster and proof.cluster != mine.cluster:
            text = f"this is cluster {mine.cluster!r}, not {proof.cluster!r}"
            return Failed(Refused.code, text, cluster=mine.cluster)
        if proof.server and proof.server != mine.name:
            return Failed(Refused.code, f"this is {mine.name!r}, not {proof.server!r}")
        if self._version < mine.needs:
            return _too_old(mine, self._role, proof.name, self._version)
        wire = self._wire_for(proof.wire if tags else Wire.PLAIN)
        if wire is Wire.ENCRYPT and self._version < ENCRYPT_VERSION:
            return _cannot_encrypt(mine, self._role, proof.name, self._version)
        refusal = self._admit(self._role)
        if refusal is not None:
            return refusal
        wire = wire if tags else Wire.PLAIN
        self.established = Established(
            self._role, proof.name, proof.cluster, BootId(0), Epoch(0), self._version, wire=wire,
            lends=self._lends,
        )  # fmt: skip
        return ServerProof(
            mine.cluster,
            mine.role,
            mine.name,
            mine.boot,
            mine.epoch,
            self._borrows,
            wire,
            mine.coordinators,
            mine.needs,
            self._lends,
        )


def _check_arguments(secret: bytes, nonce: bytes) -> None:
    assert len(nonce) == NONCE_BYTES
    _check_secret(secret)


def _check_secret(secret: bytes) -> None:
    if len(secret) < SECRET_BYTES_MIN:
        raise Refused(
            f"a cluster secret of {len(secret)} bytes: at least {SECRET_BYTES_MIN} are needed"
        )


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise PeerError(f"a nonce of {len(nonce)} bytes")


def _check_version(theirs: int, newest: int) -> None:
    """Releases beside each other understand each other (P11)."""
    if not OLDEST_VERSION <= theirs <= newest:
        spoken = f"{OLDEST_VERSION} to {PROTOCOL_VERSION}"
        raise PeerError(f"protocol version {theirs}; spoken here: {spoken}")


def _too_old(server: Identity, role: Role, name: str, version: int) -> Failed:
    """The upgrade of the cluster is finished, and this one was left out."""
    text = f"cluster {server.cluster} needs protocol {server.needs}; {role.value} {name} speaks"
    return Failed(Refused.code, f"{text} {version}", "upgrade it: install the cluster's version")


def _cannot_encrypt(server: Identity, role: Role, name: str, version: int) -> Failed:
    """What was asked for is not lowered for those who do not know it."""
    who = f"{server.role.value} {server.name}".rstrip()
    text = f"{who} encrypts all that it says; {role.value} {name} speaks protocol {version}, which"
    return Failed(
        Refused.code,
        f"{text} cannot",
        f'upgrade it, or set wire to "mac" on the {server.role.value} until all are upgraded',
    )


def _failure(failed: Failed) -> Exception:
    if failed.leader:
        return Elsewhere(failed)
    if failed.cluster:
        return OtherCluster(failed.message, failed.cluster)
    retry = None if failed.retry_after_us is None else failed.retry_after_us / US_PER_S
    return error_from_wire(failed.code, failed.message, failed.hint, retry)
