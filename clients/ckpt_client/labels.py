"""What the steps of a run are called, and how that is changed: as the coordinator has it."""

from __future__ import annotations

import difflib
from typing import Final

import msgspec

from ckpt.base.errors import NotFound
from ckpt.base.ids import Generation, RunName, Step
from ckpt.format.documents.labels import check_names
from ckpt.format.messages.asking import LabelStep, StepLabeled
from ckpt.protocol.coordinator.reading.answers import NameView, StepView
from ckpt_client.control import Control

TIMEOUT_S: Final = 30.0
_names = msgspec.json.Decoder(list[NameView])
_steps = msgspec.json.Decoder(list[StepView])


def names_of(control: Control, run: RunName) -> dict[str, NameView]:
    """All names of a run, ascending."""
    return {view.name: view for view in _names.decode(control.ask("names", run))}


def named(control: Control, run: RunName, name: str) -> tuple[Step, Generation]:
    """What a name stands for. Raises NotFound."""
    known = names_of(control, run)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its names: ckpt tag {run}"
        raise NotFound(f"no checkpoint of run {run!r} is called {name!r}", hint=hint)
    return Step(known[name].step), Generation.parse(known[name].generation)


def tag(control: Control, run: RunName, step: Step, names: tuple[str, ...]) -> None:
    """Call its newest generation so; what was called so before is not any more."""
    _change(control, LabelStep(run, step, add=check_names(names)))


def untag(control: Control, run: RunName, names: tuple[str, ...]) -> None:
    """Nothing is called so any more. One that nothing was called is no error."""
    known = names_of(control, run)
    for name in check_names(names):
        if name in known:
            generation = Generation.parse(known[name].generation)
            _change(control, LabelStep(run, Step(known[name].step), generation, remove=(name,)))


def pin(control: Control, run: RunName, step: Step) -> None:
    """Nothing deletes its newest generation from now on."""
    _change(control, LabelStep(run, step, pinned=True))


def unpin(control: Control, run: RunName, step: Step) -> None:
    """All its generations. Raises NotFound when there is none."""
    _change(control, LabelStep(run, step, pinned=False))
    for view in _steps.decode(control.ask("steps", run)):
        if view.step == step and view.pinned:
            generation = Generation.parse(view.generation)
            _change(control, LabelStep(run, step, generation, pinned=False))


def _change(control: Control, change: LabelStep) -> None:
    control.call(change, StepLabeled, timeout_s=TIMEOUT_S)
