"""Which committed steps stay, and what they are called: the part of a store that people and
programs use beside the training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ckpt.base.ids import Generation, check_run_name, check_step

if TYPE_CHECKING:
    from ckpt.protocol.coordinator.reading.answers import RetentionView
    from ckpt_client.control import Control
    from ckpt_client.retention import Age, Mode

DELETE_TIMEOUT_S: Final = 60.0


class Keeper(ABC):
    """Names, pins, rules and deletion of committed steps. I am a part of `Store`."""

    @abstractmethod
    def _talk(self) -> Control:
        """To the coordinator, which answers. Raises Refused for a store that is closed, and
        Unavailable.
        """

    def names(self, run: str, *, aside: bool = True) -> dict[str, int]:
        """The names of the run's steps: name -> step, ascending. Empty for a run that never saved.

        aside: also all names of what `rollback` has set aside.
        """
        from ckpt_client import labels

        found = labels.names_of(self._talk(), check_run_name(run))
        return {name: view.step for name, view in found.items() if aside or not view.aside}

    def tag(
        self,
        run: str,
        step: int,
        *names: str,
        generation: Generation | None = None,
        replace: bool = False,
    ) -> None:
        """Give a committed step names: `load(run, name)` finds it, and it neither expires nor is
        evicted. A name that another step of the run has moves here. Durable when this returns.

        generation: of the step, as its `Commit` says; default: the newest.
        replace: delete the step that had the name before, unless it has another name.

        Raises NotFound; Refused for a name of more than 1024 bytes, of digits alone, with control
        characters, or like those that `rollback` gives, and for more than 32 names of one step;
        Unavailable.
        """
        from ckpt_client import labels

        labels.tag(
            self._talk(), check_run_name(run), check_step(step), names, generation, replace=replace
        )

    def untag(self, run: str, *names: str, delete: bool = False) -> None:
        """Remove a name from its step. The step stays until something else removes it; with
        `delete` it is deleted at once if it has no other name.
        """
        from ckpt_client import labels

        labels.untag(self._talk(), check_run_name(run), names, delete=delete)

    def rollback(self, run: str, step: int) -> dict[str, int]:
        """Make a step the run's newest again, and set all later committed steps aside. Returns the
        names that these get, name -> step. A step that is set aside stays, and loads by its name,
        until `untag` removes the name, which brings it back, or `delete` removes the step. Durable
        when this returns; called again, it changes nothing and returns the same.

        End the job first: one that goes on saves newer steps. A launch that has loaded a later step
        as the newest, also this process's own, loads that again until it saves.

        Raises NotFound; Refused for a step that is itself set aside; Lost or Unavailable for one
        that cannot be read now. Nothing is changed then.
        """
        from ckpt_client import labels

        found = labels.roll_back(self._talk(), check_run_name(run), check_step(step), dry_run=False)
        return {one.name: one.step for one in found}

    def pin(self, run: str, step: int) -> None:
        """Keep a committed step: nothing takes it away, and `delete` refuses, until it is unpinned.
        A later save of the same step is not pinned. Raises NotFound, Unavailable.
        """
        from ckpt_client import labels

        labels.pin(self._talk(), check_run_name(run), check_step(step))

    def unpin(self, run: str, step: int) -> None:
        """Unpin a step, in all its generations. Raises NotFound, Unavailable."""
        from ckpt_client import labels

        labels.unpin(self._talk(), check_run_name(run), check_step(step))

    def keep(
        self,
        run: str,
        *,
        last: int | None = None,
        every: int | None = None,
        best: tuple[str, int] | None = None,
        mode: Mode | None = None,
        age: Age | None = None,
    ) -> None:
        """Set which steps of a run stay from now on: those that any of these rules keeps, the
        newest, and those with a name or a pin. The others are deleted: at once, at commits, and as
        time passes. Durable when this returns. Without any rule the cluster's `keep` applies again.

        last: how many of the newest steps.
        every: steps whose number this divides.
        best: (metric, count): how many steps with the best values of a metric, one of those that
            `save` was given. As the only rule it also keeps steps without that metric.
        mode: `min` if low values of the metric are good, `max` if high ones are.
        age: steps committed within this time: seconds, a timedelta, or `7d`, `12h`, `30min`.

        Raises Refused for an invalid rule, Unavailable.
        """
        from ckpt_client import retention

        rules = retention.rules_of(last, every, best, mode, age)
        retention.say(self._talk(), check_run_name(run), rules)

    def kept(self, run: str) -> RetentionView:
        """The rules in force for a run, and for each step whether it stays, and why."""
        from ckpt_client import retention

        return retention.stays(self._talk(), check_run_name(run))

    def delete(self, run: str, step: int) -> None:
        """Delete all generations of a step, with their names, also the only step of a run. Whoever
        has it open can read it until they close it. Raises NotFound, Unavailable, and Refused for a
        step that is pinned.
        """
        from ckpt.format.messages.asking import DeleteStep, StepDeleted

        question = DeleteStep(check_run_name(run), check_step(step))
        self._talk().call(question, StepDeleted, timeout_s=DELETE_TIMEOUT_S)
