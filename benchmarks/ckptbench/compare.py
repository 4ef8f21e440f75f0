"""How do two reports differ, and is it more than their spread? Pure, from two JSON documents.

Jobs are matched by name. Every measure is taken once for each checkpoint of both, and the change of
the mean is given with Welch's 95% interval: what lies on both sides of 0 is not shown to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.errors import Refused
from ckptbench.stats import Interval, relative_change

MORE_IS_BETTER: Final = {"GB/s": True, "seconds": False}


class _Phase(msgspec.Struct):
    kind: str
    seconds: list[float]
    gb_per_s: list[float]


class _Ours(msgspec.Struct):
    phases: list[_Phase]
    durability: str = ""
    engine: str = ""
    world_size: int = 0
    bytes: int = 0


class _Job(msgspec.Struct):
    jobname: str
    checkpoint: _Ours


class ComparedReport(msgspec.Struct):
    """What is read of a report; everything else in it is left alone."""

    jobs: list[_Job] = []
    client_stats: list[_Job] = []


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of one kind of checkpoint of one job, in both reports."""

    name: str
    unit: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    change: Interval
    """As a part of the first mean."""
    unlike: tuple[str, ...] = ()
    """In what the job is not the same work in both: then the change says nothing."""

    @property
    def verdict(self) -> str:
        """better, worse, or not shown."""
        if self.change.low <= 0 <= self.change.high:
            return "no difference shown"
        return "better" if (self.change.mean > 0) == MORE_IS_BETTER[self.unit] else "worse"


def read_report(document: bytes, name: str) -> ComparedReport:
    """Raises Refused for what is no JSON report of ours."""
    # Status lines may stand before the report.
    start = document.find(b"{\n")
    try:
        return msgspec.json.decode(document[max(0, start) :], type=ComparedReport)
    except msgspec.DecodeError as error:
        raise Refused(
            f"{name} is no JSON report of ckptbench: {error}", hint="--output-format=json --output"
        ) from None


def compare(before: ComparedReport, after: ComparedReport) -> list[Change]:
    """Of every phase that both have. Raises Refused when there is none."""
    first, second = _phases(before), _phases(after)
    differ = unlike(before, after)
    found = [
        change
        for key in first
        if key in second
        for change in _changes(key, first[key], second[key], differ.get(key[0], ()))
    ]
    if not found:
        raise Refused(
            "the reports have no job and kind of checkpoint in common",
            hint=f"A has {_names(first)}; B has {_names(second)}",
        )
    return found


def unlike(before: ComparedReport, after: ComparedReport) -> dict[str, tuple[str, ...]]:
    """The jobs of both that are not the same work in both, and in what they differ."""
    old = {job.jobname: job.checkpoint for job in (*before.jobs, *before.client_stats)}
    new = {job.jobname: job.checkpoint for job in (*after.jobs, *after.client_stats)}
    found = {}
    for name in [name for name in old if name in new]:
        pairs = [
            (word, getattr(old[name], word), getattr(new[name], word))
            for word in ("engine", "world_size", "bytes", "durability")
        ]
        changed = [f"{word} {a or '-'} -> {b or '-'}" for word, a, b in pairs if a != b]
        if changed:
            found[name] = tuple(changed)
    return found


def compare_text(changes: Sequence[Change]) -> str:
    """A line for each measure."""
    lines = []
    for one in changes:
        mean = one.change
        interval = (
            f"[{100 * mean.low:+.1f}% .. {100 * mean.high:+.1f}%]"
            if mean.count > 1
            else "[one run]"
        )
        lines.append(
            f"{one.name:<24} {_mean(one.before):10.4g} -> {_mean(one.after):10.4g} {one.unit:<8}"
            f"{100 * mean.mean:+7.1f}% {interval:<22} {one.verdict} "
            f"({len(one.before)} and {len(one.after)} checkpoints)"
        )
    return "\n".join(lines)


def _phases(report: ComparedReport) -> Mapping[tuple[str, str], _Phase]:
    return {
        (job.jobname, phase.kind): phase
        for job in (*report.jobs, *report.client_stats)
        for phase in job.checkpoint.phases
    }


def _changes(
    key: tuple[str, str], before: _Phase, after: _Phase, differ: tuple[str, ...]
) -> Iterator[Change]:
    pairs = (("GB/s", before.gb_per_s, after.gb_per_s), ("seconds", before.seconds, after.seconds))
    for unit, first, second in pairs:
        if first and second:
            yield Change(
                f"{key[0]} {key[1]}",
                unit,
                tuple(first),
                tuple(second),
                relative_change(first, second),
                differ,
            )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _names(phases: Mapping[tuple[str, str], _Phase]) -> str:
    return ", ".join(" ".join(key) for key in phases) or "none"
