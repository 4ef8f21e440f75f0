"""What is so, on this host and from it? Each probe looks and judges nothing."""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.net.address import UnixAddress
from ckpt.aio.net.link import Link, LinkClosed, LinkOpened
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.net.socketpath import socket_path
from ckpt.base.errors import CkptError, NoSpace
from ckpt.base.units import US_PER_S
from ckpt.erasure.selftest import self_test
from ckpt.format.messages.hello import Role
from ckpt.native.libcrypto import find_libcrypto
from ckpt.native.library import find_library
from ckpt.protocol.handshake import Caller
from ckpt_client.control_group import limited_groups
from ckpt_client.doctor.findings import TargetReach
from ckpt_client.locate import client_name

HANDSHAKE_S: Final = 2.0
"""For each target; all are asked side by side."""
SOCKET_NAME: Final = "socket"
"""In a target's directory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of this host, or of a control group of the job where that has less."""

    free_bytes: int
    total_bytes: int


def reach_targets(addresses: Mapping[str, str], secret: bytes, cluster: str) -> list[TargetReach]:
    """A handshake with each target (id -> address), in the order of the map."""
    begun_us = now_us()
    found: dict[str, TargetReach] = {}
    links: dict[Link, str] = {}

    def note(id: str, error: str = "") -> None:
        found[id] = TargetReach(id, addresses[id], (now_us() - begun_us) / US_PER_S, error)

    with LinkLoop() as loop:
        for id, address in addresses.items():
            try:
                link = loop.connect(
                    address,
                    Caller.of_target(secret, Role.READER, client_name(), id, cluster),
                    connect_timeout_us=int(HANDSHAKE_S * US_PER_S),
                )
            except CkptError as error:
                note(id, error.message)
                continue
            links[link] = id
        deadline_us = begun_us + int(HANDSHAKE_S * US_PER_S)
        while len(found) < len(addresses) and (left_us := deadline_us - now_us()) > 0:
            for event in loop.poll(left_us):
                match event:
                    case LinkOpened(link):
                        note(links[link])
                    case LinkClosed(link, cause) if links[link] not in found:
                        note(links[link], cause.message)
                    case _:
                        continue
    for id in addresses:
        if id not in found:
            note(id, f"no handshake in {HANDSHAKE_S:g} s")
    return [found[id] for id in addresses]


def address_here(directory: Path, address: str) -> str:
    """How a trainer of the target's host reaches it: by its Unix socket where there is one."""
    try:
        path = socket_path(directory, SOCKET_NAME)
        usable = stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.W_OK)
    except (OSError, CkptError):
        return address
    return str(UnixAddress(path)) if usable else address


def devices_of(
    free: Mapping[str, int], domains: Mapping[str, str], folders: Mapping[str, Path]
) -> list[tuple[list[str], int]]:
    """The targets of each device and what is free there, once for all of them.

    folders: of the targets of this host; those of other hosts share a device with their domain.
    """
    groups: dict[object, list[str]] = {}
    for id in free:
        key: object = os.stat(folders[id]).st_dev if id in folders else domains[id]
        groups.setdefault(key, []).append(id)
    return [(ids, _free_together(ids, free, folders)) for ids in groups.values()]


def _free_together(ids: Sequence[str], free: Mapping[str, int], folders: Mapping[str, Path]) -> int:
    """Of one device, as far as its targets may use it."""
    shared = max(_free_bytes(folders[id]) if id in folders else free[id] for id in ids)
    return min(shared, sum(free[id] for id in ids))


def erasure_code() -> str:
    """Which library encodes here, once it has given the known answers. Raises CkptError."""
    self_test()
    return f"ISA-L and ckpt's own library ({find_library().build}) give the known answers"


def tags() -> str:
    """Which library makes the tags of bulks from and to other hosts, and encrypts. Raises
    CkptError.
    """
    return f"bulks from and to other hosts can have tags: {find_libcrypto().version}"


def open_files() -> tuple[int, int]:
    """The limit, and how far this user may raise it."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def locked_memory() -> int | None:
    """The limit; None without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def memory() -> Memory:
    """What arenas can get."""
    sizes = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * 1024
    free, total = sizes["MemAvailable"], sizes["MemTotal"]
    for group in limited_groups():
        free, total = min(free, group.free_bytes), min(total, group.limit_bytes)
    return Memory(free, total)


def sockets_folder() -> tuple[str, int | None, str]:
    """Where sockets with long names go, what is free there, and why nothing can be made there."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    try:
        folder = Path(socket_path("/" + "x" * 120, "probe")).parent
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"probe")
            file.flush()
        return str(folder), _free_bytes(folder), ""
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return base, 0, ""
        return base, None, error.strerror or str(error)
    except NoSpace:
        return base, 0, ""
    except CkptError as error:
        # Not for which name: it is only a probe.
        return base, None, error.message.partition(" for ")[0]


def _free_bytes(directory: Path) -> int:
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize
