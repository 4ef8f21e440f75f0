"""What workers of `ckptd drain` and the coordinator say to each other about its queue.

A worker names itself in every message, so that it is known again on its next session. All requests
may be repeated. The queue itself is ckpt.protocol.coordinator.keeping.draining.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import Struct

from ckpt.base.errors import PeerError
from ckpt.base.ids import CheckpointId, Generation, RunName, Step

Buffer = bytes | bytearray | memoryview
_Item = TypeVar("_Item")


class OpenStore(Struct, frozen=True, gc=False):
    """A worker serves this store: what is committed is queued for it from now on, durably, until
    ForgetStore. The latest worker's policy counts."""

    url: str
    worker: str
    """`drain HOST:PID`, and what parts it from an earlier process of that number."""
    every: int = 1
    keep: int | None = None
    runs: tuple[str, ...] = ("*",)
    conditional: bool = True
    """The store creates an object only once; without it one worker at a time gets leases."""


class TellStored(Struct, frozen=True, gc=False):
    """Bulk: every generation of the run that is committed in the store (`encode_stored`), and is
    about to stay. Replaces what was known."""

    url: str
    worker: str
    run: RunName
    version: int = 0
    """What DrainNoted said before the store was looked at; Failed(busy) when another worker has
    reported something since. 0 is not compared: an older worker's."""


class LeaseDrain(Struct, frozen=True, gc=False):
    """What is next? Repeated before EndDrain, the answer is the same."""

    url: str
    worker: str


class DrainLeased(Struct, frozen=True, gc=False):
    """The oldest that is needed and has work left; None when there is none now."""

    checkpoint: CheckpointId | None


class BeginParts(Struct, frozen=True, gc=False):
    """The plan is known. Bulk: numbers of parts that have receipts (`encode_parts`)."""

    url: str
    worker: str
    checkpoint: CheckpointId
    part_count: int


class TakePart(Struct, frozen=True, gc=False):
    """One thread of a worker asks for a part, and says which one it finished. A slot that has one
    gets it again.
    """

    url: str
    worker: str
    checkpoint: CheckpointId
    slot: int
    done: int | None = None


class Turn(Enum):
    """What a slot does next."""

    PART = "part"
    WAIT = "wait"
    """Others are at the last parts; they may come back."""
    COMMIT = "commit"
    """All parts have receipts, and this worker alone writes the marker."""


class PartTaken(Struct, frozen=True, gc=False):
    """The slot's next part, if it is one."""

    turn: Turn
    part: int = 0


class RenewDrain(Struct, frozen=True, gc=False):
    """The worker lives. Failed(fenced) when the checkpoint is no longer leased to it."""

    url: str
    worker: str
    checkpoint: CheckpointId | None
    written_bytes: int = 0
    """Of it, by this worker, read back."""
    bytes_per_s: float = 0.0
    """While it drains, since it began."""
    looks: bool = False
    """It looks for what DrainNoted asks for; an older worker does not."""
    stands: tuple[CheckpointId, ...] = ()
    """What it was asked for and found committed in the store just now."""
    gone: tuple[CheckpointId, ...] = ()
    """What it did not find there."""


class EndDrain(Struct, frozen=True, gc=False):
    """Without an error: the marker is there, so everything was read back."""

    url: str
    worker: str
    checkpoint: CheckpointId
    error: str = ""


class TellTrouble(Struct, frozen=True, gc=False):
    """Why a worker cannot use its store at all (no such bucket, wrong credentials, no answer), also
    one that was never opened; empty once it can. Not durable: sent again while it lasts."""

    url: str
    worker: str
    error: str


class ForgetStore(Struct, frozen=True, gc=False):
    """Nothing is queued for the store any more, and what it holds no longer allows an eviction."""

    url: str
    repeated: bool = False
    """It was asked before, and the answer was lost: if nobody knows the store, that request has
    forgotten it.
    """


class DrainNoted(Struct, frozen=True, gc=False):
    """Done, and durable where it has to be."""

    lease_us: int = 0
    """For how long a worker counts after its last RenewDrain."""
    version: int = 0
    """To OpenStore and RenewDrain: another number whenever it becomes known that the store holds
    something else."""
    look: tuple[CheckpointId, ...] = ()
    """To RenewDrain of a worker that looks: are they still there? The tier is about to evict them.
    """


def encode_stored(stored: Iterable[tuple[Step, Generation]]) -> bytes:
    """The bulk of TellStored."""
    return msgspec.msgpack.encode([(step, each.term, each.counter) for step, each in stored])


def decode_stored(raw: Buffer) -> list[tuple[Step, Generation]]:
    """Raises PeerError."""
    found = _decode(raw, list[tuple[int, int, int]])
    return [(Step(step), Generation(term, counter)) for step, term, counter in found]


def encode_parts(parts: Iterable[int]) -> bytes:
    """The bulk of BeginParts."""
    return msgspec.msgpack.encode(sorted(parts))


def decode_parts(raw: Buffer) -> list[int]:
    """Raises PeerError."""
    return _decode(raw, list[int])


def _decode(raw: Buffer, kind: type[list[_Item]]) -> list[_Item]:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise PeerError(f"a list of the drain cannot be read: {error}") from None
