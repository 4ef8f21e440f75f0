"""What happens to the streams of one payload, and what is to be done: PayloadWriter's vocabulary.

`stream` is the request number of all frames of one attempt to write one column to one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from ckpt.base.ids import ColumnNumber, PayloadId, TargetId
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import ColumnProof, TargetPace
from ckpt.protocol.events import Ticked


class AbandonReason(Enum):
    """Why a stream is given up. After STALLED the link itself is not trusted any more."""

    STALLED = "stalled"
    SLOW = "slow"
    BROKEN = "broken"
    REOPENED = "reopened"
    STOPPED = "stopped"


# --------------------------------------------------------------------------- events


class StreamAccepted(Struct, frozen=True, gc=False):
    """The target answered ColumnAccepted."""

    now_us: int
    stream: int
    credit_bytes: int
    pace: TargetPace | None = None
    answers: bool = False
    """It may be asked how it is."""


class StreamCredited(Struct, frozen=True, gc=False):
    """The target granted more, or, with 0, said that it lives. Also on a sealed column's stream."""

    now_us: int
    stream: int
    credit_bytes: int
    pace: TargetPace | None = None


class FragmentSent(Struct, frozen=True, gc=False):
    """The stripe that `next_stripe` named has been handed to the link, after all earlier ones."""

    now_us: int
    stream: int
    stripe: int


class SendBlocked(Struct, frozen=True, gc=False):
    """The socket takes no more: the column waits for its target."""

    now_us: int
    stream: int


class SendMoved(Struct, frozen=True, gc=False):
    """A blocked socket took bytes again."""

    now_us: int
    stream: int


class StreamSealed(Struct, frozen=True, gc=False):
    """The target gave its proof."""

    now_us: int
    stream: int
    proof: ColumnProof


class StreamRefused(Struct, frozen=True, gc=False):
    """The target answered Failed; the connection stands."""

    now_us: int
    stream: int
    code: str
    message: str


class StreamLost(Struct, frozen=True, gc=False):
    """The link is gone, or could not be made."""

    now_us: int
    stream: int
    reason: str


class ManifestReady(Struct, frozen=True, gc=False):
    """Every cell is encoded and its checksum known: columns may be sealed."""

    now_us: int
    digest: bytes
    column_crcs: tuple[int, ...]


class SparesGiven(Struct, frozen=True, gc=False):
    """The coordinator's answer to AskSpares of this column;
    `column` None for spares nobody asked for.
    """

    now_us: int
    column: ColumnNumber | None
    spares: tuple[Place, ...]


class ColumnsReopened(Struct, frozen=True, gc=False):
    """The second count lost these columns: stream them again, onto `places` in the same order."""

    now_us: int
    columns: tuple[ColumnNumber, ...]
    places: tuple[Place, ...]


class WriterStopped(Struct, frozen=True, gc=False):
    """The attempt is committed or aborted; nothing more is wanted."""

    now_us: int


WriterEvent = (
    StreamAccepted | StreamCredited | FragmentSent | SendBlocked | SendMoved | StreamSealed | StreamRefused
    | StreamLost | ManifestReady | SparesGiven | ColumnsReopened | WriterStopped | Ticked
)  # fmt: skip


# --------------------------------------------------------------------------- actions


class OpenStream(Struct, frozen=True, gc=False):
    """Connect to the place and send BeginColumn; `stream` is the request number of
    all its frames.
    """

    column: ColumnNumber
    stream: int
    place: Place


class SealStream(Struct, frozen=True, gc=False):
    """Send SealColumn with the manifest."""

    column: ColumnNumber
    stream: int


class AskTarget(Struct, frozen=True, gc=False):
    """Send AskPace on the link of the stream, which may be that of a sealed column."""

    column: ColumnNumber
    stream: int


class AbandonStream(Struct, frozen=True, gc=False):
    """Send AbandonColumn if the link lives; drop what was not sent."""

    column: ColumnNumber
    stream: int
    place: Place
    reason: AbandonReason


class AskSpares(Struct, frozen=True, gc=False):
    """Ask the coordinator; it is answered by SparesGiven for the same column, once."""

    column: ColumnNumber
    failed: tuple[TargetId, ...]
    held: tuple[tuple[ColumnNumber, TargetId], ...] = ()
    """Where the other columns are."""
    stays: bool = True
    """It has a place still, and looks for a better one."""


class CertifyPayload(Struct, frozen=True, gc=False):
    """Enough columns are sealed at this moment. Comes again when the set of proofs changes."""

    proofs: tuple[ColumnProof, ...]
    slow: tuple[TargetId, ...] = ()
    """Targets that were silent or slow beside their peers."""


class FailPayload(Struct, frozen=True, gc=False):
    """Fewer places than the floor can ever exist."""

    code: str
    message: str
    hint: str


def too_few(
    payload: PayloadId, live: int, needed: int, failed: Iterable[TargetId] = ()
) -> FailPayload:
    """The payload cannot reach its floor; `failed`: where it was tried in vain."""
    text = f"{payload}: {live} live targets can take its columns, {needed} are needed"
    names = ", ".join(sorted(failed))
    if names:
        text = f"{text}; tried in vain: {names}"
    hint = "start more targets (`ckpt status` lists them) and save again"
    return FailPayload("unavailable", text, hint)


WriterAction = (
    OpenStream | SealStream | AskTarget | AbandonStream | AskSpares | CertifyPayload | FailPayload
)
