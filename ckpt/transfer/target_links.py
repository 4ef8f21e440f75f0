"""One lasting connection to each target, shared by all payloads of this process."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from ckpt.aio.net.link import Link, LinkState
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.ids import BootId, TargetId
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.saving import Place
from ckpt.protocol.handshake import Caller


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Who sends, and how."""

    secret: bytes = field(repr=False)
    name: str
    """`HOST:PID`, for people."""
    cluster: str = ""
    role: Role = Role.STAGER


class TargetLinks:
    """I find or make the link to a place. The send thread alone uses me."""

    def __init__(self, loop: LinkLoop, options: SenderOptions) -> None:
        self._loop = loop
        self._options = options
        #: The live link to each boot of a target.
        self._links: dict[tuple[TargetId, BootId], Link] = {}
        #: The boot of a target for which a socket of this host was dialed last, by address.
        self._unix_dialed: dict[str, BootId] = {}
        #: Those of them that nobody answered on: TCP is used instead, until the target restarts.
        self._unix_broken: dict[str, BootId] = {}

    def obtain(self, place: Place) -> Link:
        """A link that is open or being made; LinkClosed follows if it cannot be. Raises Refused."""
        key = (place.target, place.boot)
        link = self._links.get(key)
        if link is None or link.state is LinkState.CLOSED:
            options = self._options
            caller = Caller.of_target(
                options.secret, options.role, options.name, place.target, options.cluster
            )
            link = self._links[key] = self._loop.connect(self._address(place), caller)
        return link

    def cut(self, link: Link) -> None:
        """Close a link that is not trusted any more; no event follows."""
        self._loop.close(link)
        self.forget(link)

    def forget(self, link: Link) -> bool:
        """Note that the link is gone. True when a place may be tried again at once, by TCP."""
        self._links = {key: other for key, other in self._links.items() if other is not link}
        local = link.address.startswith("unix:")
        if local and link.peer is None:
            self._unix_broken[link.address] = self._unix_dialed[link.address]
        return local and link.peer is None

    def _address(self, place: Place) -> str:
        local = f"unix:{place.unix}"
        is_broken = self._unix_broken.get(local) == place.boot
        if not place.unix or is_broken or not _is_socket(place.unix):
            return place.address
        self._unix_dialed[local] = place.boot
        return local


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def nearest_address(where: TargetAddress) -> str:
    """The target's Unix socket when it is on this host, else its TCP address."""
    if where.unix and os.access(where.unix, os.W_OK):
        return f"unix:{where.unix}"
    return where.address
