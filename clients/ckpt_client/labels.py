"""What the steps of a run are called, and how that is changed: as the coordinator has it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Generation, RunName, Step
from ckpt.base.near import did_you_mean
from ckpt.format.documents.labels import check_given, check_name, check_names
from ckpt.format.messages.asking import (
    DeleteStep,
    LabelStep,
    RollBack,
    RolledBack,
    SetAside,
    StepDeleted,
    StepLabeled,
)
from ckpt.protocol.coordinator.reading.answers import NameView, StepView
from ckpt_client.control import Control

TIMEOUT_S: Final = 30.0
ROLL_BACK_TIMEOUT_S: Final = 300.0
"""A later step costs a document on m + 1 targets, one after the other."""
_names = msgspec.json.Decoder(list[NameView])
_steps = msgspec.json.Decoder(list[StepView])
_aside = msgspec.json.Decoder(list[SetAside])


def names_of(control: Control, run: RunName) -> dict[str, NameView]:
    """All names of a run, ascending."""
    return {view.name: view for view in _names.decode(control.ask("names", run))}


def named(control: Control, run: RunName, name: str) -> tuple[Step, Generation]:
    """The generation that has this name. Raises NotFound."""
    known = names_of(control, run)
    if name not in known:
        raise NotFound(
            f"no checkpoint of run {run!r} is called {name!r}", hint=_instead(run, name, known)
        )
    return Step(known[name].step), Generation.parse(known[name].generation)


_NEWEST: Final = ("latest", "newest", "last")


def _instead(run: RunName, name: str, known: Collection[str]) -> str:
    """The next step for who asks for a name that nothing has."""
    if name.isdecimal():
        return f"a step is a number: write int({name!r})"
    if name in _NEWEST:
        return "the newest one needs no name: leave the step out"
    return did_you_mean(name, known, f"its names: ckpt tag {run}")


def tag(
    control: Control, run: RunName, step: Step, names: tuple[str, ...],
    generation: Generation | None = None, *, replace: bool = False,
) -> None:  # fmt: skip
    """Give a generation, by default the newest, this name; whatever had the name loses it. With
    `replace` that is deleted if it has no other name, like a file that is overwritten.
    """
    for name in names:
        check_given(name)
    before = names_of(control, run) if replace else {}
    _change(control, LabelStep(run, step, generation, add=check_names(names)))
    for name in names:
        if name in before:
            _delete_nameless(control, run, before[name])


def untag(control: Control, run: RunName, names: tuple[str, ...], *, delete: bool = False) -> None:
    """Remove a name; no error if nothing has it. With `delete`, what had the name is deleted if it
    has no other name, like a file with links.
    """
    known = names_of(control, run)
    for name in map(check_name, names):
        if name in known:
            generation = Generation.parse(known[name].generation)
            _change(control, LabelStep(run, Step(known[name].step), generation, remove=(name,)))
            if delete:
                _delete_nameless(control, run, known[name])


def pin(control: Control, run: RunName, step: Step, generation: Generation | None = None) -> None:
    """Pin a generation, by default the newest: nothing deletes it from now on."""
    _change(control, LabelStep(run, step, generation, pinned=True))


def unpin(control: Control, run: RunName, step: Step, generation: Generation | None = None) -> None:
    """Unpin a generation, by default all. Raises NotFound when there is none."""
    _change(control, LabelStep(run, step, generation, pinned=False))
    if generation is not None:
        return
    for view in _steps.decode(control.ask("steps", run)):
        if view.step == step and view.pinned:
            generation = Generation.parse(view.generation)
            _change(control, LabelStep(run, step, generation, pinned=False))


def roll_back(control: Control, run: RunName, step: Step, *, dry_run: bool) -> list[SetAside]:
    """Make a step the newest again. Returns what that sets aside, or would set aside, ascending by
    step.

    Raises NotFound, Refused for a step that is set aside itself, Lost, Unavailable.
    """
    question = RollBack(run, step, dry_run=dry_run)
    _, bulk = control.call(question, RolledBack, timeout_s=ROLL_BACK_TIMEOUT_S)
    return _aside.decode(bulk)


def _delete_nameless(control: Control, run: RunName, named: NameView) -> None:
    generation = Generation.parse(named.generation)
    question = DeleteStep(run, Step(named.step), generation, nameless=True)
    # It may have been deleted by hand, or superseded; and what has a name or is pinned stays.
    with suppress(NotFound, Refused):
        control.call(question, StepDeleted, timeout_s=TIMEOUT_S)


def _change(control: Control, change: LabelStep) -> None:
    control.call(change, StepLabeled, timeout_s=TIMEOUT_S)
