"""Where a peer listens, as text: `HOST:PORT`, `[v6]:PORT` or `unix:/path`.

Where coordinators listen, commas part them: `H1:P,H2:P,H3:P`.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ckpt.aio.net.names import SocketAddress, looked_up
from ckpt.base.errors import Refused
from ckpt.format.messages.hello import Role
from ckpt.protocol.finding import LISTED_MAX

UNIX_PATH_BYTES_MAX: Final = 107
"""sun_path has 108 bytes, with the zero that ends it."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP endpoint; `host` may be a name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix stream socket on this host."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress
#: Of a name with several addresses: the one that answered last, and how often the name was dialed
#: since. All threads of this process look; a lost count costs a dial.
_dialed: Final[dict[TcpAddress, tuple[str, int]]] = {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What `socket` and `connect` take: no name is left to be resolved."""

    family: socket.AddressFamily
    sockaddr: SocketAddress | str


def parse_address(text: str) -> Address:
    """The address, or Refused with the form that was expected."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(path.encode()) > UNIX_PATH_BYTES_MAX or "\0" in path:
            raise Refused(
                f"{text!r} is not unix:/PATH with a path of at most {UNIX_PATH_BYTES_MAX} bytes"
            )
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise Refused(f"address {text!r} is not of the form HOST:PORT")
    return TcpAddress(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """All addresses of a list, or of one alone. Raises Refused for the part that is wrong."""
    parts = text.split(",")
    if len(parts) > LISTED_MAX:
        raise Refused(f"{len(parts)} addresses in a list: at most {LISTED_MAX} are allowed")
    addresses = tuple(map(parse_address, parts))
    twice = [str(one) for number, one in enumerate(addresses) if one in addresses[:number]]
    if twice:
        raise Refused(f"address {twice[0]} stands twice in {text!r}")
    return addresses


def parse_server(text: str, role: Role) -> tuple[str, ...]:
    """Where a server of that role is dialed: there may be several coordinators. Raises Refused."""
    if role is Role.COORDINATOR:
        return tuple(map(str, parse_addresses(text)))
    return (str(parse_address(text)),)


def endpoint_nowait(address: Address) -> Endpoint | None:
    """Where to connect, or None when the host is a name that a resolver must look up."""
    match address:
        case UnixAddress(path):
            return Endpoint(socket.AF_UNIX, path)
        case TcpAddress(host, port):
            for family in (socket.AF_INET, socket.AF_INET6):
                try:
                    socket.inet_pton(family, host)
                except OSError:
                    continue
                return Endpoint(family, (host, port))
            return None


def endpoints_by_resolver(address: Address) -> list[Endpoint]:
    """As `endpoint_nowait`, asking the system's resolver for a name, which may have several
    addresses; may block the first time. Raises Unavailable.
    """
    known = endpoint_nowait(address)
    if known is not None:
        return [known]
    assert isinstance(address, TcpAddress)
    found = looked_up(address.host, address.port)
    return [Endpoint(family, sockaddr) for family, sockaddr in found]


def endpoint_by_resolver(address: Address) -> Endpoint:
    """Where to dial now: of a name's addresses the one that has answered last, and while none
    answers each in its turn (`localhost` may be ::1 first, a host may have a dead interface). May
    block the first time. Raises Unavailable.
    """
    found = endpoints_by_resolver(address)
    if len(found) == 1:
        return found[0]
    assert isinstance(address, TcpAddress)
    answered, dials = _dialed.get(address, ("", 0))
    hosts = [endpoint.sockaddr[0] for endpoint in found]
    first = hosts.index(answered) if answered in hosts else 0
    _dialed[address] = answered, dials + 1
    return found[(first + dials) % len(found)]


def note_answered(address: str, sock: socket.socket) -> None:
    """Who was dialed at `address` has proved itself over this socket: dial there first from now
    on.
    """
    where = parse_address(address)
    if isinstance(where, TcpAddress) and endpoint_nowait(where) is None:
        with suppress(OSError):
            _dialed[where] = sock.getpeername()[0], 0
