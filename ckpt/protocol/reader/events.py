"""What a PayloadReader hears and asks for: its events, its actions and its wish.

Byte ranges of columns are counted in fragment bytes (the header page not counted), those of cells
from
the cell's own beginning. Every event carries `now_us`, monotonic microseconds of this process.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from ckpt.base.ids import ColumnNumber, PayloadId
from ckpt.base.limits import HEDGE_US, READ_BYTES, RESOLVE_WAIT_US
from ckpt.base.units import MiB
from ckpt.format.layout import Layout
from ckpt.format.runs import Ranges
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.runs.run_sets import RunSet


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


class ReadLimits(Struct, frozen=True, gc=False):
    """Bounds and patience of one read."""

    window_bytes: int = 8 * MiB
    """Asked of one column and not yet here."""
    ask_bytes: int = READ_BYTES
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
    """Before a column has owed bytes for so long, its rate says little; times Effort.factor."""
    slow_fraction: int = 4
    """A column is slow below the median rate of its peers divided by this and Effort.factor."""
    timeout_us: int = RESOLVE_WAIT_US
    """With too few columns in reach: how long to try them again."""


class ReadWish(Struct, frozen=True, gc=False):
    """Which bytes of which payload, and how its columns stand."""

    payload: PayloadId
    layout: Layout
    spans: Ranges
    """Payload bytes, ascending, disjoint, not empty."""
    standings: tuple[Standing, ...]
    """Of each column: ABSENT when the index names no target, AWAY when its target has no address
    now."""
    limits: ReadLimits = field(default_factory=ReadLimits)
    spared: frozenset[int] = frozenset()
    """Columns that are read only where the others do not suffice: their targets gave enough."""


# --------------------------------------------------------------------------- events


class RangesStored(Struct, frozen=True, gc=False):
    """Bytes of an ask are here and match their fresh checksum."""

    now_us: int
    request: int
    runs: RunSet
    """Fragment bytes; each span and tooth of one cell."""


class RangesBroken(Struct, frozen=True, gc=False):
    """Bytes of an ask came and do not match the checksum that came along: damaged on the way."""

    now_us: int
    request: int
    runs: RunSet


class RangeErased(Struct, frozen=True, gc=False):
    """The target says that it cannot give these bytes: damaged at rest."""

    now_us: int
    request: int
    start: int
    end: int
    reason: str


class AskAnswered(Struct, frozen=True, gc=False):
    """The target says that it has sent all. Comes after the events of all its ranges."""

    now_us: int
    request: int


class AskRefused(Struct, frozen=True, gc=False):
    """The target answered with Failed."""

    now_us: int
    request: int
    code: str
    message: str


class ColumnLost(Struct, frozen=True, gc=False):
    """The connection to the column's target is gone or cannot be had; its asks will not be
    answered."""

    now_us: int
    column: ColumnNumber
    reason: str


class ManifestRead(Struct, frozen=True, gc=False):
    """The manifest came and is the one that the index names."""

    now_us: int
    request: int


class ManifestWrong(Struct, frozen=True, gc=False):
    """Something else came: the column is not this payload's."""

    now_us: int
    request: int
    reason: str


class StripeFinished(Struct, frozen=True, gc=False):
    """The answer to FinishStripe: which of the checked cells are not what the manifest says."""

    now_us: int
    stripe: int
    wrong: tuple[int, ...]
    """Columns, ascending. Empty: everything wanted of this stripe was handed out."""


ReaderEvent = (
    RangesStored | RangesBroken | RangeErased | AskAnswered | AskRefused | ColumnLost | ManifestRead
    | ManifestWrong | StripeFinished | Ticked
)  # fmt: skip

# --------------------------------------------------------------------------- actions


class AskRanges(Struct, frozen=True, gc=False):
    """Send ReadRanges to the column's target, connecting first if need be. No span or tooth leaves
    its cell."""

    request: int
    column: ColumnNumber
    runs: RunSet


class AskManifest(Struct, frozen=True, gc=False):
    """Send ReadManifest to the column's target."""

    request: int
    column: ColumnNumber


class CancelAsk(Struct, frozen=True, gc=False):
    """Send CancelRequest. What still comes for it must not land anywhere."""

    request: int
    column: ColumnNumber


class CutColumn(Struct, frozen=True, gc=False):
    """Close the connection to the column's target: its asks are void and nothing more lands."""

    column: ColumnNumber
    reason: str


class DecodePart(Struct, frozen=True, gc=False):
    """Bytes [start, end) of the `wanted` columns' cells come from the same bytes of the k
    `sources`."""

    start: int
    end: int
    sources: tuple[int, ...]
    wanted: tuple[int, ...]


class FinishStripe(Struct, frozen=True, gc=False):
    """All that is needed of a stripe is here: decode, check, hand out, and answer StripeFinished.

    When a checked cell is wrong nothing is handed out.
    """

    stripe: int
    parts: tuple[DecodePart, ...]
    rebuilt: tuple[int, ...]
    """Columns of which something was decoded; their cells are whole afterwards."""
    checked: tuple[int, ...]
    """Received columns whose cell is here whole: compare it with the manifest, before decoding."""


class ReadCompleted(Struct, frozen=True, gc=False):
    """Every wanted byte was handed out."""


class ReadFailed(Struct, frozen=True, gc=False):
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


class ReadStatistics(Struct, frozen=True, gc=False):
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
