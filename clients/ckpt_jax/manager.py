"""`CheckpointManager`: the calls of Orbax's manager, over a store."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

import jax

from ckpt.base.errors import NotFound
from ckpt_client.default import process_store
from ckpt_client.save.handle import Commit, Save
from ckpt_client.step_url import parse_step_url
from ckpt_client.store import Store
from ckpt_jax import state as states

State = TypeVar("State")


class CheckpointManager:
    """The checkpoints of one run, with the calls of Orbax's manager. Saving goes on beside the
    training. Use it in a `with`, or close it.

    directory: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store` (else in the store
        that $CKPT_STORE names).
    save_interval_steps: `save` takes steps that this divides, unless forced.
    check_finite: refuse a state with an array that holds NaN or infinity, by path.
    """

    def __init__(
        self,
        directory: str,
        *,
        store: Store | None = None,
        save_interval_steps: int = 1,
        check_finite: bool = False,
    ) -> None:
        place = parse_step_url(directory)
        self.directory = directory
        self._run = place.run
        self._store = store if store is not None else process_store(place.store)
        self._interval = save_interval_steps
        self._check_finite = check_finite
        #: Saves that nobody has heard the end of, oldest first.
        self._saves: list[Save] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()

    def should_save(self, step: int) -> bool:
        """Whether `save` would take the step: it is due, and newer than all that were saved."""
        newest = self._saves[-1].step if self._saves else self.latest_step()
        return step % self._interval == 0 and (newest is None or step > newest)

    def save(self, step: int, state: object, *, force: bool = False) -> bool:
        """Copy the state (see `ckpt_jax.save`), which may be changed when this returns. False, and
        nothing is saved, when the step is not due and not forced.

        Raises Refused by path for what cannot be stored, before anything is staged; and the error
        of an earlier save. Of several processes one may hear that sooner than others, so there this
        save is under way all the same.
        """
        if not force and not self.should_save(step):
            return False
        alone = jax.process_count() == 1
        if alone:
            self.check_for_errors()
        self._saves.append(
            states.save(self._store, self._run, step, state, check_finite=self._check_finite)
        )
        if not alone:
            self.check_for_errors()
        return True

    def restore(self, step: int | None, like: State) -> State:
        """A new state like `like`, of that step, else of the newest. See `ckpt_jax.load`, also for
        what it raises.
        """
        if step is None and self.latest_step() is None:
            raise NotFound(f"{self._run} has no committed checkpoint")
        return states.load(self._store, self._run, step, like)

    def latest_step(self) -> int | None:
        """The newest committed step; None without one."""
        return self._store.latest(self._run)

    def all_steps(self) -> list[int]:
        """Committed steps, ascending."""
        return [commit.step for commit in self._store.steps(self._run)]

    def reload(self) -> None:
        """Does nothing: the store is asked each time, and nothing is cached."""

    def wait_until_finished(self) -> list[Commit]:
        """The commits of all saves under way. Raises the error of the first that failed."""
        commits = []
        while self._saves:
            save = self._saves[0]
            try:
                commits.append(save.wait())
            finally:
                if save.ended:  # Else a Ctrl-C came: it is waited for again.
                    self._saves.remove(save)
        return commits

    def check_for_errors(self) -> None:
        """Raise the error of a save that failed meanwhile, once. Does not wait."""
        try:
            self._store.check_for_errors()
        finally:
            self._saves = [save for save in self._saves if not save.failure_told]

    def close(self) -> None:
        """Wait for what was saved. The store is left open for others."""
        self.wait_until_finished()
