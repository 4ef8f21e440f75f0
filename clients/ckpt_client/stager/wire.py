"""What trainer and stager say to each other, over an inherited Unix socket pair (SOCK_SEQPACKET).

One packet is one message, so nothing needs a length. A HalfReady packet carries the half's
descriptor.

    trainer -> stager   Attach (first), Prepare, AskHalf, Declared, DropStaging, RefuseStep,
                        HandOver, HeardOutcome, Detach
    stager  -> trainer  Attached, HalfReady (+ descriptor), HalfOpen, Prepared, HalfGranted,
                        SaveRefused, Outcome, Detached

A save goes AskHalf -> HalfGranted -> HandOver (or DropStaging) -> Outcome -> HeardOutcome, or ends
with SaveRefused. RefuseStep may come in place of each that the trainer sends before HandOver. A
store that closes sends Detach, and gets nothing after Detached. With the same Attach as before it
goes on: after Attached all memory is announced again. The end of either side is the end of the
socket.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from ckpt.base.errors import PeerError
from ckpt.format.messages.saving import CommitInfo

PACKET_BYTES_MAX: Final = 64 << 10
TEXT_CHARS_MAX: Final = 4096
"""Longer error texts are cut, so that every message fits a packet."""


class _Packet(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the class name is the tag."""


class Attach(_Packet, frozen=True, tag=True, array_like=True):
    """Who the trainer is and where the cluster is. The secret itself stays in its file."""

    pid: int
    process: str
    rank: int
    world_size: int
    key: str | None
    directory: str
    """Of a local cluster; its ready file names the coordinator. Empty for a remote one."""
    address: str
    cluster: str
    """Its id. Another one may stand in its place one day, with launches of the same numbers."""
    secret_file: str
    arena_bytes_max: int
    idle_s: float

    def command(self, descriptor: int) -> list[str]:
        """What starts a stager with its end of the socket. Others can read it: no option of the
        URL, and nothing of the secret.
        """
        url = f"ckpt+local://{self.directory}" if self.directory else f"ckpt://{self.address}"
        place = f"{self.rank}/{self.world_size}"
        return ["-m", "ckpt_client.stager", str(descriptor), "--store", url, "--rank", place]


class Prepare(_Packet, frozen=True, tag=True, array_like=True):
    """Fault in halves of this size before they are needed. HalfOpen messages from before the answer
    are void, except the last one after a half's new memory.
    """

    half_bytes: int


class AskHalf(_Packet, frozen=True, tag=True, array_like=True):
    """May I stage this save? `when_full` says what to do while both halves are held."""

    save: int
    run: str
    step: int
    half_bytes: int
    when_full: str
    taken: int | None = None
    """The half of the last HalfOpen, when the trainer writes into it already."""


class Declared(_Packet, frozen=True, tag=True, array_like=True):
    """The save's declaration lies in its half, before all else does: it is new, and can be read
    while the trainer copies. HandOver says it again.
    """

    save: int
    offset: int
    length: int


class DropStaging(_Packet, frozen=True, tag=True, array_like=True):
    """The copy failed; the half holds nothing."""

    save: int


class RefuseStep(_Packet, frozen=True, tag=True, array_like=True):
    """This rank saves nothing at this step, and its peers hear why; a half that the save was
    granted holds nothing.
    """

    save: int
    run: str
    step: int
    why: str


class HandOver(_Packet, frozen=True, tag=True, array_like=True):
    """The save's bytes are all in the half: from here on the save is the stager's."""

    save: int
    payload_bytes: int
    document_bytes: int
    declaration_offset: int
    declaration_bytes: int
    replicas: str
    stall_us: int
    fault_in_us: int
    unchanged: str
    """`warn`: fingerprint every tensor and compare it with the save before; `ignore`: copies
    only.
    """
    references: bool
    """Refer to an earlier generation's bytes where they are the same."""
    metrics: dict[str, float] = {}


class HeardOutcome(_Packet, frozen=True, tag=True, array_like=True):
    """The trainer has noted this outcome, so the stager may forget it."""

    save: int


class Detach(_Packet, frozen=True, tag=True, array_like=True):
    """The store was closed; the trainer's process may open another one."""


class Attached(_Packet, frozen=True, tag=True, array_like=True):
    """The stager is ready."""

    pid: int


class Detached(_Packet, frozen=True, tag=True, array_like=True):
    """The last packet until the next Attach."""


class HalfReady(_Packet, frozen=True, tag=True, array_like=True):
    """The half has this new memory; the packet carries its descriptor.

    Older memory of it is gone.
    """

    half: int
    half_bytes: int
    fault_in_us: int


class HalfOpen(_Packet, frozen=True, tag=True, array_like=True):
    """The next save may write into this half's memory before it is granted: it will be."""

    half: int


class Prepared(_Packet, frozen=True, tag=True, array_like=True):
    """As much as the arena's cap allows is faulted in. `message` is the error, if there is one."""

    code: str = ""
    message: str = ""


class HalfGranted(_Packet, frozen=True, tag=True, array_like=True):
    """Stage into this half; its memory was announced by HalfReady."""

    save: int
    half: int


class SaveRefused(_Packet, frozen=True, tag=True, array_like=True):
    """No half for this save; `code` is an error's, or `skipped`."""

    save: int
    code: str
    message: str
    hint: str


class Outcome(_Packet, frozen=True, tag=True, array_like=True):
    """How a save ended: `info` when it committed, else the error."""

    save: int
    info: CommitInfo | None
    code: str = ""
    message: str = ""
    hint: str = ""
    retry_after_us: int | None = None


FromTrainer = (
    Attach
    | Prepare
    | AskHalf
    | Declared
    | DropStaging
    | RefuseStep
    | HandOver
    | HeardOutcome
    | Detach
)
FromStager = (
    Attached | HalfReady | HalfOpen | Prepared | HalfGranted | SaveRefused | Outcome | Detached
)

_encoder = msgspec.msgpack.Encoder()
_from_trainer: msgspec.msgpack.Decoder[FromTrainer] = msgspec.msgpack.Decoder(FromTrainer)
_from_stager: msgspec.msgpack.Decoder[FromStager] = msgspec.msgpack.Decoder(FromStager)


def encode_packet(message: FromTrainer | FromStager) -> bytes:
    packet = _encoder.encode(message)
    assert len(packet) <= PACKET_BYTES_MAX
    return packet


def cut_text(text: str) -> str:
    """The text, short enough for a packet."""
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."


def decode_from_trainer(packet: bytes) -> FromTrainer:
    """Raises PeerError."""
    try:
        return _from_trainer.decode(packet)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"the trainer sent a packet that does not parse: {error}") from None


def decode_from_stager(packet: bytes) -> FromStager:
    """Raises PeerError."""
    try:
        return _from_stager.decode(packet)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"the stager sent a packet that does not parse: {error}") from None


def receive_packet(sock: socket.socket) -> tuple[bytes, int | None]:
    """One packet and the descriptor that came with it; an empty packet is the other side's end.

    When a peer closed with something of ours unread, the kernel reports a reset once, ahead of the
    packets that it had sent before. These still count, so the next call decides.
    """
    try:
        packet, descriptors = _receive(sock)
    except ConnectionResetError:
        packet, descriptors = _receive(sock)
    return packet, descriptors[0] if descriptors else None


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    packet, descriptors, _, _ = socket.recv_fds(sock, PACKET_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
    return packet, descriptors
