"""Rollback: a step is its run's newest again, and what came after it is set aside, not lost.

    asked --each later generation gets a name, the newest step first--> answered
          (Labeling: on their targets, then all in one ticket in the catalog)

What is called `aside-STEP` (`ckpt.format.documents.labels`) is in nobody's way: whoever asks for
the newest passes it over, retention does not count it, and no store is sent it. It stays, as all
that has a name does, until somebody takes the name away, which brings it back.

All that is committed of a later step is named, also what a newer save of that step replaced and
somebody holds: it would be the newest otherwise. What is lost is named as well: an object store may
have it. What is being deleted is passed over: it goes. Changes of names and deletions that were
asked for before come first.

Invariants: the step can be read when it is asked for, and nothing takes it away before the answer;
a rollback that fails, or is cut short, has changed nothing.
"""

from __future__ import annotations

from functools import partial
from itertools import count

import msgspec

from ckpt.base.errors import CkptError, Lost, NotFound, Refused, Unavailable
from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.format.documents.labels import NAMES_MAX, aside_name, check_names, is_aside
from ckpt.format.messages.asking import RollBack, RolledBack, SetAside
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.instead import instead
from ckpt.protocol.coordinator.keeping.labeling import Labeling
from ckpt.protocol.events import Session
from ckpt.protocol.losses import loss_text

HERE = (RowState.COMMITTED, RowState.DAMAGED)


class RollingBack:
    """I set aside what came after a step."""

    def __init__(self, desk: Desk, checkpoints: Checkpoints, labeling: Labeling) -> None:
        self._desk = desk
        self._checkpoints = checkpoints
        self._labeling = labeling

    def roll_back(self, session: Session, request: int, message: RollBack) -> None:
        """Answered when it is durable. Raises NotFound, Refused when the step is set aside itself,
        Lost or Unavailable when it cannot be read now; then nothing is changed.
        """
        begin = partial(self._begin, session, request, message)
        self._labeling.in_turn(session, request, message.run, begin)

    def _begin(self, session: Session, request: int, message: RollBack) -> None:
        run, step = message.run, message.step
        chosen = self._readable(run, step)
        later = [one for one in self._checkpoints.of_run(run, *HERE) if one.id.step > step]
        given = self._names_for(run, [one for one in reversed(later) if not one.is_aside])
        told = [_told(one, given.get(one.id, one.names)) for one in later]

        def answer(failure: CkptError | None) -> None:
            if failure is not None:
                self._desk.fail(session, request, failure)
                return
            self._desk.send(session, request, RolledBack(run, step), msgspec.json.encode(told))

        doubted = any(one.unsettled for one in later)  # Their targets may have another word.
        if message.dry_run or not (given or doubted):
            answer(None)
            return
        renamed = [(one, given[one.id]) for one in reversed(later) if one.id in given]
        # The step's own names are said again: what is being said of it holds it until the answer.
        self._labeling.call(run, [*renamed, (chosen, chosen.names)], answer)

    def _names_for(
        self, run: RunName, fresh: list[KeptCheckpoint]
    ) -> dict[CheckpointId, tuple[str, ...]]:
        """What each is called from now on. Raises Refused for one that has too many names."""
        here = self._checkpoints.of_run(run, *HERE)
        taken = {name for one in here for name in one.names}
        given: dict[CheckpointId, tuple[str, ...]] = {}
        for one in fresh:
            free = (aside_name(one.id.step, number) for number in count(1))
            name = next(name for name in free if name not in taken)
            taken.add(name)
            given[one.id] = _with(one, name)
        return given

    def _readable(self, run: RunName, step: Step) -> KeptCheckpoint:
        """The step's newest generation, or why nobody could go on from it."""
        held = self._checkpoints.of_step(run, step, *HERE)
        line = [one for one in held if not one.is_aside]
        if not held:
            hint = instead(self._checkpoints, run)
            raise NotFound(f"{run}@{step} has no committed checkpoint", hint=hint)
        if not line:
            name = next(name for name in held[-1].names if is_aside((name,)))
            raise Refused(
                f"{run}@{step} is set aside itself, as {name!r}",
                hint=f"bring it back first: ckpt tag {run} {name} --remove",
            )
        chosen = line[-1]
        if chosen.state is RowState.DAMAGED:
            hint = f"roll back to another step, or bring it back first: ckpt fetch {run}@{step}"
            raise Lost(loss_text(chosen.id, chosen.reason), hint=hint)
        if not self._checkpoints.readable(chosen):
            away = ", ".join(self._checkpoints.unreachable(chosen))
            why = f"targets {away} do not answer" if away else "its targets lack columns of it"
            hint = "see ckpt status; roll back when it can be read, or to another step"
            raise Unavailable(f"{chosen.id} cannot be read now: {why}", hint=hint)
        return chosen


def _told(one: KeptCheckpoint, names: tuple[str, ...]) -> SetAside:
    name = next(name for name in names if is_aside((name,)))
    return SetAside(one.id.step, str(one.id.generation), name)


def _with(one: KeptCheckpoint, name: str) -> tuple[str, ...]:
    if len(one.names) >= NAMES_MAX:
        raise Refused(
            f"{one.id} has {NAMES_MAX} names, one more is not allowed, and sets it aside",
            hint=f"take one away: ckpt tag {one.id.run} NAME --remove",
        )
    return check_names((*one.names, name))
