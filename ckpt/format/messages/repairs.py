"""What workers of `ckptd repair` and the coordinator say to each other; and what people say of it.

A worker names itself in every message. All requests may be repeated. What there is to do is
ckpt.protocol.coordinator.repairing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import ColumnNumber, PayloadId
from ckpt.base.units import MiB
from ckpt.format.messages.saving import Place

NO_CAP: Final = 0
"""As fast as it goes."""
RATE_BYTES_MAX: Final = 1 << 50
"""No target is faster, and what is made of it has its place in a message."""


class RepairLimits(Struct, frozen=True, gc=False):
    """Limits of what repair may take of each target."""

    floor_bytes: int = 8 * MiB
    """Bytes a second while somebody saves or loads; above 0."""
    cap_bytes: int = NO_CAP
    """Bytes a second while nobody does."""


def check_limits(limits: RepairLimits) -> None:
    """Raises Refused."""
    floor, cap = limits.floor_bytes, limits.cap_bytes
    text = f"repair at a floor of {floor} and a cap of {cap} bytes a second"
    if floor < 1 or cap < 0 or NO_CAP < cap < floor:
        hint = "the floor is at least 1, the cap not below it; a cap of 0 is none"
        raise Refused(text, hint=hint)
    if max(floor, cap) > RATE_BYTES_MAX:
        hint = f"both are at most {RATE_BYTES_MAX} (1024 TiB); a cap of 0 is none"
        raise Refused(text, hint=hint)


class RepairMeasured(Struct, frozen=True, gc=False):
    """How fast lost columns were made again, lately."""

    bytes_per_s: float
    """Bytes of columns, by all workers together."""
    at_s: float
    """When that was."""


class RepairRules(Struct, frozen=True, gc=False):
    """What people have set; where it is None, the coordinator's options apply. And what is known of
    repair itself that the next coordinator cannot know.
    """

    floor_bytes: int | None = None
    cap_bytes: int | None = None
    paused_at_s: float | None = None
    """Nothing is handed out since then; None: repair goes on."""
    balance_bytes_max: int | UnsetType = UNSET
    """Most bytes that a balance which somebody asked for may move; UNSET while none is under
    way.
    """
    measured: RepairMeasured | UnsetType = UNSET
    """UNSET while nothing was made again that is worth it."""


def decode_repair_rules(document: bytes) -> RepairRules:
    """Decode the JSON. What cannot be read, such as a later version's, counts as not set; so do
    limits that an earlier version took and nobody can keep.
    """
    try:
        rules = msgspec.json.decode(document, type=RepairRules)
    except msgspec.MsgspecError:
        return RepairRules()
    if max(rules.floor_bytes or 0, rules.cap_bytes or 0) > RATE_BYTES_MAX:
        return replace(rules, floor_bytes=None, cap_bytes=None)
    return rules


class SetRepair(Struct, frozen=True, gc=False):
    """Set limits of repair. None leaves a limit as it is."""

    paused: bool | None = None
    floor_bytes: int | None = None
    cap_bytes: int | None = None
    as_configured: bool = False
    """First reset floor and cap to those of the options."""


class RepairSet(Struct, frozen=True, gc=False):
    """The answer to SetRepair: all that is set now, durable."""

    rules: RepairRules


class RepairPace(Struct, frozen=True, gc=False):
    """How fast a worker may work on a payload, until it hears again."""

    bytes_per_s: int = NO_CAP
    """Bytes of the payload that may be read in a second."""
    renew_us: int = 250_000
    """How often the worker renews its lease."""


class LeaseRepair(Struct, frozen=True, gc=False):
    """What is next? Repeated before EndRepair, the answer is the same."""

    worker: str
    """`repair HOST:PID`, and what parts it from an earlier process of that number."""


class LostColumn(Struct, frozen=True, gc=False):
    """A column to be made again, at this place."""

    column: ColumnNumber
    place: Place
    alone: bool = False
    """It is the only one, a data column that is whole where it is: it is copied from there."""


class RepairLeased(Struct, frozen=True, gc=False):
    """The payload that comes first now; None when there is none, or no room for any."""

    payload: PayloadId | None = None
    lost: tuple[LostColumn, ...] = ()
    """Its lost columns, ascending."""
    pace: RepairPace = RepairPace()


class RenewRepair(Struct, frozen=True, gc=False):
    """The worker lives. Failed(fenced) when the payload is no longer leased to it."""

    worker: str
    payload: PayloadId
    read_bytes: int = 0
    """Bytes of the payload that were read so far."""


class EndRepair(Struct, frozen=True, gc=False):
    """All columns are sealed; or why not. The coordinator asks the targets what there is."""

    worker: str
    payload: PayloadId
    error: str = ""


class RepairNoted(Struct, frozen=True, gc=False):
    """The answer to RenewRepair; to EndRepair once the targets have answered."""

    counted: int = 0
    """At the end: columns that are there, and count or are about to."""
    pace: RepairPace = RepairPace()
    """The pace from now on."""
