"""How ranges that were read become frames: a long one alone and as it lies, so that it is received
where it belongs; short ones together, copied one after the other.

A frame costs as much as copying a megabyte, and a tensor that is cut along its last axis is wanted
in runs of a few KiB. These are thousands, named and copied as combs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ckpt.base.limits import BLOCK_BYTES, FRAME_BULK_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.format.combs import Comb, Run, size_of
from ckpt.format.messages.reading import ByteRuns, RangeData
from ckpt.protocol.runs.run_sets import spans_of
from ckpt.protocol.runs.wire_runs import to_wire

LONG_BYTES: Final = BLOCK_BYTES
"""A range of at least this length comes alone."""
TOGETHER_MAX: Final = 1024
"""Names of ranges in one frame: they must fit its meta. A comb has one."""
TOGETHER_BYTES_MAX: Final = 4 * MiB
"""Most bytes that are copied into one frame."""

assert TOGETHER_BYTES_MAX <= FRAME_BULK_BYTES_MAX


class Content(Protocol):
    """Where ranges of a column's fragment bytes are found."""

    def one(self, start: int, end: int) -> memoryview:
        """A range as it lies."""
        ...

    def checksum(self, start: int, end: int) -> int:
        """CRC-32 of it."""
        ...

    def copied(self, runs: Sequence[Run]) -> memoryview:
        """Runs one after the other."""
        ...


class RangeFrame(NamedTuple):
    """One answer."""

    message: RangeData
    bulk: memoryview
    is_copy: bool


def range_frames(runs: Sequence[Run], content: Content) -> Iterator[RangeFrame]:
    """The answers that bring the runs: the long ones first."""
    if len(runs) == 1 and not isinstance(runs[0], Comb):  # As nearly all that is loaded comes.
        yield _alone(*runs[0], content)
        return
    short: list[Run] = []
    for run in runs:
        if _tooth(run) < LONG_BYTES:
            short.append(run)
            continue
        for start, end in spans_of((run,)):
            yield _alone(start, end, content)
    for some in _bundles(short):
        yield _together(some, content)


def _alone(start: int, end: int, content: Content) -> RangeFrame:
    message = RangeData((ByteRuns(start, end),), content.checksum(start, end))
    return RangeFrame(message, content.one(start, end), is_copy=False)


def _tooth(run: Run) -> int:
    """Bytes that lie together."""
    return run.length if isinstance(run, Comb) else run[1] - run[0]


def _bundles(short: list[Run]) -> Iterator[list[Run]]:
    """Which short runs make a frame: as many as its bulk holds and its meta names."""
    if short and len(short) <= TOGETHER_MAX and sum(map(size_of, short)) <= TOGETHER_BYTES_MAX:
        yield short
        return
    some: list[Run] = []
    room = TOGETHER_BYTES_MAX
    for run in short:
        rest: tuple[Run, ...] = (run,)
        while rest:
            fit = room // _tooth(run) if len(some) < TOGETHER_MAX else 0
            now, rest = _parted(rest[0], fit)
            some += now
            room -= sum(map(size_of, now))
            if rest:
                yield some
                some, room = [], TOGETHER_BYTES_MAX
    if some:
        yield some


def _parted(run: Run, teeth: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """So many teeth of it, and the rest. A span has one."""
    if isinstance(run, Comb):
        fit = min(teeth, run.teeth)
        return run.part(0, fit), run.part(fit, run.teeth)
    return ((run,), ()) if teeth else ((), (run,))


def _together(runs: Sequence[Run], content: Content) -> RangeFrame:
    if len(runs) == 1 and not isinstance(runs[0], Comb):
        return _alone(*runs[0], content)
    bulk = content.copied(runs)
    return RangeFrame(RangeData(to_wire(runs), crc32(bulk)), bulk, is_copy=True)
