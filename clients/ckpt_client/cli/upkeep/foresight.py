"""What a change of a target would take, before anybody makes it: bytes, time, and how much may be
lost meanwhile.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from msgspec.structs import asdict as fields_of

from ckpt.base.errors import NotFound
from ckpt.base.ids import RunName, TargetId
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.format.messages.asking import TargetChanged
from ckpt_client.cli.cluster import Conversation
from ckpt_client.cli.output import Output


@dataclass(frozen=True, slots=True)
class Foresight:
    """Of what has to be made again on other targets."""

    takes_s: float | None
    """Until all is there, after what is due already; None: repair has measured no rate yet."""
    bytes_per_s: float
    survives: int | None
    """Targets that any step may lose until then; None: nothing that can be read is kept."""

    @property
    def texts(self) -> list[str]:
        said = ["how long that takes is unknown: repair has measured no rate yet"]
        if self.takes_s is not None:
            rate = f"{format_bytes(self.bytes_per_s)}/s"
            said = [f"that takes about {format_seconds(self.takes_s)}, at {rate}"]
        if self.survives is not None:
            more = counted(max(0, self.survives), "more target")
            said.append(f"meanwhile each step survives the loss of at least {more}")
        return said


def foresee(talk: Conversation, changed: TargetChanged) -> Foresight:
    """From what the cluster knows now."""
    view = talk.repair()
    rate = view.bytes_per_s
    if not rate and view.measured is not None:
        rate = view.measured.bytes_per_s
    left = [
        step.targets_survivable
        for run in talk.runs()
        for step in talk.steps(RunName(run.run))
        if step.targets_survivable >= 0
    ]
    survives = min(left, default=None)
    states = {target.id: target.state for target in talk.status().targets}
    counts = states.get(changed.target) == "live" and changed.columns
    if survives is not None and counts and changed.standing == "removed":
        survives -= 1
    seconds = (view.bytes_left + changed.bytes) / rate if rate else None
    return Foresight(seconds, rate, survives)


def what_is_there(changed: TargetChanged) -> str:
    """Columns, and documents if there are any."""
    texts = [f"{counted(changed.columns, 'column')} ({format_bytes(changed.bytes)})"]
    texts += [counted(changed.documents, "document")] if changed.documents else []
    return ", ".join(texts)


def tell_foreseen(changed: TargetChanged, foresight: Foresight, output: Output) -> None:
    """A line for each thing to know."""
    id, what = changed.target, what_is_there(changed)
    output.line(f"{id} would be {changed.standing}; it was {changed.was}; {what} are there")
    _tell(changed, foresight, output)


def _tell(changed: TargetChanged, foresight: Foresight, output: Output) -> None:
    if changed.columns and changed.standing != "in":
        for text in foresight.texts:
            output.line(text)
    for doubt in changed.doubts:
        output.line(f"against it: {doubt}")


def foresee_replacement(talk: Conversation, id: str, output: Output) -> None:
    """What the old directory had is gone then, as if its target was removed. Raises NotFound when
    no other directory asks for its place.
    """
    command = ["ckpt", "target", "replace", id]
    checks = (one for one in talk.status().checks if one.command.split()[:4] == command)
    asking = [one.message for one in checks if one.name == "DIRECTORY_UNKNOWN"]
    if not asking:
        raise NotFound(
            f"no other directory asks for the place of target {id}",
            hint="start `ckptd target` on it, under that name; ckpt status then shows it",
        )
    changed = talk.change_target(TargetId(id), "removed", force=False, dry_run=True)
    foresight = foresee(talk, changed)
    said = {"target": id, "asking": asking, "columns": changed.columns, "bytes": changed.bytes}
    said |= {"documents": changed.documents, "doubts": changed.doubts, "dry_run": True}
    output.document({**said, **asdict(foresight)})
    for one in asking:
        output.line(one)
    output.line(f"{what_is_there(changed)} of its own directory would be made again")
    _tell(changed, foresight, output)


def document_of(changed: TargetChanged, foresight: Foresight | None) -> dict[str, object]:
    """In JSON."""
    said: dict[str, object] = {**fields_of(changed), "dry_run": foresight is not None}
    return said if foresight is None else {**said, **asdict(foresight)}
