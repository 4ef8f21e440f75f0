"""Jobs that took turns, beside the first of them: round by round, so that drift falls out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckptbench.figures import Spread, spread
from ckptbench.report.numbers import msec
from ckptbench.results import CheckpointFigures, JobResult

NAME_WIDTH = 20
STANDS_FOR = {"drain": "save"}
"""What a client without a tier does instead."""


def side_by_side_lines(jobs: Sequence[JobResult]) -> Iterator[str]:
    """A table of each kind of checkpoint; nothing unless several jobs took turns."""
    if len(jobs) < 2 or not all(job.interleaved for job in jobs):
        return
    for kind in dict.fromkeys(one.kind for job in jobs for one in job.checkpoints):
        rounds = {
            job.name: _by_number(job, kind) or _by_number(job, STANDS_FOR.get(kind, ""))
            for job in jobs
        }
        first = next(name for name, found in rounds.items() if found)
        yield ""
        yield f"Side by side, {kind} (msec, medians; of [{first}] in the same round):"
        for name, found in rounds.items():
            if found:
                one = next(iter(found.values()))
                text = f"{one.end_word} {_row(found, rounds[first], lambda one: one.seconds)}"
                if one.direction == "write":
                    text += f"; stall {_row(found, rounds[first], lambda one: one.stall_s)}"
                yield f"  {name:<{NAME_WIDTH}}: {text}"


def side_by_side(found: Sequence[float], first: Sequence[float]) -> Spread:
    """Ratios of measurements of the same rounds."""
    return spread([one / other for one, other in zip(found, first, strict=True)])


def _by_number(job: JobResult, kind: str) -> dict[int, CheckpointFigures]:
    """Those that count, by round."""
    return {
        one.number: one
        for one in job.checkpoints
        if one.kind == kind and one.counts and not one.error
    }


def _row(
    found: dict[int, CheckpointFigures],
    first: dict[int, CheckpointFigures],
    of: Callable[[CheckpointFigures], float],
) -> str:
    both = sorted(found.keys() & first.keys())
    middle = msec(spread([of(one) for one in found.values()]).median)
    if not both:
        return f"{middle} (no round in common)"
    ratio = side_by_side([of(found[one]) for one in both], [of(first[one]) for one in both])
    return f"{middle} = {ratio.median:.2f} x [{ratio.low:.2f} - {ratio.high:.2f}, {ratio.count}]"
