"""Read every byte of every column of a checkpoint where it lies, and compare; also
every copy of its index, its commit record and its labels.

Exit code 0: all is whole. 3: some columns are missing, or something is damaged; the
checkpoint is readable from the others, or is `stored`: the tier has lost it, an object
store has it. 4: it is lost. 75: targets that hold it are out of reach, so nothing is
proved. Columns of earlier steps that hold what did not change are read as well.

Damage that parity cannot mend is reported to the coordinator, as a load does. The coordinator asks
the targets as well; if it proves the loss, the checkpoint is lost, or stored, for everybody from
then on (`judged` in JSON).
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ckpt.base.errors import Unavailable
from ckpt.base.ids import Rank
from ckpt.base.units import counted
from ckpt.protocol.losses import loss_reason
from ckpt_client.cli.cluster import Conversation, conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, rate_text
from ckpt_client.cli.tables import Tone
from ckpt_client.cli.tensors_tree import ranges_text
from ckpt_client.cli.verbs.ls import reason_text
from ckpt_client.locate import client_name

if TYPE_CHECKING:
    from ckpt.base.ids import Generation, RunName, Step
    from ckpt.format.messages.reading import ByteRange, Damage
    from ckpt.protocol.coordinator.reading.answers import StepView
    from ckpt_client.load.verify import PayloadHealth, VerifyReport

EXAMPLE = "ckpt verify llama/7b@12500\nckpt verify llama/7b@12500 --json | tail -n 1 | jq .state"

STORED: Final = "stored"
SAY_S: Final = 1.0
"""Between two lines of progress in JSON."""
_ENDS: Final = {
    "healthy": (ExitCode.OK, Tone.GOOD),
    "degraded": (ExitCode.DEGRADED, Tone.WARN),
    STORED: (ExitCode.DEGRADED, Tone.WARN),
    "lost": (ExitCode.LOST, Tone.BAD),
    "unknown": (ExitCode.TRY_LATER, Tone.WARN),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN[@STEP]", help="which one, also RUN@NAME")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ckpt_client.load.reader_context import ReaderContext
    from ckpt_client.load.verify import verify

    wanted = parse_which(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        run_name, step, only = talk.which(*wanted)
        control = talk.control
        known = _known(talk, run_name, step, only)
        if known is not None and known.stored:
            return _say_stored(known, output)
        context = ReaderContext(control.find, control.secret, control.cluster, client_name())
        size = 0 if known is None else known.bytes
        progress = _Progress(output, {"run": run_name, "step": step, "payload_bytes": size})
        with output.waiting(f"verifying {run_name}@{step}", progress.text):
            report = verify(
                context, run_name, step, timeout_s=arguments.timeout, only=only,
                on_progress=progress.heard,
            )  # fmt: skip
        found = _known(talk, run_name, step, report.checkpoint.generation)
    return _end(report, found.stored if found is not None else (), output)


def _known(
    talk: Conversation, run_name: RunName, step: Step, only: Generation | None
) -> StepView | None:
    """What the coordinator says of that generation, or of the one that a load of the step gets."""
    views = [view for view in talk.steps(run_name) if view.step == step]
    if only is not None:
        return next((view for view in views if view.generation == str(only)), None)
    views = [view for view in views if not view.aside] or views
    return views[-1] if views else None


def _say_stored(known: StepView, output: Output) -> ExitCode:
    """There is nothing in the tier to be read."""
    what = {"run": known.run, "step": known.step, "generation": known.generation}
    record = {**what, "state": STORED, "reason": known.reason, "stored": known.stored}
    output.record("summary", record)
    output.line(f"{known.run}@{known.step}  {output.tone(STORED, Tone.WARN)}")
    output.line(f"  {_stored_text(known.run, known.stored)}")
    output.line(f"  proved by the coordinator: {reason_text(known)}")
    return ExitCode.DEGRADED


def _stored_text(run_name: str, stored: Sequence[str]) -> str:
    where = " and ".join(stored)
    return f"the tier has lost it, {where} has it: ckpt fetch --lost {run_name} saves it again"


def _end(report: VerifyReport, stored: Sequence[str], output: Output) -> ExitCode:
    checkpoint, judged = report.checkpoint, report.judged
    state = STORED if report.state == "lost" and stored else report.state
    code, tone = _ENDS[state]
    output.record("summary", {**_summary(report), "state": state, "stored": stored})
    _print(report, state, tone, output)
    if judged is not None and judged.proved:
        if stored:
            output.line(f"  {_stored_text(checkpoint.run, stored)}")
        reason = loss_reason(checkpoint, judged.reason)
        output.line(f"  proved by the coordinator: {reason}")
    if code is ExitCode.TRY_LATER:
        what = f"{checkpoint.run}@{checkpoint.step}"
        why = "is not verified: targets that hold it are out of reach"
        if judged is not None:
            why = f"does not verify, and its loss is not proved: {judged.reason}"
        raise Unavailable(f"{what} {why}", hint="see ckpt status")
    return code


class _Progress:
    """I say how far it is: to people when they wait, in JSON now and then."""

    def __init__(self, output: Output, what: Mapping[str, object]) -> None:
        self._output = output
        self._what = what
        self._done = self._count = 0
        self._said_s = time.monotonic()
        output.record("progress", what)

    def heard(self, done: int, count: int) -> None:
        """So many columns of so many were read."""
        self._done, self._count = done, count
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            counts = {"columns_read": done, "columns": count}
            self._output.record("progress", {**self._what, **counts})

    def text(self) -> str:
        return f"{self._done} of {counted(self._count, 'column')} read" if self._count else ""


def _summary(report: VerifyReport) -> dict[str, object]:
    checkpoint = report.checkpoint
    return {
        "run": checkpoint.run,
        "step": checkpoint.step,
        "generation": str(checkpoint.generation),
        "judged": report.judged,
        "payloads": report.payloads,
        "lost": [{"rank": each.rank, "home": each.home} for each in _lost(report)],
        "columns": report.columns,
        "documents_read": report.documents_read,
        "documents": report.documents,
        "read_bytes": report.bytes_read,
        "took_s": report.seconds,
        # As 0.1.0 calls them.
        "bytes_read": report.bytes_read,
        "seconds": report.seconds,
    }


def _print(report: VerifyReport, state: str, tone: Tone, output: Output) -> None:
    output.line(
        f"{report.checkpoint.run}@{report.checkpoint.step}  {output.tone(state, tone)}  "
        f"{counted(len(report.columns), 'column')}, "
        f"read {rate_text(report.bytes_read, report.seconds)}, "
        f"and {counted(report.documents_read, 'document')}"
    )
    rows = [
        (
            str(each.rank), str(each.column), each.target or "-", each.state,
            _damage(each.damaged, each.beside), _of(each.home),
        )
        for each in report.columns if each.state != "whole"
    ]  # fmt: skip
    rows += [
        ("-", each.kind, each.target, "damaged", _damage((), each.damaged), _of(each.home))
        for each in report.documents
    ]
    if rows:
        output.table((">rank", ">column", "target", "state", "damage", ""), rows, indent="  ")
    lost = _lost(report)
    if lost:
        count, verb = counted(len(report.payloads), "payload"), "is" if len(lost) == 1 else "are"
        output.line(f"  {len(lost)} of {count} {verb} lost: {_ranks_text(lost)}")


def _ranks_text(payloads: Sequence[PayloadHealth]) -> str:
    """All of them: `rank 3`, `ranks 0-7, 12; rank 2 of step 100#1.1`."""
    ranks: defaultdict[str, list[Rank]] = defaultdict(list)
    for each in payloads:
        ranks[each.home].append(Rank(each.rank))
    return "; ".join(
        f"{'rank' if len(some) == 1 else 'ranks'} {ranges_text(some)} {_of(home)}".rstrip()
        for home, some in ranks.items()
    )


def _lost(report: VerifyReport) -> list[PayloadHealth]:
    """Those that the targets cannot give, whatever the coordinator proved of them."""
    return [each for each in report.payloads if each.state == "lost"]


def _of(home: str) -> str:
    return f"of step {home}" if home else ""


def _damage(cells: Sequence[ByteRange], beside: Sequence[Damage]) -> str:
    """Ranges of the column, and the names of what lies beside."""
    texts = [f"[{each.start}, {each.end})" for each in cells]
    texts = [*texts[:4], "…"] if len(texts) > 4 else texts
    return ", ".join([*([" ".join(texts)] if texts else []), *(each.region for each in beside)])
