"""Which connections of a server have tags on their bulks, or are encrypted: by default those from
other hosts have tags.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Protocol

from ckpt.base.errors import Refused
from ckpt.format.messages.hello import Wire
from ckpt.native.libcrypto import find_libcrypto

VARIABLE: Final = "CKPT_WIRE"
"""What a client takes no less than over TCP: mac or encrypt; auto, and plain, insist on nothing."""

_RISING = (Wire.PLAIN, Wire.MAC, Wire.ENCRYPT).index


class WireRule(Protocol):
    """Which protection a server gives its connections."""

    def prepare(self, host: str) -> None:
        """Before a server listens at this host's address: peers of other hosts can be served.
        Raises CkptError where there is no libcrypto.
        """

    def settled(self, sock: socket.socket) -> Callable[[Wire], Wire]:
        """What a connection gets whose client wants so much: it may be remote where a proxy on this
        host hands it on. Raises OSError when it has gone.
        """


class WirePolicy(Enum):
    """What whoever runs the daemon wants. A Unix socket has nobody on the way, and no tags."""

    AUTO = "auto"
    """Tags on what may leave this host."""
    MAC = "mac"
    """Tags on all of TCP."""
    ENCRYPT = "encrypt"
    """All of TCP is encrypted."""
    PLAIN = "plain"
    """None: the network is trusted."""

    @classmethod
    def parse(cls, text: str, name: str = "wire") -> WirePolicy:
        """Of the option `name`. Raises Refused for any other word."""
        try:
            return cls(text)
        except ValueError:
            words = ", ".join(each.value for each in cls)
            raise Refused(f"{name} {text!r}: one of {words}") from None

    def prepare(self, host: str) -> None:
        """See WireRule. Raises Refused for another word in $CKPT_WIRE."""
        insisted()
        everywhere = self in (WirePolicy.MAC, WirePolicy.ENCRYPT)
        if everywhere or (self is WirePolicy.AUTO and not is_loopback(host)):
            find_libcrypto()

    def settled(self, sock: socket.socket) -> Callable[[Wire], Wire]:
        """See WireRule."""
        seen = self.of(sock)
        return lambda wanted: seen if self is WirePolicy.PLAIN else max(seen, wanted, key=_RISING)

    def of(self, sock: socket.socket) -> Wire:
        """What a connection looks like from this end. Raises OSError when it has gone."""
        if self is WirePolicy.PLAIN or sock.family == socket.AF_UNIX:
            return Wire.PLAIN
        if self is WirePolicy.AUTO and is_one_host(sock.getpeername()[0], sock.getsockname()[0]):
            return Wire.PLAIN
        return Wire.ENCRYPT if self is WirePolicy.ENCRYPT else Wire.MAC


@dataclass(frozen=True, slots=True)
class FollowedWire:
    """Of a server that nobody configures: it encrypts where its coordinator does."""

    coordinator: Callable[[], Wire | None]
    """How the session with it is guarded; None while none stands: then all of TCP is encrypted
    here, rather than too little.
    """

    def prepare(self, host: str) -> None:
        """See WireRule."""
        WirePolicy.AUTO.prepare(host)

    def settled(self, sock: socket.socket) -> Callable[[Wire], Wire]:
        """See WireRule."""
        known = self.coordinator() in (Wire.PLAIN, Wire.MAC)
        return (WirePolicy.AUTO if known else WirePolicy.ENCRYPT).settled(sock)


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach what listens there. A host name counts as
    remote.
    """
    try:
        return host == "localhost" or _address(host).is_loopback
    except ValueError:
        return False


def insisted(environ: Mapping[str, str] = os.environ) -> WirePolicy:
    """What $CKPT_WIRE says. Raises Refused for another word: whoever starts daemons, or is one,
    asks before anything begins, as they inherit it.
    """
    return WirePolicy.parse(environ.get(VARIABLE) or WirePolicy.AUTO.value, VARIABLE)


def wanted_for(sock: socket.socket, environ: Mapping[str, str] = os.environ) -> Wire:
    """The least that a client asks for, once it is connected. Raises Refused for another word than
    the policy's in $CKPT_WIRE.
    """
    try:
        return max(WirePolicy.AUTO.of(sock), _insisted(sock, environ), key=_RISING)
    except OSError:  # It has gone, and whoever uses it will hear so.
        return Wire.MAC


def check_settled(
    sock: socket.socket, given: Wire, server: str, environ: Mapping[str, str] = os.environ
) -> None:
    """Raises Refused where $CKPT_WIRE insists on more than `server` gives this client."""
    least = _insisted(sock, environ)
    if _RISING(given) < _RISING(least):
        raise Refused(
            f"{server} gives its sessions {given.value!r}, and {VARIABLE}={least.value} takes no"
            " less",
            hint=f'set wire to "{least.value}" on the coordinator and all targets, or unset'
            f" {VARIABLE} where the network is trusted",
        )


def _insisted(sock: socket.socket, environ: Mapping[str, str]) -> Wire:
    """What a client takes no less than; nobody is on the way of a Unix socket."""
    policy = insisted(environ)
    if sock.family == socket.AF_UNIX:
        return Wire.PLAIN
    return {WirePolicy.MAC: Wire.MAC, WirePolicy.ENCRYPT: Wire.ENCRYPT}.get(policy, Wire.PLAIN)


def is_one_host(theirs: str, ours: str) -> bool:
    """Whether both ends' addresses are one, or the loopback's."""
    peer = _address(theirs)
    return peer.is_loopback or peer == _address(ours)


def _address(text: str) -> IPv4Address | IPv6Address:
    """Of an IPv4 peer on an IPv6 socket: the IPv4 address."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
