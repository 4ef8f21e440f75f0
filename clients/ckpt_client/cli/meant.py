"""What did they mean who typed a command or a run that there is not? The next step, as a hint."""

from __future__ import annotations

from typing import Final

from ckpt.base.errors import NotFound
from ckpt.base.near import did_you_mean
from ckpt.protocol.coordinator.reading.answers import RunView
from ckpt_client.cli.commands import VERBS

SEE_HELP: Final = "see ckpt --help"
RUNS_NAMED_MAX: Final = 8
_ELSEWHERE: Final = {
    "list": "ckpt ls", "delete": "ckpt rm", "remove": "ckpt rm", "info": "ckpt show",
    "describe": "ckpt show", "health": "ckpt status", "ps": "ckpt status", "check": "ckpt verify",
    "restore": "ckpt rollback", "latest": "ckpt show RUN", "start": "ckptd local DIR",
    "stop": "ckpt local stop DIR", "version": "ckpt --version",
    "save": "ckpt.save in Python, or ckpt import", "load": "ckpt.load in Python, or ckpt export",
}  # fmt: skip
"""Commands as other programs call them -> what does that here."""


def hint_of_verb(verb: str) -> str:
    """For a command that there is not."""
    elsewhere = _ELSEWHERE.get(verb)
    return f"did you mean {elsewhere}?" if elsewhere else did_you_mean(verb, VERBS, SEE_HELP)


def no_run(run: str, known: list[RunView]) -> NotFound:
    """That the run is not among the known ones, and which may be meant."""
    names = [view.run for view in known]
    above, _, step = run.rpartition("/")
    if step.isdigit() and above in names:
        return NotFound(f"there is no run {run!r}", hint=f"did you mean {above}@{step}?")
    listed = ", ".join(names[:RUNS_NAMED_MAX]) or "none"
    more = f" and {len(names) - RUNS_NAMED_MAX} more" if len(names) > RUNS_NAMED_MAX else ""
    hint = did_you_mean(run, names, f"runs with checkpoints: {listed}{more}")
    return NotFound(f"there is no run {run!r}", hint=hint)
