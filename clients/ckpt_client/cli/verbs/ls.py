"""Checkpoints, the newest of each run marked with `*`: what can be resumed from.

Steps that `ckpt rollback` has set aside have the name aside-STEP, and are never the newest.

Redundancy is shown as it is now, not as it was at the write: how many more targets and failure
domains, any of them, may be lost, and how many columns and documents (copies of the index and the
commit record) are missing. Saves under way are listed with their state. Exit code 3: a step cannot
be read from the targets that are up; 4: one is lost.
"""

from __future__ import annotations

import argparse
from itertools import zip_longest

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Generation, RunName, Step, check_run_name
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.protocol.coordinator.reading.answers import AttemptView, StepView
from ckpt.protocol.losses import loss_reason
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.meant import no_run
from ckpt_client.cli.output import Output, age_text
from ckpt_client.cli.tables import Tone

EXAMPLE = "ckpt ls\nckpt ls llama/7b --json | jq '.steps[-1].step'"

HEAD = (
    "run", ">step", "", "state", ">size", "survives now", ">missing", ">commit", ">stall",
    "committed",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_name", nargs="?", metavar="RUN", help="only this one")


def run(arguments: argparse.Namespace, output: Output) -> int:
    wanted = None if arguments.run_name is None else check_run_name(arguments.run_name)
    with conversation(arguments, output) as talk:
        # Asked first: it waits until the targets vouch for the catalog, or says why they do not.
        known_runs = talk.runs()
        status = talk.status()
        names = [view.run for view in known_runs] if wanted is None else [wanted]
        steps = [as_shown(view) for name in names for view in talk.steps(check_run_name(name))]
    attempts = [view for view in status.attempts if wanted in (None, view.run)]
    if wanted is not None and not steps and not attempts:
        raise no_run(wanted, known_runs)
    runs = [view for view in known_runs if wanted in (None, view.run)]
    output.document({"runs": runs, "steps": steps, "attempts": attempts})
    if not (steps or attempts):
        output.line("no checkpoints yet")
        return ExitCode.OK
    head: tuple[str, ...] = HEAD
    rows = [*map(_step_row, steps), *map(_attempt_row, attempts)]
    labels = [_labels_text(view) for view in steps]
    if any(labels):
        head = (*head, "names")
        rows = [(*row, text) for row, text in zip_longest(rows, labels, fillvalue="")]
    output.table(head, rows, spare=("stall", "commit"), grouped=True)
    for view in steps:
        if view.reason:
            output.line(output.tone(f"{view.run}@{view.step}: {reason_text(view)}", Tone.WARN))
    return _exit_code(steps)


def _exit_code(steps: list[StepView]) -> ExitCode:
    """Of what is listed: a step that cannot be read is no success."""
    states = {view.state for view in steps}
    if "lost" in states:
        return ExitCode.LOST
    return ExitCode.DEGRADED if "unreachable" in states else ExitCode.OK


def as_shown(view: StepView) -> StepView:
    """The view with the state that the table and `--json` show; the coordinator's is its
    catalog's.
    """
    return replace(view, state=_state_word(view))


def _state_word(view: StepView) -> str:
    """In one word: what can be done with it now."""
    if view.state != "committed":
        return "lost" if view.state == "damaged" else view.state
    if not view.readable:
        return "unreachable"
    return "degraded" if view.columns_missing or view.documents_missing else "committed"


def reason_text(view: StepView) -> str:
    """The reason without the name, which stands beside it."""
    generation = Generation.parse(view.generation)
    return loss_reason(CheckpointId(RunName(view.run), Step(view.step), generation), view.reason)


def _missing_text(view: StepView) -> str:
    """Columns; and copies of its index, record and labels, which rarely go alone."""
    if not view.documents_missing:
        return str(view.columns_missing)
    return f"{view.columns_missing} + {counted(view.documents_missing, 'document')}"


def survives_text(view: StepView) -> str:
    """`2 targets, 1 host`: so many of them, any, may still be lost."""
    if view.targets_survivable < 0:
        return "-"
    targets = counted(view.targets_survivable, "target")
    # Where no wider domains are known, a target is its own domain.
    if view.domain_level == "target":
        return targets
    return f"{targets}, {counted(view.domains_survivable, view.domain_level)}"


def _step_row(view: StepView) -> tuple[str, ...]:
    return (
        view.run,
        str(view.step),
        "*" if view.newest else "",
        view.state,
        format_bytes(view.bytes),
        survives_text(view),
        _missing_text(view),
        format_seconds(view.commit_s),
        format_seconds(view.stall_s),
        age_text(view.committed_at_s),
    )


def _labels_text(view: StepView) -> str:
    """What it is called, and whether it is pinned."""
    return ", ".join([*view.names, *(["(pinned)"] if view.pinned else [])])


def awaited_text(view: AttemptView) -> str:
    """`, waits for ranks 3, 7`: ranks whose bytes are not on their targets yet; empty for files."""
    if not view.ranks_awaited:
        return ""
    more = view.world_size - view.ranks_certified - len(view.ranks_awaited)
    named = ", ".join(map(str, view.ranks_awaited)) + (f" and {more} more" if more > 0 else "")
    return f", waits for {'ranks' if len(view.ranks_awaited) > 1 else 'rank'} {named}"


def _attempt_row(view: AttemptView) -> tuple[str, ...]:
    state = f"saving, {view.ranks_certified}/{view.world_size} ranks"
    return (
        view.run, str(view.step), "", state, format_bytes(view.bytes), "-", "-", "-", "-",
        f"{view.state}{awaited_text(view)}",
    )  # fmt: skip
