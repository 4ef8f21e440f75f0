"""The events and actions that every state machine shares.

A machine is a pure object: `handle(event) -> list[Action]`. It owns no clock, socket, file or
thread; time arrives in `now_us` (monotonic microseconds of its own process) of each event. The
daemons and the simulator perform the actions and feed back what happened.

These, and the disk's, are msgspec's Structs instead of frozen dataclasses: two or three are made
for every frame and disk operation, at a tenth of the cost. None can be part of a cycle, so the
collector does not follow them (`gc=False`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

from msgspec import Struct

from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role

if TYPE_CHECKING:
    from ckpt.native.sums import Sums

Session = NewType("Session", int)
"""One authenticated connection, numbered by the shell that owns it; never used again."""

Buffer = bytes | bytearray | memoryview


# --------------------------------------------------------------------------- events


class SessionOpened(Struct, frozen=True, gc=False):
    """A peer proved the cluster's secret."""

    now_us: int
    session: Session
    role: Role
    name: str
    """A target's id, or `HOST:PID` of a client; for people, never for decisions about safety."""
    version: int = PROTOCOL_VERSION
    """Of the protocol: what both ends speak."""
    lends: bool = False
    """Files of columns can go along on it."""


class SessionClosed(Struct, frozen=True, gc=False):
    """The connection is gone; nothing more arrives on it and sends to it are dropped."""

    now_us: int
    session: Session


class Received(Struct, frozen=True, gc=False):
    """A whole frame. `bulk` is valid only during `handle`, unless the action that keeps it says
    so."""

    now_us: int
    session: Session
    request: int
    """Correlates a reply with its request; a column stream uses one number throughout."""
    message: Message
    bulk: Buffer = b""
    sums: Sums | None = None
    """Of the bulk, where they were taken as it landed; None: it came at once, or is lent."""


class Ticked(Struct, frozen=True, gc=False):
    """Time has passed. Shells tick at least every 100 ms while something is under way, every half
    second otherwise (`resting`).
    """

    now_us: int


class StoodStill(Struct, frozen=True, gc=False):
    """This process did not run for a while (SIGSTOP, a paused machine), and heard nobody: what the
    others did in that time is unknown, and what they said is still to be read. Comes before the
    next Ticked.
    """

    now_us: int
    gap_us: int


# --------------------------------------------------------------------------- actions


class Send(Struct, frozen=True, gc=False):
    """Queue one frame on a session; dropped silently when the session is gone."""

    session: Session
    request: int
    message: Message
    bulk: Buffer = b""


class CloseSession(Struct, frozen=True, gc=False):
    """Cut a peer off; the reason goes to the log and to a counter."""

    session: Session
    reason: str
    retry_after_us: int | None = None
    """Where we dialed it: when to dial again, in place of soon; the peer has said so."""


class Report(Struct, frozen=True, gc=False):
    """A line for the log, with its fields; machines never log themselves."""

    level: str
    """`info`, `warning` or `error`."""
    text: str
    fields: tuple[tuple[str, str | int | float], ...] = ()
