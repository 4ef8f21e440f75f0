"""Runs of bytes as messages name them, and as machines work with them.

Whoever sends them may be hostile: nothing is unfolded before it is known how much that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.base.limits import READ_RANGES_MAX, READ_RUNS_MAX
from ckpt.format.combs import Comb, Run
from ckpt.format.messages.reading import ByteRuns
from ckpt.protocol.runs.run_sets import RunSet


def to_wire(runs: Iterable[Run]) -> tuple[ByteRuns, ...]:
    """The runs for a message."""
    return tuple([
        ByteRuns(run[0], run[1])
        if len(run) == 2
        else ByteRuns(run.start, run.start + run.length, run.teeth, run.step)
        for run in runs
    ])  # fmt: skip


def from_wire(wire: Sequence[ByteRuns]) -> RunSet | None:
    """The runs of a message; None when they are no set."""
    runs: list[Run] = []
    reach = 0
    for each in wire:
        start, end = each.start, each.end
        if not reach <= start < end:
            return None
        if each.count == 1:
            runs.append((start, end))
            reach = end
        elif each.count > 1 and each.step > end - start:
            reach = end + (each.count - 1) * each.step
            runs.append(Comb(start, reach, each.step, end - start))
        else:
            return None
    return tuple(runs)


def runs_of(wire: Sequence[ByteRuns], size: int) -> tuple[Run, ...] | None:
    """The runs of a question about so many bytes, ascending; None when some are none, reach
    outside, or are too many, or when all together have more bytes than there are.

    Spans may overlap, but nothing may lie in a comb's reach: it would have to be taken apart.
    """
    if len(wire) > READ_RANGES_MAX or not all(map(_is_good, wire)):
        return None
    if sum([each.count for each in wire]) > READ_RUNS_MAX or max(map(_end, wire), default=0) > size:
        return None
    if sum([each.count * (each.end - each.start) for each in wire]) > size:
        return None
    runs = sorted(map(_run, wire))
    reach = comb_reach = 0
    for run in runs:
        is_comb = isinstance(run, Comb)
        if run[0] < (reach if is_comb else comb_reach):
            return None
        reach = max(reach, run[1])
        comb_reach = run[1] if is_comb else comb_reach
    return tuple(runs)


def _is_good(each: ByteRuns) -> bool:
    if not 0 <= each.start < each.end or each.count < 1:
        return False
    return each.count == 1 or each.step > each.end - each.start


def _end(each: ByteRuns) -> int:
    return each.end + (each.count - 1) * each.step


def _run(each: ByteRuns) -> Run:
    if each.count == 1:
        return each.start, each.end
    return Comb(each.start, _end(each), each.step, each.end - each.start)
