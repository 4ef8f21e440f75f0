"""Delete a checkpoint: every generation of one step of a run.

Readers that have it open keep it until they close it. Bytes that later steps refer to, because they
did not change, stay on the targets as long as those steps do. On a terminal the command asks first.
The only committed step of a run (not counting those that `ckpt rollback` has set aside) is deleted
only with --force: without it there is nothing to resume from.

--dry-run deletes nothing and says what would go: each generation with its names, how much room that
makes, what stays for whom, and what forbids it (exit code 3: it would be refused).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.units import counted, format_bytes
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.cli.cluster import conversation, parse_checkpoint
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

LAST: Final = "the only committed checkpoint of its run"
EXAMPLE = "ckpt rm llama/7b@12500 --dry-run\nckpt rm llama/7b@12500 --yes"


@dataclass(frozen=True, slots=True)
class Doomed:
    """What a deletion means, as far as can be seen beforehand."""

    run: RunName
    step: Step
    generations: list[StepView]
    others: list[StepView]
    """The run's other steps."""

    @property
    def latest(self) -> int | None:
        """The newest step that a load gets from then on."""
        return max((view.step for view in self.others if _is_in_line(view)), default=None)

    @property
    def users(self) -> list[int]:
        """Later steps that refer to bytes of this one, ascending."""
        return sorted({view.step for view in self.others if self.step in view.homes})

    @property
    def is_last(self) -> bool:
        """Whether nothing is left to resume from, and something is now."""
        return self.latest is None and any(map(_is_in_line, self.generations))

    @property
    def own_bytes(self) -> int:
        """Without what it refers to in earlier steps."""
        return sum(view.bytes - view.referenced_bytes for view in self.generations)

    @property
    def names(self) -> list[str]:
        """All that go with it."""
        return [name for view in self.generations for name in view.names]

    def against(self, *, is_forced: bool) -> list[str]:
        """Why it would be refused."""
        name = f"{self.run}@{self.step}"
        found = [f"{name} is pinned: ckpt unpin {name}"] if self._is_pinned else []
        if self.is_last and not is_forced:
            found.append(f"{name} is {LAST}: --force, if nothing will resume from it")
        return found

    @property
    def _is_pinned(self) -> bool:
        return any(view.pinned for view in self.generations)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="which one")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also the only one of its run")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="delete nothing, show what would go, and what forbids it",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.yes and arguments.dry_run:
        raise Refused("--yes and --dry-run", hint="one of them")
    run_name, step = parse_checkpoint(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        held = talk.steps(run_name)
        views = [view for view in held if view.step == step]
        if not views:
            talk.show(run_name, step)  # Raises NotFound, which names what there is instead.
        doomed = Doomed(run_name, step, views, [view for view in held if view.step != step])
        if arguments.dry_run:
            return _foretell(doomed, output, is_forced=arguments.force)
        if doomed.is_last and not arguments.force:
            hint = "add --force if nothing will resume from it"
            raise Refused(f"{run_name}@{step} is {LAST}", hint=hint)
        if not arguments.yes and output.is_interactive() and not output.ask(_question(doomed)):
            output.note("nothing was deleted")
            return ExitCode.FAILED
        with output.waiting(f"deleting {run_name}@{step}"):
            done = talk.delete(run_name, step)
    output.document(
        {
            "run": run_name, "step": step, "bytes_freed": done.bytes_freed,
            "bytes_held": done.bytes_held, "latest": doomed.latest,
        }
    )  # fmt: skip
    is_left = doomed.latest is not None
    newest = f"the newest is now step {doomed.latest}" if is_left else "no checkpoint is left"
    output.line(f"deleted {run_name}@{step}, {format_bytes(done.bytes_freed)}; {newest}")
    if done.bytes_held:
        output.line(f"{format_bytes(done.bytes_held)} stay until {_users_text(doomed.users)}")
    return ExitCode.OK


def _question(doomed: Doomed) -> str:
    size = format_bytes(sum(view.bytes for view in doomed.generations))
    called = f", called {' and '.join(doomed.names)}" if doomed.names else ""
    count = counted(len(doomed.generations), "generation")
    return f"delete {doomed.run}@{doomed.step} ({size}, {count}{called})?"


def _foretell(doomed: Doomed, output: Output, *, is_forced: bool) -> int:
    """What would happen now. The exit code is 3 if it would be refused."""
    against = doomed.against(is_forced=is_forced)
    held = doomed.own_bytes if doomed.users else 0
    freed = doomed.own_bytes - held
    output.document(
        {
            "run": doomed.run, "step": doomed.step, "bytes_freed": freed, "bytes_held": held,
            "latest": doomed.latest, "dry_run": True, "generations": doomed.generations,
            "held_by": doomed.users, "against": against,
        }
    )  # fmt: skip
    rows = [
        (
            view.generation, view.state, format_bytes(view.bytes), str(view.readers),
            "yes" if view.pinned else "", ", ".join(view.names),
        )
        for view in doomed.generations
    ]  # fmt: skip
    output.table(("generation", "state", ">size", ">readers", "pinned", "names"), rows)
    for text in against:
        output.line(f"against it: {text}")
    if against:
        return ExitCode.DEGRADED
    is_left = doomed.latest is not None
    newest = (
        f"the newest would be step {doomed.latest}" if is_left else "no checkpoint would be left"
    )
    where = f"{doomed.run}@{doomed.step}"
    output.line(f"would delete {where}, {format_bytes(freed)}; {newest}")
    if held:
        output.line(f"{format_bytes(held)} would stay until {_users_text(doomed.users)}")
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
