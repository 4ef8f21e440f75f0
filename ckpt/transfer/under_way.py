"""What a PayloadReceiver has under way, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt.aio.net.link import Link
from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.combs import ranges_of
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.protocol.reader.events import ReadStatistics
from ckpt.protocol.reader.payload_reader import PayloadReader
from ckpt.protocol.runs.run_sets import Owed, RunSet, is_plain
from ckpt.transfer.assembly import Assembly
from ckpt.transfer.read_job import ReadJob, ReceiverStatistics


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
    document: bytearray = field(default_factory=bytearray)
    places: list[tuple[RunSet, memoryview]] = field(default_factory=list)
    """Runs of frames that were given this place and are not heard of yet, in their order."""

    def landed(self, bulk: memoryview) -> RunSet:
        """The runs whose place this is, once; none: it lies elsewhere, and nobody vouches for
        what their place holds.
        """
        if not self.places or self.places[0][1] is not bulk:
            return ()
        return self.places.pop(0)[0]


@dataclass(slots=True, eq=False)
class PeerLink:
    """The connection to one target."""

    link: Link
    waiting: list[tuple[int, Message]] = field(default_factory=list)
    """Requests for when it stands."""


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
