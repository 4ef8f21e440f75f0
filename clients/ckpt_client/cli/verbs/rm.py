"""Delete a checkpoint: every generation of one step of a run.

Readers that have it open keep it until they close it. Bytes that later steps refer to, because they
did not change, stay on the targets as long as those steps do. On a terminal the command asks first.
The only committed step of a run (not counting those that `ckpt rollback` has set aside) is deleted
only with --force: without it there is nothing to resume from.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.units import format_bytes
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.cli.cluster import conversation, parse_checkpoint
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, counted

EXAMPLE = "ckpt rm llama/7b@12500 --yes"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="which one")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also the only one of its run")


def run(arguments: argparse.Namespace, output: Output) -> int:
    run_name, step = parse_checkpoint(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        held = talk.steps(run_name)
        doomed = [view for view in held if view.step == step]
        if not doomed:
            talk.show(run_name, step)  # Raises NotFound, which names what there is instead.
        _check(run_name, step, held, doomed, is_forced=arguments.force)
        if not arguments.yes and output.is_interactive():
            size = format_bytes(sum(view.bytes for view in doomed))
            what = f"delete {run_name}@{step} ({size}, {counted(len(doomed), 'generation')})?"
            if not output.ask(what):
                output.note("nothing was deleted")
                return ExitCode.FAILED
        with output.waiting(f"deleting {run_name}@{step}"):
            done = talk.delete(run_name, step)
        left = [view for view in held if view.step != step and _is_in_line(view)]
    latest = max((view.step for view in left), default=None)
    output.document(
        {
            "run": run_name, "step": step, "bytes_freed": done.bytes_freed,
            "bytes_held": done.bytes_held, "latest": latest,
        }
    )  # fmt: skip
    newest = "no checkpoint is left" if latest is None else f"the newest is now step {latest}"
    output.line(f"deleted {run_name}@{step}, {format_bytes(done.bytes_freed)}; {newest}")
    if done.bytes_held:
        users = sorted({view.step for view in held if step in view.homes} - {step})
        output.line(f"{format_bytes(done.bytes_held)} stay until {_users_text(users)}")
    return ExitCode.OK


def _is_in_line(view: StepView) -> bool:
    """A load without a step may get it."""
    return view.state == "committed" and not view.aside


def _users_text(steps: list[int]) -> str:
    """Who refers to what stays, and has to go first."""
    if not steps:
        return "the save that refers to them has ended"
    if len(steps) == 1:
        return f"step {steps[0]}, which refers to them, goes"
    return f"steps {', '.join(map(str, steps))}, which refer to them, go"


def _check(
    run_name: RunName, step: Step, held: list[StepView], doomed: list[StepView], *, is_forced: bool
) -> None:
    if not doomed:
        raise NotFound(f"{run_name}@{step} has no committed checkpoint", hint="see ckpt ls")
    committed = {view.step for view in held if _is_in_line(view)}
    if committed == {step} and not is_forced:
        raise Refused(
            f"{run_name}@{step} is the only committed checkpoint of its run",
            hint="add --force if nothing will resume from it",
        )
