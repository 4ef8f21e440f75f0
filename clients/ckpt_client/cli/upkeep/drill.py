"""Try what a loss would do to a checkpoint: read all of it without what is supposed to be lost.

A plain load comes first; what the other scenarios read is compared with it, byte by byte.
Nothing is changed: targets go on serving, the reader alone does without them.

--lose t1,t2          without these targets; with --lose-domain, without all of them at once
--lose-domain rack=r1 without a failure domain; the same with what it stands in: rack=p1/r1
--any                 every column and every copy of the index is read whole where it lies; then
                      loads without the worst domain, and without as many targets as the commit
                      stated, drawn at random. What a commit did not promise is skipped, and said so
--tier                without the tier: from the object stores that it drains to, or $CKPT_DURABLE

RUN alone is its newest step; without RUN it is the newest step of every run. A load reads
the whole checkpoint, 64 MiB at a time. Exit code 0: all scenarios passed. 4: one failed.
75: even the plain load lacks targets, so nothing is proved.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import randbelow
from typing import TYPE_CHECKING

from ckpt.base.errors import ERROR_OF_EXIT, CkptError, NotFound, Refused
from ckpt.base.ids import Domain, Generation, RunName, Step, TargetId
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt_client.cli.cluster import Conversation, conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone
from ckpt_client.locate import client_name

if TYPE_CHECKING:
    from ckpt_client.drill.checkpoint_drill import CheckpointDrill, DrillOutcome
    from ckpt_client.drill.losses import SupposedLoss

EXAMPLE = (
    "ckpt drill llama/7b --any\n"
    "ckpt drill llama/7b@12500 --lose t1,t2\n"
    "ckpt drill --lose-domain rack=r1 --tier --json | tail -n 1 | jq .passed"
)
SEEDS = 1_000_000
LOST_SHOWN_MAX = 6


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="RUN[@STEP]", nargs="?", help="which one, also RUN@NAME [all runs]"
    )
    parser.add_argument(
        "--lose", metavar="TARGETS", default="", help="suppose that these are lost, such as t1,t2"
    )
    parser.add_argument(
        "--lose-domain", metavar="LEVEL=NAME", action="append", default=[],
        help="suppose that this domain is lost, such as rack=r1; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--any", action="store_true", help="try every loss that the commit promised to survive"
    )
    parser.add_argument("--tier", action="store_true", help="suppose that the whole tier is lost")
    parser.add_argument(
        "--seed", metavar="NUMBER", type=int, help="draw the same targets for --any again [random]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if not (arguments.lose or arguments.lose_domain or arguments.any or arguments.tier):
        raise Refused(
            "nothing is said to be lost",
            hint="--any, --tier, --lose t1,t2 or --lose-domain rack=r1",
        )
    seed = randbelow(SEEDS) if arguments.seed is None else arguments.seed
    failed = count = 0
    unproved: list[CkptError] = []
    with conversation(arguments, output) as talk, _unlogged():
        plan = _Plan(arguments, talk, seed)
        for run_name, step, only in _chosen(arguments, talk):
            try:
                outcomes = _drilled(plan, run_name, step, only, output)
            except CkptError as error:  # Of the plain load; the other runs have theirs.
                unproved.append(_unproved(run_name, step, error, output))
                if len(unproved) > 1:  # The command ends with the first.
                    output.line(unproved[-1].message)
                continue
            count += len(outcomes)
            failed += sum(not outcome.passed for outcome in outcomes)
    output.record(
        "summary",
        {
            "passed": not (failed or unproved), "scenarios": count, "failed": failed,
            "unproved": len(unproved), "seed": seed,
        },
    )  # fmt: skip
    if failed:
        text = f"{failed} of {counted(count, 'scenario')} failed"
        output.line(output.tone(text, Tone.BAD))
        return ExitCode.LOST
    if unproved:
        raise unproved[0]
    output.line(output.tone(f"{counted(count, 'scenario')} passed", Tone.GOOD))
    return ExitCode.OK


def _unproved(run_name: RunName, step: Step, error: CkptError, output: Output) -> CkptError:
    """Why there is nothing to compare with; others are still drilled."""
    text = f"{run_name}@{step} cannot be drilled: {error.message}"
    output.record(
        "unproved",
        {"run": run_name, "step": step, "code": error.exit_code, "message": error.message},
    )
    return ERROR_OF_EXIT.get(error.exit_code, CkptError)(text, hint=error.hint)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Damage that a load mends is counted in its outcome, not logged line by line."""
    log = logging.getLogger("ckpt.restore")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _chosen(
    arguments: argparse.Namespace, talk: Conversation
) -> list[tuple[RunName, Step, Generation | None]]:
    """Raises NotFound."""
    if arguments.checkpoint is not None:
        return [talk.which(*parse_which(arguments.checkpoint))]
    runs = [RunName(view.run) for view in talk.runs() if view.steps]
    if not runs:
        raise NotFound("there is no checkpoint to drill", hint="see ckpt ls")
    return [(name, talk.newest(name), None) for name in runs]


class _Plan:
    """I know which scenarios are asked for. Raises Refused, NotFound for what is not there."""

    def __init__(self, arguments: argparse.Namespace, talk: Conversation, seed: int) -> None:
        from ckpt_client.load.reader_context import ReaderContext

        status, control = talk.status(), talk.control
        self.timeout_s: float = arguments.timeout
        self.context = ReaderContext(control.find, control.secret, control.cluster, client_name())
        self._arguments = arguments
        self._seed = seed
        self._domains = {
            TargetId(target.id): Domain.parse(target.domain) for target in status.targets
        }
        stores = (os.environ.get("CKPT_DURABLE", ""), *(store.url for store in status.stores))
        self._stores = [url for url in stores if url]
        self._losses = self._supposed()

    def _supposed(self) -> list[SupposedLoss]:
        from ckpt_client.drill.losses import of_domain, of_names, together

        losses = [of_names(self._arguments.lose, self._domains)] if self._arguments.lose else []
        losses += [of_domain(text, self._domains) for text in self._arguments.lose_domain]
        return [together(losses)] if losses else []

    def scenarios(self, drill: CheckpointDrill) -> Iterator[DrillOutcome]:
        """One after the other, the plain load first."""
        yield drill.plain_load()
        for loss in self._losses:
            yield drill.load_without(loss)
        if self._arguments.any:
            yield drill.every_column()
            yield drill.every_index_copy()
            yield from drill.promised_losses(self._domains, self._seed)
        if self._arguments.tier:
            yield drill.load_from_store(self._stores, list(self._domains))


def _drilled(
    plan: _Plan, run_name: RunName, step: Step, only: Generation | None, output: Output
) -> list[DrillOutcome]:
    from ckpt_client.drill.checkpoint_drill import CheckpointDrill

    outcomes: list[DrillOutcome] = []
    read_bytes = 0

    def on_bytes(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count

    def progress() -> str:
        return f"scenario {len(outcomes) + 1}, {format_bytes(read_bytes)} read"

    with (
        output.waiting(f"drilling {run_name}@{step}", progress),
        CheckpointDrill(
            plan.context, run_name, step, only, plan.timeout_s, on_bytes
        ) as drill,
    ):  # fmt: skip
        checkpoint = drill.checkpoint
        for outcome in plan.scenarios(drill):
            outcomes.append(outcome)
            output.record(
                "outcome",
                {
                    "run": checkpoint.run,
                    "step": checkpoint.step,
                    "generation": str(checkpoint.generation),
                    "passed": outcome.passed,
                    **{name: getattr(outcome, name) for name in outcome.__struct_fields__},
                },
            )
    output.line(f"{checkpoint.run}@{checkpoint.step}, generation {checkpoint.generation}")
    _print(outcomes, output)
    return outcomes


def _print(outcomes: list[DrillOutcome], output: Output) -> None:
    rows = [
        (
            outcome.scenario,
            _lost_text(outcome.lost),
            outcome.state if outcome.passed else outcome.state.upper(),
            format_seconds(outcome.took_s) if outcome.took_s else "-",
            outcome.detail,
        )
        for outcome in outcomes
    ]
    output.table(("scenario", "lost", "outcome", ">took", ""), rows, indent="  ")


def _lost_text(targets: tuple[str, ...]) -> str:
    more = len(targets) - LOST_SHOWN_MAX
    shown = ", ".join(targets[:LOST_SHOWN_MAX])
    return (f"{shown} and {more} more" if more > 0 else shown) or "-"
