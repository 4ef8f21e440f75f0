"""The first words on a connection, and those that may be said on any: Failed, CancelRequest, and
to a coordinator Ping.

What is proved and bound here is ckpt.protocol.handshake.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from ckpt.base.ids import BootId, Epoch

PROTOCOL_VERSION: Final = 3
"""Spoken here, as is each from OLDEST_VERSION on. 2: bulks may have tags. 3: columns move to other
targets, and targets are removed; earlier versions undo that (docs/decisions/0041); sessions may be
encrypted."""
OLDEST_VERSION: Final = 1
TAGS_VERSION: Final = 2
MOVES_VERSION: Final = 3
"""From this version on a client proves which version it speaks."""
ENCRYPT_VERSION: Final = 3
HELLO_VERSION: Final = 2
"""What each client's hello says: 0.1.0 accepts only its own version and its neighbours'."""


class Role(Enum):
    """What a connection's other end claims to be; the handshake binds it."""

    STAGER = "stager"
    READER = "reader"
    TARGET = "target"
    COORDINATOR = "coordinator"
    ADMIN = "admin"
    DRAIN = "drain"
    """A worker of `ckptd drain` or `ckptd repair`: keeps no idle cluster awake. To a target one of
    the latter, which comes after all others."""


class Wire(Enum):
    """How a session guards what is said. All but bulks always has its MAC."""

    PLAIN = "plain"
    """By a checksum, which finds damage."""
    MAC = "mac"
    """By a tag as well, which nobody makes who does not know the secret."""
    ENCRYPT = "encrypt"
    """All is encrypted, bulks and the rest. Never said to who does not speak ENCRYPT_VERSION."""


class ClientHello(Struct, frozen=True, gc=False):
    """The first frame on a connection. Reveals no name."""

    version: int
    role: Role
    nonce: bytes
    """32 random bytes."""


class ServerHello(Struct, frozen=True, gc=False):
    """The server's half: nothing but a nonce; its identity follows when the client is proved."""

    version: int
    nonce: bytes
    mac: bytes
    """HMAC-SHA256(secret, "ckpt server" | transcript), see ckpt.protocol.handshake."""


class ClientProof(Struct, frozen=True, gc=False):
    """The client's half, and who it is."""

    mac: bytes
    name: str
    cluster: str = ""
    """The cluster id that the client expects; empty when it does not know yet."""
    server: str = ""
    """The server name that the client expects (a target's id); empty when any will do."""
    wire: Wire = Wire.PLAIN
    """What the client takes the connection for: one to another host needs MAC, though a proxy
    beside the server may look like this host. Never ENCRYPT, which is the server's to say. Of no
    meaning before TAGS_VERSION."""
    version: int = 0
    """What the client speaks, where the server speaks MOVES_VERSION; 0: its hello said all."""


class ServerProof(Struct, frozen=True, gc=False):
    """The session stands."""

    cluster: str
    role: Role
    name: str
    """The target's id; empty for the coordinator."""
    boot: BootId
    epoch: Epoch
    borrows: bool = False
    """Whether it takes bulks where they lie, see ckpt.aio.lending."""
    wire: Wire = Wire.PLAIN
    """How the session is protected from here on, in both directions."""
    coordinators: tuple[str, ...] = ()
    """Of a coordinator: where all coordinators of the cluster listen, as HOST:PORT; empty where
    there is only one.
    """
    needs: int = 0
    """Peers that speak less are refused here; 0: none is."""
    lends: bool = False
    """Whether it lends columns to its readers, see LendColumn."""


class Failed(Struct, frozen=True, gc=False):
    """The answer to any request that was not done; fields as in ckpt.base.errors."""

    code: str
    message: str
    hint: str = ""
    retry_after_us: int | None = None
    leader: str = ""
    """Of a standby's answer to a proof: where the coordinator listens that leads, as HOST:PORT."""
    cluster: str = ""
    """Of the answer to a proof for another cluster: which one this is."""


class Ping(Struct, frozen=True, gc=False):
    """Is the process at work? Sent to a coordinator that is one of several."""


class Pong(Struct, frozen=True, gc=False):
    """It is: the answer to Ping, at once."""


class CoordinatorsNamed(Struct, frozen=True, gc=False):
    """Where all coordinators listen, as HOST:PORT: there is another one since the handshake."""

    addresses: tuple[str, ...]


class CancelRequest(Struct, frozen=True, gc=False):
    """The answer to the request of this frame's number is not wanted any more. Never answered."""
