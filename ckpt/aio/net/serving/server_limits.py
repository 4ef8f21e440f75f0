"""What may peers cost a server, why does it cut them off, and what has it counted?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ckpt.base.limits import UNAUTHENTICATED_LIFE_US, UNAUTHENTICATED_PEERS_MAX
from ckpt.base.units import US_PER_S, MiB


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much of a server's memory and sockets peers may take."""

    unauthenticated_peers_max: int = UNAUTHENTICATED_PEERS_MAX
    unauthenticated_life_us: int = UNAUTHENTICATED_LIFE_US
    frame_silence_us: int = 30 * US_PER_S
    """Without a byte in the middle of a frame that we want to read."""
    unread_us: int = 30 * US_PER_S
    """Without a byte taken by a peer that we have something for."""
    queued_bytes_max: int = 64 * MiB
    """For one peer."""
    sessions_max: int = 16_384
    """Also at most three quarters of the descriptors."""


class Cut(Enum):
    """Why a connection ended."""

    MALFORMED = "malformed"
    UNAUTHORIZED = "unauthorized"
    TIMEOUT = "timeout"
    SILENT = "silent"
    UNREAD = "unread"
    GONE = "gone"
    EVICTED = "evicted"
    """A stranger, when others came and all seats were taken."""
    CLOSED = "closed"
    """By the handler, or because the server closes."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """How it stands at the door: why trainers cannot stay now (empty: they can), and counts since
    the start, as in ServerStatistics.
    """

    need: str = ""
    evicted: int = 0
    shortages: int = 0
    turned_away: int = 0


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Counts since the start; `sessions`, `strangers`, `waiting` and `queued_bytes`
    are of this moment.
    """

    sessions: int
    strangers: int
    waiting: int
    """Connections that wait for a slot."""
    queued_bytes: int
    accepted: int
    opened: int
    received_bytes: int
    sent_bytes: int
    malformed: int
    unauthorized: int
    timeout: int
    """Strangers that did not prove themselves in time."""
    silent: int
    """Stopped in the middle of a frame."""
    unread: int
    """Did not read what was sent."""
    gone: int
    slot_waits: int
    evicted: int
    """Strangers that gave their seat to others."""
    shortages: int
    """Connections that came when no descriptor was free."""
    turned_away: int
    """Peers that proved themselves and heard that there is no room."""
