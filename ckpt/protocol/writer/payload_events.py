"""What happens to the streams of one payload, and what is to be done: PayloadWriter's vocabulary.

`stream` is the request number of all frames of one attempt to write one column to one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.messages import ColumnProof, Place
from ckpt.protocol.events import Ticked


class AbandonReason(Enum):
    """Why a stream is given up. After STALLED the link itself is not trusted any more."""

    STALLED = "stalled"
    SLOW = "slow"
    BROKEN = "broken"
    REOPENED = "reopened"
    STOPPED = "stopped"


# --------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """The target answered ColumnAccepted."""

    now_us: int
    stream: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class StreamCredited:
    """The target granted more."""

    now_us: int
    stream: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class FragmentSent:
    """The stripe that `next_stripe` named has been handed to the link, behind all earlier ones."""

    now_us: int
    stream: int
    stripe: int


@dataclass(frozen=True, slots=True)
class SendBlocked:
    """The socket takes no more: the column waits for its target."""

    now_us: int
    stream: int


@dataclass(frozen=True, slots=True)
class SendMoved:
    """A blocked socket took bytes again."""

    now_us: int
    stream: int


@dataclass(frozen=True, slots=True)
class StreamSealed:
    """The target gave its proof."""

    now_us: int
    stream: int
    proof: ColumnProof


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The target answered Failed; the connection stands."""

    now_us: int
    stream: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The link is gone, or could not be made."""

    now_us: int
    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestReady:
    """Every cell is encoded and its checksum known: columns may be sealed."""

    now_us: int
    digest: bytes
    column_crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SparesGiven:
    """The coordinator's answer to AskSpares of this column;
    `column` None for spares nobody asked for.
    """

    now_us: int
    column: ColumnNumber | None
    spares: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ColumnsReopened:
    """The second count lost these columns: stream them again, onto `places` in the same order."""

    now_us: int
    columns: tuple[ColumnNumber, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class WriterStopped:
    """The attempt is committed or aborted; nothing more is wanted."""

    now_us: int


WriterEvent = (
    StreamAccepted | StreamCredited | FragmentSent | SendBlocked | SendMoved | StreamSealed | StreamRefused
    | StreamLost | ManifestReady | SparesGiven | ColumnsReopened | WriterStopped | Ticked
)  # fmt: skip


# --------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Connect to the place and send BeginColumn; `stream` is the request number of
    all its frames.
    """

    column: ColumnNumber
    stream: int
    place: Place


@dataclass(frozen=True, slots=True)
class SealStream:
    """Send SealColumn with the manifest."""

    column: ColumnNumber
    stream: int


@dataclass(frozen=True, slots=True)
class AbandonStream:
    """Send AbandonColumn if the link lives; drop what was not sent."""

    column: ColumnNumber
    stream: int
    place: Place
    reason: AbandonReason


@dataclass(frozen=True, slots=True)
class AskSpares:
    """Ask the coordinator; it is answered by SparesGiven for the same column, once."""

    column: ColumnNumber
    failed: tuple[TargetId, ...]


@dataclass(frozen=True, slots=True)
class CertifyPayload:
    """Enough columns are sealed at this moment. Comes again when the set of proofs changes."""

    proofs: tuple[ColumnProof, ...]


@dataclass(frozen=True, slots=True)
class FailPayload:
    """Fewer places than the floor can ever exist."""

    code: str
    message: str
    hint: str


WriterAction = OpenStream | SealStream | AbandonStream | AskSpares | CertifyPayload | FailPayload
