"""What stays of committed steps, and what they are called: the part of a store that people and
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
        """Call a committed step so: `load(run, name)` finds it, and neither retention nor room for
        others takes it away. A name that another step of the run has moves here. Durable when this
        returns.

        generation: of the step, as its `Commit` says; default: the newest.
        replace: delete what was called so before, where it has no other name.

        Raises NotFound; Refused for a name of more than 1024 bytes, of digits alone, with control
        characters, or such as `rollback` gives, or for more than 32 names of one step; Unavailable.
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
        """The step is the run's newest again. All that is committed of later steps is set aside
        under the names that this returns, name -> step: kept, and loaded by its name, until `untag`
        takes the name away, which brings it back, or `delete` the step. Durable when this returns;
        asked again it changes nothing and returns the same.

        A job that goes on saves newer steps: end it first. A launch that has loaded a later step as
        the newest, this process too, loads that again until it saves.

        Raises NotFound; Refused for a step that is set aside itself, Lost or Unavailable for one
        that cannot be read now: then nothing is changed.
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
        """Say what stays of a run from now on: the union of these, the newest step, and what has a
        name or is pinned. The rest is deleted: at once, at commits, and as time passes. Durable
        when this returns. Without any rule the cluster's `keep` counts again.

        last: so many newest steps.
        every: steps that it divides.
        best: (metric, count): so many steps with the best values of what `save` was given as
            `metrics`. As the only rule it also keeps steps without that metric.
        mode: whether low values of the metric are good, `min`, or high ones, `max`.
        age: what was committed within these seconds, a timedelta, or `7d`, `12h`, `30min`.

        Raises Refused for what is no rule, Unavailable.
        """
        from ckpt_client import retention

        rules = retention.rules_of(last, every, best, mode, age)
        retention.say(self._talk(), check_run_name(run), rules)

    def kept(self, run: str) -> RetentionView:
        """The rules in force for a run, and for each step whether it stays, and why."""
        from ckpt_client import retention

        return retention.stays(self._talk(), check_run_name(run))

    def delete(self, run: str, step: int) -> None:
        """Delete all generations of a step, with their names. Raises NotFound, Refused for what is
        pinned, and Busy while somebody reads it.
        """
        from ckpt.format.messages.asking import DeleteStep, StepDeleted

        question = DeleteStep(check_run_name(run), check_step(step))
        self._talk().call(question, StepDeleted, timeout_s=DELETE_TIMEOUT_S)
