"""Make a step the newest of its run again: before a loss spike, a bad batch, a wrong setting.

Nothing is deleted: all later steps are set aside under a name, aside-STEP. From then on loads
without a step, the `*` of `ckpt ls`, the rules of `ckpt keep` and frameworks' "last" pass over
them. They stay, and load by their names; `ckpt tag RUN aside-STEP --remove` brings one back, `ckpt
rm` deletes it. A job that still runs goes on saving newer steps: end it first, and start it again
afterwards. If the command is interrupted, run it again: it finishes what is left and answers the
same. It refuses a step that is itself set aside or cannot be read. Object stores know no names: a
load by a store's URL alone gets the newest step that was drained.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.units import counted
from ckpt_client import labels
from ckpt_client.cli.cluster import Conversation, conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt rollback llama/7b@12500 --dry-run\nckpt rollback llama/7b@12500"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="which one, or RUN@NAME")
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, show what would be set aside"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    dry_run: bool = arguments.dry_run
    run_name, which = parse_which(arguments.checkpoint)
    if which is None:
        hint = f"ckpt rollback {run_name}@STEP; its steps: ckpt ls {run_name}"
        raise Refused(f"{arguments.checkpoint!r} names no step", hint=hint)
    with conversation(arguments, output) as talk:
        step = _in_line(talk, run_name, which)
        saving = [view.step for view in talk.status().attempts if view.run == run_name]
        with output.waiting(f"setting aside what came after {run_name}@{step}"):
            aside = labels.roll_back(talk.control, run_name, step, dry_run=dry_run)
    output.document(
        {"run": run_name, "step": step, "aside": aside, "saving": saving, "dry_run": dry_run}
    )
    if saving:
        output.note(_warning(run_name, step, saving))
    verb = "would be" if dry_run else "is"
    output.line(f"{run_name}@{step} {verb} the newest{_kept_text(len(aside), dry_run=dry_run)}")
    if aside:
        rows = [(str(one.step), one.generation, one.name) for one in aside]
        output.table((">step", "generation", "name"), rows)
    if aside and not dry_run:
        output.line(f"to bring one back: ckpt tag {run_name} {aside[-1].name} --remove")
    return ExitCode.OK


def _in_line(talk: Conversation, run_name: RunName, which: Step | str) -> Step:
    """Raises Refused for a name whose step was saved again: its number is another checkpoint."""
    _, step, generation = talk.which(run_name, which)
    same = [view.generation for view in talk.steps(run_name) if view.step == step]
    if generation is not None and same and same[-1] != str(generation):
        raise Refused(
            f"{which!r} names an earlier save of step {step} ({generation}), which was saved again "
            f"({same[-1]})",
            hint=f"{run_name}@{step} is the later one; ckpt tag {run_name} aside-{step} --remove "
            "brings an earlier one back that was set aside",
        )
    return step


def _kept_text(count: int, *, dry_run: bool) -> str:
    if not count:
        return ": nothing comes after it"
    verb = "would be" if dry_run else "is" if count == 1 else "are"
    return f" again; {counted(count, 'later one')} {verb} set aside:"


def _warning(run_name: RunName, step: Step, saving: list[int]) -> str:
    """What is under way commits after the rollback, and counts by the usual rule."""
    steps = ", ".join(map(str, saving))
    return (
        f"{run_name} is saving step {steps} at this moment: a job that goes on is newer than step "
        f"{step} again; end it, then roll back"
    )
