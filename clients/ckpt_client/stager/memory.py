"""How a restarted trainer reads committed bytes from the memory of the stager that outlived it.

The stager listens on a Unix socket in a private directory, named by cluster, run and rank. A reader
of the same user names (step, generation, manifest digest) as the coordinator committed them, and
gets the half's descriptor, read only, when exactly that lies there and no trainer can overwrite it
any more.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ckpt.aio.net.socketpath import runtime_directory
from ckpt.aio.private import FILE_MODE
from ckpt.aio.sealed_memory import mapped
from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, Rank, RunName
from ckpt.base.units import KiB
from ckpt.format.checksum import xxh3_128

REQUEST_BYTES_MAX: Final = 4096
MANIFEST_BYTES_MAX: Final = 64 * KiB
"""A longer one does not come along: that of more than a tebibyte in the usual cells of a rank."""
GRANT_BYTES_MAX: Final = REQUEST_BYTES_MAX + MANIFEST_BYTES_MAX
TIMEOUT_S: Final = 2.0
BOUND_S: Final = 60.0
"""Between its bind and its listen, a socket looks dead."""
_UCRED: Final = struct.Struct("3i")


class MemoryRequest(msgspec.Struct, frozen=True, array_like=True):
    """Exactly this payload, or nothing."""

    checkpoint: CheckpointId
    rank: int
    manifest_digest: bytes
    with_manifest: bool = False
    """The reader has room for an answer that holds it."""


class MemoryGrant(msgspec.Struct, frozen=True, array_like=True):
    """The payload lies at `offset` of the descriptor that comes along;
    absent when `payload_bytes` is -1.
    """

    payload_bytes: int
    offset: int = 0
    manifest: bytes = b""
    """Where it was asked for and is not too long."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What the stager gives out: a descriptor (still the stager's), the payload's length and its
    manifest.
    """

    descriptor: int
    payload_bytes: int
    manifest: bytes = b""


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A payload in a stager's memory, read only, as long as the view lives."""

    payload: memoryview
    manifest: bytes
    """Empty where none came along; the digest that was asked for is to be compared."""


Lookup = Callable[[MemoryRequest], HeldMemory | None]
_requests = msgspec.msgpack.Decoder(MemoryRequest)
_grants = msgspec.msgpack.Decoder(MemoryGrant)


def socket_prefix(cluster: str, run: RunName, rank: int) -> str:
    """What the socket names of all stagers of this rank begin with."""
    return xxh3_128(f"{cluster}\0{run}\0{rank}".encode()).hex()


class MemoryServer:
    """I answer readers, one short exchange each, without ever blocking the stager's loop."""

    def __init__(self, cluster: str, run: RunName, rank: int) -> None:
        name = f"{socket_prefix(cluster, run, rank)}.{os.getpid()}"
        directory = runtime_directory()
        _clear_away_dead(directory)
        self._path = directory / name
        with suppress(FileNotFoundError):
            self._path.unlink()  # Of a process that had our number before.
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self.socket.setblocking(False)
            self.socket.bind(str(self._path))
            self._path.chmod(FILE_MODE)
            self.socket.listen(16)
        except OSError:  # As when the directory's name is too long for a socket.
            self.socket.close()
            raise

    def accept(self) -> socket.socket | None:
        """A reader of the same user, or None."""
        try:
            peer, _ = self.socket.accept()
        except OSError:
            return None
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        if _UCRED.unpack(credentials)[1] != os.getuid():
            peer.close()
            return None
        peer.setblocking(False)
        return peer

    def close(self) -> None:
        self.socket.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def answer_reader(peer: socket.socket, lookup: Lookup) -> None:
    """Read one request and answer it; whatever is wrong with the peer ends only its connection."""
    with peer:
        try:
            request = _requests.decode(peer.recv(REQUEST_BYTES_MAX))
            held = lookup(request)
            if held is None:
                peer.send(msgspec.msgpack.encode(MemoryGrant(-1)))
                return
            # Opened once more, so that the reader cannot write through it.
            read_only = os.open(f"/proc/self/fd/{held.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                comes = request.with_manifest and len(held.manifest) <= MANIFEST_BYTES_MAX
                manifest = held.manifest if comes else b""
                grant = msgspec.msgpack.encode(MemoryGrant(held.payload_bytes, 0, manifest))
                socket.send_fds(peer, [grant], [read_only])
            finally:
                os.close(read_only)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return


def memory_source(
    cluster: str, run: RunName, rank: Rank, checkpoint: CheckpointId, manifest_digest: bytes
) -> FoundMemory | None:
    """The payload's bytes in a lingering stager on this host, or None when none has exactly these.

    Nothing here is verified: the digest names the manifest that the stager sealed these bytes
    under, so the caller may check cells against it.
    """
    request = msgspec.msgpack.encode(MemoryRequest(checkpoint, rank, manifest_digest, True))
    for path in _sockets(socket_prefix(cluster, run, rank)):
        found = _ask(path, request)
        if found is not None:
            return found
    return None


def _sockets(prefix: str) -> list[Path]:
    """None where they cannot be looked for: then it is read from the targets."""
    try:
        return sorted(runtime_directory().glob(f"{prefix}.*"))
    except (CkptError, OSError):
        return []


def _clear_away_dead(directory: Path) -> None:
    """Sockets of whoever was killed: once a run is over, nobody asks for it by name any more."""
    latest = time.time() - BOUND_S
    for path in directory.iterdir():
        with suppress(OSError):
            if path.lstat().st_mtime < latest and _is_dead(path):
                path.unlink()


def _is_dead(path: Path) -> bool:
    """A socket that nobody has. Its owner may be of another namespace: only a connection tells."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return stat.S_ISSOCK(path.lstat().st_mode)
        except OSError:
            return False
        return False


def _ask(path: Path, request: bytes) -> FoundMemory | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(str(path))
            sock.send(request)
            packet, descriptors, _, _ = socket.recv_fds(
                sock, GRANT_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()  # Its stager was killed.
            return None
        except OSError:
            return None
    try:
        grant = _grants.decode(packet)
        if grant.payload_bytes < 0 or not descriptors:
            return None
        return FoundMemory(_map(descriptors[0], grant), grant.manifest)
    except (msgspec.MsgspecError, RecursionError, OSError, ValueError):
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _map(descriptor: int, grant: MemoryGrant) -> memoryview:
    end = grant.offset + grant.payload_bytes
    return mapped(descriptor, end, writable=False)[grant.offset : end]
