"""Which checkpoints does a store hold? Committed ones by their markers, and what was left half
written or half deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Generation, RunName, Step
from ckpt.objects import names
from ckpt.objects.documents import Marker, decode
from ckpt.objects.sinks.sink import Sink


def stored_steps(sink: Sink, run: RunName) -> list[tuple[Step, Generation]]:
    """Committed steps of a run, ascending, each with its newest committed generation."""
    found = (
        (step, newest_generation(sink, names.step_prefix(run, step)))
        for step in steps_in(sink, run)
    )
    return [(step, generation) for step, generation in found if generation is not None]


def stored_generations(sink: Sink, run: RunName) -> list[tuple[Step, Generation]]:
    """All committed generations of a run, ascending: a step that was saved again has several, until
    the store's retention deletes what was replaced."""
    return [
        (step, generation)
        for step in steps_in(sink, run)
        for generation in sorted(generations_in(sink, run, step))
        if is_committed(sink, run, step, generation)
    ]


def stored_by(sink: Sink, run: RunName, cluster: str) -> list[tuple[Step, Generation]]:
    """Those of `stored_steps` that this cluster committed, as their markers say."""
    return [
        (step, generation)
        for step, generation in stored_steps(sink, run)
        if cluster_of(sink, run, step, generation) == cluster
    ]


def cluster_of(sink: Sink, run: RunName, step: Step, generation: Generation) -> str:
    """Of the cluster that committed it; empty when the marker is gone by now."""
    prefix = names.generation_prefix(run, step, generation)
    try:
        raw = sink.get(prefix + names.COMMITTED)
    except NotFound:
        return ""
    return decode(Marker, raw, f"{sink.url}/{prefix}{names.COMMITTED}").header.cluster


def remains(sink: Sink, run: RunName) -> list[tuple[Step, Generation]]:
    """Generations with neither a marker nor a plan: a deletion was interrupted. A writer has its
    plan there from before its first byte until after the marker."""
    return _uncommitted(sink, run, steps_in(sink, run), planned=False)


def unfinished(sink: Sink, run: RunName, among: Iterable[Step]) -> list[tuple[Step, Generation]]:
    """Generations of these steps with a plan and no marker: somebody writes them, or did."""
    return _uncommitted(sink, run, among, planned=True)


def _uncommitted(
    sink: Sink, run: RunName, among: Iterable[Step], *, planned: bool
) -> list[tuple[Step, Generation]]:
    return [
        (step, generation)
        for step in among
        for generation in generations_in(sink, run, step)
        if _has(sink, run, step, generation, names.PLAN) is planned
        # The marker is looked for last: after it the plan goes.
        and not is_committed(sink, run, step, generation)
    ]


def is_committed(sink: Sink, run: RunName, step: Step, generation: Generation) -> bool:
    """Whether its marker is there."""
    return _has(sink, run, step, generation, names.COMMITTED)


def _has(sink: Sink, run: RunName, step: Step, generation: Generation, name: str) -> bool:
    return sink.head(names.generation_prefix(run, step, generation) + name) is not None


def steps_in(sink: Sink, run: RunName) -> list[Step]:
    """Steps of which anything is there, ascending: by one listing, however many there are."""
    folder, slash, last = names.run_prefix(run).rpartition("/")
    found = []
    for name in sink.children(folder + slash):
        step = name.removeprefix(last).rstrip("/")
        if name.startswith(last) and name.endswith("/") and step.isascii() and step.isdigit():
            found.append(Step(int(step)))
    return sorted(found)


def newest_generation(sink: Sink, prefix: str) -> Generation | None:
    """The highest generation with a marker."""
    for generation in sorted(_parsed(sink, prefix), reverse=True):
        if sink.head(f"{prefix}{generation}/{names.COMMITTED}") is not None:
            return generation
    return None


def generations_in(sink: Sink, run: RunName, step: Step) -> list[Generation]:
    """Of which anything is there."""
    return list(_parsed(sink, names.step_prefix(run, step)))


def _parsed(sink: Sink, prefix: str) -> Iterator[Generation]:
    for name in sink.children(prefix):
        if name.endswith("/"):
            try:
                yield Generation.parse(name.rstrip("/"))
            except Refused:
                continue  # Something else that lies there.
