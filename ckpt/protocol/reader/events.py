"""What a PayloadReader hears and asks for: its events, its actions and its wish.

Byte ranges of columns are counted in fragment bytes (the header page not counted), those of cells
from
the cell's own beginning. Every event carries `now_us`, monotonic microseconds of this process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ckpt.base.ids import ColumnNumber, PayloadId
from ckpt.base.limits import HEDGE_US, RESOLVE_WAIT_US
from ckpt.base.units import MiB
from ckpt.format.layout import Layout
from ckpt.format.messages import ByteRange
from ckpt.protocol.events import Report, Ticked


class Standing(Enum):
    """What is known of a column before and while it is read."""

    REACHABLE = "reachable"
    """It may be asked."""
    AWAY = "away"
    """Out of reach for now: its target is not live, silent, slow or lost. Proves nothing."""
    SUSPECT = "suspect"
    """It was given up by an earlier read of the same load: to begin with away, and tried when it
    is needed."""
    ABSENT = "absent"
    """Proved not to be there, or not to be this payload's."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds and patience of one read."""

    window_bytes: int = 4 * MiB
    """Asked of one column and not yet here."""
    ask_bytes: int = 1 * MiB
    """Of one ReadRanges; one cell at least."""
    scratch_bytes: int = 64 * MiB
    """Cells that have no place in the destination and are held until their stripe is done. The
    oldest
    stripe may pass it."""
    stripes_max: int = 256
    """Under way at once."""
    hedge_us: int = HEDGE_US
    """A column that is silent for so long, while others deliver, is replaced by parity."""
    slow_after_us: int = 500_000
    """Before a column has owed bytes for so long, its rate says little."""
    slow_fraction: int = 4
    """A column is slow below the median rate of its peers divided by this."""
    timeout_us: int = RESOLVE_WAIT_US
    """With too few columns in reach: how long to try them again."""


@dataclass(frozen=True, slots=True)
class ReadWish:
    """Which bytes of which payload, and how its columns stand."""

    payload: PayloadId
    layout: Layout
    spans: tuple[tuple[int, int], ...]
    """Payload bytes [start, end), ascending, disjoint, not empty."""
    standings: tuple[Standing, ...]
    """Of each column: ABSENT when the index names no target, AWAY when its target has no address
    now."""
    limits: ReadLimits = field(default_factory=ReadLimits)


# --------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class RangeStored:
    """Bytes of an ask are here and match their fresh checksum."""

    now_us: int
    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeBroken:
    """Bytes of an ask came and do not match the checksum that came along: damaged on the way."""

    now_us: int
    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeErased:
    """The target says that it cannot give these bytes: damaged at rest."""

    now_us: int
    request: int
    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskAnswered:
    """The target says that it has told all. Comes after the events of all its ranges."""

    now_us: int
    request: int


@dataclass(frozen=True, slots=True)
class AskRefused:
    """The target answered with Failed."""

    now_us: int
    request: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ColumnLost:
    """The connection to the column's target is gone or cannot be had; its asks will not be
    answered."""

    now_us: int
    column: ColumnNumber
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestRead:
    """The manifest came and is the one that the index names."""

    now_us: int
    request: int


@dataclass(frozen=True, slots=True)
class ManifestWrong:
    """Something else came: the column is not this payload's."""

    now_us: int
    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class StripeFinished:
    """The answer to FinishStripe: which of the checked cells are not what the manifest says."""

    now_us: int
    stripe: int
    wrong: tuple[int, ...]
    """Columns, ascending. Empty: everything wanted of this stripe was handed out."""


ReaderEvent = (
    RangeStored | RangeBroken | RangeErased | AskAnswered | AskRefused | ColumnLost | ManifestRead
    | ManifestWrong | StripeFinished | Ticked
)  # fmt: skip

# --------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class AskRanges:
    """Send ReadRanges to the column's target, connecting first if need be. No range leaves its
    cell."""

    request: int
    column: ColumnNumber
    ranges: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True)
class AskManifest:
    """Send ReadManifest to the column's target."""

    request: int
    column: ColumnNumber


@dataclass(frozen=True, slots=True)
class CancelAsk:
    """Send CancelRequest. What still comes for it must not land anywhere."""

    request: int
    column: ColumnNumber


@dataclass(frozen=True, slots=True)
class CutColumn:
    """Close the connection to the column's target: its asks are void and nothing more lands."""

    column: ColumnNumber
    reason: str


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Bytes [start, end) of the `wanted` columns' cells come from the same bytes of the k
    `sources`."""

    start: int
    end: int
    sources: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishStripe:
    """All that is needed of a stripe is here: decode, check, hand out, and answer StripeFinished.

    When a checked cell is wrong nothing is handed out.
    """

    stripe: int
    parts: tuple[DecodePart, ...]
    rebuilt: tuple[int, ...]
    """Columns of which something was decoded; their cells are whole afterwards."""
    checked: tuple[int, ...]
    """Received columns whose cell is here whole: compare it with the manifest, before decoding."""


@dataclass(frozen=True, slots=True)
class ReadCompleted:
    """Every wanted byte was handed out."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """It cannot be done. `damaged`: what was seen proves that fewer than k columns are good
    somewhere."""

    code: str
    """`lost` or `unavailable`."""
    message: str
    damaged: bool


ReaderAction = (
    AskRanges | AskManifest | CancelAsk | CutColumn | FinishStripe | ReadCompleted | ReadFailed
    | Report
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What one read moved so far."""

    wanted_bytes: int
    done_bytes: int
    """Wanted bytes that were handed out."""
    received_bytes: tuple[int, ...]
    """By column."""
    rebuilt_bytes: int
    """Decoded from parity."""
    damaged_bytes: int
    """Named as damaged by their targets, or wrong against the manifest."""
    extra_bytes: int
    """Received beyond what was wanted."""
    columns_out: tuple[int, ...]
    """Columns that were given up."""
