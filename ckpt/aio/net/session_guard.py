"""What guards a session once it stands: nothing, tags on bulks, or encryption of all."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.format.frame import FrameReader, FrameWriter
from ckpt.format.messages.hello import Wire
from ckpt.native.gcm import BULK, HEAD, Opener, Sealer
from ckpt.native.gmac import Gmac
from ckpt.protocol.session_keys import SessionKeys


@dataclass(frozen=True, slots=True)
class SessionGuard:
    """Protects the bulks of a session; heads belong to their reader and writer."""

    incoming: Gmac | Opener | None = None
    """Checks those that come, or decrypts them."""
    sealer: Sealer | None = None
    """Encrypts those that go."""


def begin_guard(
    wire: Wire, keys: SessionKeys, *, at_server: bool, reader: FrameReader, writer: FrameWriter
) -> SessionGuard:
    """From the next frame on, in both directions. Raises CkptError where there is no libcrypto."""
    if wire is Wire.PLAIN:
        return SessionGuard()
    if wire is Wire.MAC:
        sent, received = keys.bulk_client_to_server, keys.bulk_server_to_client
    else:
        sent, received = keys.seal_client_to_server, keys.seal_server_to_client
    if at_server:
        sent, received = received, sent
    if wire is Wire.MAC:
        gmac = Gmac(received)
        reader.want_tags(gmac)
        writer.tag_bulks(Gmac(sent))
        return SessionGuard(gmac)
    opener = Opener(received)
    reader.unseal(opener)
    writer.seal(Sealer(sent, HEAD))
    return SessionGuard(opener, Sealer(sent, BULK))
