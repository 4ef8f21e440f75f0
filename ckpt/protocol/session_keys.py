"""What both sides of a handshake compute of what was said: macs that prove the secret, and the
session's keys. `ckpt.protocol.handshake` says who sends which when.

    offer = "ckpt 1" | version_c | version_s | role_c | role_s | nonce_c | nonce_s
    claim = offer | name | cluster | server | wire | version
                                            each part of both with its length; wire from version 2
                                            on, version from 3 on
    mac_s = HMAC-SHA256(secret, "ckpt server" | offer)
    mac_c = HMAC-SHA256(secret, "ckpt client" | claim)
    key of a direction = HMAC-SHA256(secret, label | claim)
    label = "ckpt client to server" or "ckpt server to client"; "ckpt bulk client to server" or
    "ckpt bulk server to client" for the tags of bulks; "ckpt seal client to server" or
    "ckpt seal server to client" for what is encrypted

Invariants:
- The two macs and the six keys have different labels, so nothing that one side says can be thrown
  back at it, nor a frame of one direction into the other.
- Both nonces enter everything, so nothing can be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from ckpt.format.messages.hello import Role, Wire


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Three keys for each direction, 32 bytes each: of frames, of bulks' tags, and of what is
    encrypted.
    """

    client_to_server: bytes
    server_to_client: bytes
    bulk_client_to_server: bytes
    bulk_server_to_client: bytes
    seal_client_to_server: bytes
    seal_server_to_client: bytes


def offer_of(
    client_version: int,
    server_version: int,
    client_role: Role,
    server_role: Role,
    client_nonce: bytes,
    server_nonce: bytes,
) -> bytes:
    return _join(
        b"ckpt 1",
        client_version.to_bytes(4, "little"),
        server_version.to_bytes(4, "little"),
        client_role.value.encode(),
        server_role.value.encode(),
        client_nonce,
        server_nonce,
    )


def claim_of(
    offer: bytes, name: str, cluster: str, server: str, wire: Wire | None, version: int
) -> bytes:
    """`wire`: None where a version is spoken that knows none. `version`: 0 where it is not said."""
    last = () if wire is None else (wire.value.encode(),)
    if version:
        last = (*last, version.to_bytes(4, "little"))
    return _join(offer, name.encode(), cluster.encode(), server.encode(), *last)


def _join(*fields: bytes) -> bytes:
    """Each field after its length, so that no two different lists of fields look alike."""
    return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def mac_of(secret: bytes, label: bytes, text: bytes) -> bytes:
    return hmac.new(secret, _join(label, text), hashlib.sha256).digest()


def session_keys(secret: bytes, claim: bytes) -> SessionKeys:
    return SessionKeys(
        mac_of(secret, b"ckpt client to server", claim),
        mac_of(secret, b"ckpt server to client", claim),
        mac_of(secret, b"ckpt bulk client to server", claim),
        mac_of(secret, b"ckpt bulk server to client", claim),
        mac_of(secret, b"ckpt seal client to server", claim),
        mac_of(secret, b"ckpt seal server to client", claim),
    )
