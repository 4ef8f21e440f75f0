"""Everything about one checkpoint: generations, cost, and where each column is now, and each copy
of its index, commit record and labels.

RUN alone is its newest step. --tensors shows what is in it instead: names, dtypes, shapes and sizes
as a tree, and which ranks saved them; with a pattern ('model/*.weight') only what fits. A URL
(s3://bucket/run@500) can be looked into like that without any cluster.
"""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ckpt.base.ids import Generation
from ckpt.base.units import counted, format_bytes, format_number, format_seconds
from ckpt.protocol.coordinator.reading.answers import (
    ColumnsView,
    DocumentView,
    ReadingView,
    StepView,
)
from ckpt_client.cli.cluster import conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, age_text
from ckpt_client.cli.verbs.ls import as_shown, reason_text, survives_text

EXAMPLE = "ckpt show llama/7b@12500"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN[@STEP]", help="which one, also RUN@NAME")
    parser.add_argument(
        "--tensors", metavar="PATTERN", nargs="?", const="*", help="list the tensors in it [all]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.tensors is not None:
        from ckpt_client.cli import tensors_tree

        return tensors_tree.run(arguments, output)
    wanted = parse_which(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        view = talk.show(*talk.which(*wanted))
    view = replace(view, generations=tuple(map(as_shown, view.generations)))
    output.document(view)
    shown = view.generations[-1]
    _print_generation(shown, output)
    for document in view.documents:
        output.prose(f"{document.kind:<14}", _document_text(document))
    if view.reading is not None:
        output.prose(f"{'read at rest':<14}", _reading_text(view.reading))
    for other in view.generations[:-1]:
        is_older = Generation.parse(other.generation) < Generation.parse(shown.generation)
        output.line(
            f"{'older' if is_older else 'later'} generation {other.generation}: {other.state}, "
            f"{format_bytes(other.bytes)}"
        )
    output.line()
    _print_columns(view.columns, output)
    parts = [each.live for each in view.columns] + [each.live for each in view.documents]
    if not all(map(all, parts)):
        output.line("(in parentheses: out of reach now)")
    return ExitCode.OK


def _print_generation(view: StepView, output: Output) -> None:
    at_commit = (
        f"{counted(view.targets_survivable_at_commit, 'target')}, "
        f"{counted(view.domains_survivable_at_commit, view.domain_level)}"
    )
    ranks = counted(view.world_size, "rank")
    marks = [mark for mark, is_set in (("newest", view.newest), ("pinned", view.pinned)) if is_set]
    rows = [
        ("checkpoint", f"{view.run}@{view.step}" + (f" ({', '.join(marks)})" if marks else "")),
        *([("names", ", ".join(view.names))] if view.names else []),
        *([("metrics", _metrics_text(view))] if view.metrics else []),
        ("generation", view.generation),
        ("state", view.state + (f": {reason_text(view)}" if view.reason else "")),
        ("size", f"{format_bytes(view.bytes)} from {ranks}"),
        *_references(view),
        ("code", view.code),
        (
            "survives now",
            f"{survives_text(view)}; {counted(view.columns_missing, 'column')} and "
            f"{counted(view.documents_missing, 'document')} missing",
        ),
        ("at the commit", at_commit),
        ("committed", f"{age_text(view.committed_at_s)}, in {format_seconds(view.commit_s)}"),
        ("stall", f"{format_seconds(view.stall_s)}, first touch {format_seconds(view.fault_in_s)}"),
        ("cost", f"{format_number(view.gpu_s)} GPU-seconds: the stall of {ranks}"),
        ("slowest", f"rank {view.slowest_rank}, target {view.slowest_target or '-'}"),
        *(("warning", text) for text in view.warnings),
    ]
    for name, text in rows:
        output.prose(f"{name:<14}", text)


def _metrics_text(view: StepView) -> str:
    """What its save was given: `accuracy 0.9, loss 0.31`."""
    return ", ".join(f"{name} {value:g}" for name, value in view.metrics.items())


def _references(view: StepView) -> list[tuple[str, str]]:
    """Empty for a checkpoint that holds all its bytes itself."""
    if not view.homes:
        return []
    steps = ", ".join(map(str, view.homes))
    kind = "step" if len(view.homes) == 1 else "steps"
    return [("unchanged", f"{format_bytes(view.referenced_bytes)} of it lie in {kind} {steps}")]


def _document_text(view: DocumentView) -> str:
    """`t0, (t1); 1 of 2 copies`, the parentheses as for columns."""
    copies = f"{sum(view.live)} of {view.copies} copies"
    held = zip(view.targets, view.live, strict=True)
    places = ", ".join(target if live else f"({target})" for target, live in held)
    return f"{places}; {copies}" if places else copies


def _reading_text(view: ReadingView) -> str:
    """`all since 2 h ago (t3 is the oldest)`, else on how many of its targets, and which are left
    out. What was written since then was not read."""
    missing = (("not since the commit", view.unread), ("out of reach", view.away))
    parts = [f"{why}: {', '.join(targets)}" for why, targets in missing if targets]
    if view.target:
        count = len({*view.read, *view.unread, *view.away})
        read = f"on {len(view.read)} of {counted(count, 'target')}" if parts else "all"
        parts = [f"{read} since {age_text(view.since_s)} ({view.target} is the oldest)", *parts]
    return "; ".join(parts) or "-"


def _print_columns(columns: tuple[ColumnsView, ...], output: Output) -> None:
    """A target in parentheses cannot be read now; a dash: this column was never placed."""
    count = max((len(view.targets) for view in columns), default=0)
    rows = []
    for view in columns:
        cells = [
            "-" if target is None else target if live else f"({target})"
            for target, live in zip(view.targets, view.live, strict=True)
        ]
        rows.append((str(view.rank), *cells, *[""] * (count - len(cells))))
    output.parts((">rank", *(f"column {number}" for number in range(count))), rows)
