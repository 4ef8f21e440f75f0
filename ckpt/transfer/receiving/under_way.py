"""What a PayloadReceiver has under way, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.base.limits import MANIFEST_BYTES_MAX
from ckpt.format.combs import ranges_of
from ckpt.format.frame import FrameHead
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.reading import RangeData
from ckpt.protocol.reader.events import ReadStatistics
from ckpt.protocol.reader.payload_reader import PayloadReader
from ckpt.protocol.runs.run_sets import Owed, RunSet, is_plain, total
from ckpt.protocol.runs.wire_runs import from_wire
from ckpt.transfer.assembly import Assembly
from ckpt.transfer.read_job import ReadJob, ReceiverStatistics
from ckpt.transfer.receiving.lent_columns import LentRead


@dataclass(slots=True, eq=False)
class Read:
    """One payload under way."""

    job: ReadJob
    machine: PayloadReader
    assembly: Assembly

    def note_turn(self, target: TargetId, size: int, now_us: int) -> None:
        """The target brought bytes of another payload: it serves one after the other."""
        for number, holder in enumerate(self.job.columns):
            if holder == target:
                self.machine.note_turn(ColumnNumber(number), size, now_us)


@dataclass(slots=True, eq=False)
class Asked:
    """One request on the wire."""

    read: Read
    column: ColumnNumber
    target: TargetId
    owed: Owed | None
    """What may still land; None: the manifest, which is collected in `document`."""
    lent: LentRead | None = None
    """Who reads them from their file; None: the target is asked."""
    document: bytearray = field(default_factory=bytearray)
    places: list[tuple[RunSet, memoryview]] = field(default_factory=list)
    """Runs of frames that were given this place and are not heard of yet, in their order."""

    def owed_of(self, target: TargetId, head: FrameHead, message: Message) -> RunSet:
        """What of it this frame of a target brings; none: what no target owes lands nowhere."""
        if self.owed is None or self.lent is not None or target != self.target:
            return ()
        runs = from_wire(message.ranges) if isinstance(message, RangeData) else None
        # No more of them are looked at than bytes come.
        if not runs or total(runs) != head.bulk_bytes:
            return ()
        is_owed = is_within_cells(self.read.job.layout, runs) and self.owed.take(runs)
        return runs if is_owed else ()

    def landed(self, bulk: memoryview) -> RunSet:
        """The runs whose place this is, once; none: it lies elsewhere, and nobody vouches for
        what their place holds.
        """
        if not self.places or self.places[0][1] is not bulk:
            return ()
        return self.places.pop(0)[0]

    def give_up(self) -> bool:
        """Nothing that is read from a file lands any more; whether something was."""
        if self.lent is not None:
            self.lent.cancel()
        return self.lent is not None

    def collect(self, total: int, offset: int, part: memoryview | None) -> bool:
        """One part of a manifest, in ascending order: whether it is whole. Raises Corrupt."""
        if offset != len(self.document) or total > MANIFEST_BYTES_MAX:
            raise Corrupt("its parts do not fit")
        if part is not None:
            self.document += part
        return len(self.document) >= total


def is_apart(runs: RunSet) -> bool:
    """Their bytes do not lie together where they belong."""
    return len(runs) > 1 or not is_plain(runs)


def is_within_cells(layout: Layout, runs: RunSet) -> bool:
    """Whether all lie in a column, and none of their spans and teeth goes over a border of cells:
    such a one has no place.
    """
    cell_bytes = layout.cell_bytes
    if runs[-1][1] > layout.column_bytes:
        return False
    for run in runs:
        if run[0] // cell_bytes != (run[1] - 1) // cell_bytes:
            starts, ends = ranges_of((run,)).T
            if (starts // cell_bytes != (ends - 1) // cell_bytes).any():
                return False
    return True


def statistics_of(
    ended: Sequence[tuple[ReadJob, ReadStatistics]],
    wanted_bytes: int,
    seconds: float,
    cpu_s: dict[str, float],
) -> ReceiverStatistics:
    """All payloads of a read together."""
    by_target: dict[TargetId, int] = {}
    for job, found in ended:
        for target, count in zip(job.columns, found.received_bytes, strict=True):
            if target is not None and count:
                by_target[target] = by_target.get(target, 0) + count
    all_found = [found for _, found in ended]
    return ReceiverStatistics(
        wanted_bytes=wanted_bytes,
        bytes_by_target=by_target,
        rebuilt_bytes=sum(found.rebuilt_bytes for found in all_found),
        damaged_bytes=sum(found.damaged_bytes for found in all_found),
        extra_bytes=sum(found.extra_bytes for found in all_found),
        targets_out=frozenset(
            target
            for job, found in ended
            for column in found.columns_out
            if (target := job.columns[column]) is not None
        ),
        seconds=seconds,
        cpu_s=cpu_s,
    )
