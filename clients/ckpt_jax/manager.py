"""`CheckpointManager`: the calls of Orbax's manager, over a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Literal, Self, SupportsFloat, TypeVar, overload

import jax

from ckpt.base.errors import NotFound, Refused
from ckpt_client.default import process_store
from ckpt_client.save.handle import Commit, Save
from ckpt_client.save.metrics import given_metrics
from ckpt_client.save.turn import staging_overlaps
from ckpt_client.step_url import parse_step_url
from ckpt_client.store import Store
from ckpt_jax import args as args_lib
from ckpt_jax import state as states
from ckpt_jax.args import Composite, StandardRestore, StandardSave

State = TypeVar("State")
Metrics = Mapping[str, SupportsFloat]
BestFn = Callable[[Mapping[str, float]], float]
"""From what a save was given as `metrics`."""
BEST: Final = "best_fn"
"""The metric of a step that `best_fn` gave."""


class CheckpointManager:
    """The checkpoints of one run, with the calls of Orbax's manager. Saving goes on beside the
    training. Use it in a `with`, or close it.

    directory: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store` (else in the store
        that $CKPT_STORE names).
    save_interval_steps: `save` saves only steps that this divides, unless forced.
    check_finite: refuse a state with an array that holds NaN or infinity, and name its path.
    staging: `copy`, or `overlap` as in `ckpt_jax.save`: `save` returns before the state is copied;
        call `wait_until_staged` before a step that donates it.
    max_to_keep: how many steps of the run stay: the newest ones, or with `best_fn` the best ones,
        besides steps that were saved without metrics, and the newest. The first `save` sets this
        rule in the store, in place of earlier ones of `ckpt keep`. None: the store's rules stay.
    keep_period: with `max_to_keep`, steps that this divides stay as well. Without `max_to_keep` the
        manager sets no rule.
    best_fn: takes the `metrics` of a save and returns one number.
    best_mode: whether the `max` or the `min` of these numbers is the best.
    """

    def __init__(
        self,
        directory: str,
        *,
        store: Store | None = None,
        save_interval_steps: int = 1,
        check_finite: bool = False,
        staging: str = "copy",
        max_to_keep: int | None = None,
        keep_period: int | None = None,
        best_fn: BestFn | None = None,
        best_mode: Literal["max", "min"] = "max",
    ) -> None:
        if best_mode not in ("max", "min"):
            raise Refused(f"best_mode={best_mode!r}: max or min")
        staging_overlaps(staging)  # Refuses what is neither.
        if max_to_keep is not None and max_to_keep < 1:
            raise Refused(f"max_to_keep={max_to_keep}: a whole number from 1, or None for all")
        if keep_period is not None and keep_period < 1:
            raise Refused(f"keep_period={keep_period}: a whole number from 1, or None")
        place = parse_step_url(directory)
        self.directory = directory
        self._run = place.run
        self._store = store if store is not None else process_store(place.store)
        self._interval = save_interval_steps
        self._check_finite = check_finite
        self._staging = staging
        self._max_to_keep = max_to_keep
        self._keep_period = keep_period
        self._best_fn = best_fn
        self._best_mode: Literal["max", "min"] = best_mode
        self._rules_are_said = max_to_keep is None
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
        """Whether `save` would save the step: it is due, and newer than all that were saved."""
        newest = self._saves[-1].step if self._saves else self.latest_step()
        return step % self._interval == 0 and (newest is None or step > newest)

    def prepare(self, state: object) -> Future[None]:
        """Make this process ready for saves of such a state: see `ckpt_jax.prepare`."""
        return states.prepare(self._store, state)

    def save(
        self,
        step: int,
        state: object = None,
        *,
        args: StandardSave | Composite | None = None,
        force: bool = False,
        metrics: Metrics | None = None,
    ) -> bool:
        """Copy the state (see `ckpt_jax.save`); you may change it when this returns, unless staging
        is `overlap`. Returns False, and saves nothing, if the step is neither due nor forced.

        `args`: in place of `state`, the state as Orbax takes it:
            `ckpt_jax.args.StandardSave(state)`, or a Composite of these.
        metrics: numbers by name, for `best_fn` and for people; the lowest process's count.

        Raises Refused, with its path, for what cannot be stored, before anything is staged; and the
        error of an earlier save. Of several processes, one may hear of that error before the others
        do, so then this save is under way all the same.
        """
        state = _one_of(state, args, args_lib.state_of)
        if not force and not self.should_save(step):
            return False
        told = self._told(metrics)
        self._say_rules()
        alone = jax.process_count() == 1
        if alone:
            self.check_for_errors()
        self._saves.append(
            states.save(
                self._store, self._run, step, state,
                check_finite=self._check_finite, metrics=told, staging=self._staging,
            )
        )  # fmt: skip
        if not alone:
            self.check_for_errors()
        return True

    @overload
    def restore(self, step: int | None, like: State) -> State: ...

    @overload
    def restore(
        self, step: int | None, *, args: StandardRestore | Composite | None = None
    ) -> object: ...

    def restore(
        self,
        step: int | None,
        like: object = None,
        *,
        args: StandardRestore | Composite | None = None,
    ) -> object:
        """A new state like `like`, of that step, or of the newest. See `ckpt_jax.load`, also for
        what this raises.

        `args`: in place of `like`, the request as Orbax takes it:
            `ckpt_jax.args.StandardRestore(like)`, or a Composite of these, which gives a Composite
            of their states. Only the items that a Composite names are read.

        Without either, the whole state in dicts, lists and tuples, its arrays as numpy's. Raises
        Refused if both are given.
        """
        like = _one_of(like, args, args_lib.like_of)
        if step is None and self.latest_step() is None:
            raise NotFound(f"{self._run} has no committed checkpoint")
        if like is None:
            return states.load_whole(self._store, self._run, step)
        found = states.load(self._store, self._run, step, like)
        if isinstance(args, Composite):
            assert isinstance(found, dict)
            return Composite(**found)
        return found

    def item_metadata(self, step: int) -> object:
        """What a step holds: its tree in dicts, lists and tuples, with a jax.ShapeDtypeStruct,
        without a sharding, for each array, and plain values as they are; for a Composite a dict by
        item. No array is read. Raises NotFound, Unavailable, Lost.
        """
        return states.shapes(self._store, self._run, step)

    def latest_step(self) -> int | None:
        """The newest committed step; None without one."""
        return self._store.latest(self._run)

    def all_steps(self) -> list[int]:
        """Committed steps, ascending."""
        return [commit.step for commit in self._store.steps(self._run)]

    def best_step(self) -> int | None:
        """The committed step with the best number of `best_fn`, the latest of equal ones; the
        newest step if no step has a number.
        """
        sign = 1 if self._best_mode == "max" else -1
        known = {
            commit.step: sign * commit.metrics[BEST]
            for commit in self._store.steps(self._run)
            if BEST in commit.metrics
        }
        if not known:
            return self.latest_step()
        return max(known, key=lambda step: (known[step], step))

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics that the step's save was given; None if there were none. Raises NotFound."""
        for commit in self._store.steps(self._run):
            if commit.step == step:
                found = {name: value for name, value in commit.metrics.items() if name != BEST}
                return found or None
        raise NotFound(f"{self._run}@{step} has no committed checkpoint")

    def delete(self, step: int) -> None:
        """As `Store.delete`. Only one of several processes calls it."""
        self._store.delete(self._run, step)

    def reload(self) -> None:
        """Does nothing: the store is asked each time, and nothing is cached."""

    def _told(self, metrics: Metrics | None) -> dict[str, float]:
        """With the number that the store goes by."""
        told = given_metrics(metrics)
        if not told and self._best_fn is not None and self._rules_take_unjudged:
            raise Refused(
                "a save without metrics, beside best_fn, max_to_keep and keep_period",
                hint="give metrics, or leave out keep_period: the store could not keep the step",
            )
        if BEST in told:
            raise Refused(f"metric {BEST!r} is what best_fn gives", hint="give it another name")
        if told and self._best_fn is not None:
            told[BEST] = self._best_fn(told)
        return told

    @property
    def _rules_take_unjudged(self) -> bool:
        """Orbax keeps steps without metrics beside all rules, the store beside `best` alone."""
        return self._max_to_keep is not None and self._keep_period is not None

    def _say_rules(self) -> None:
        if self._rules_are_said:
            return
        count = self._max_to_keep
        assert count is not None
        if self._best_fn is None:
            self._store.keep(self._run, last=count, every=self._keep_period)
        else:
            self._store.keep(
                self._run, every=self._keep_period, best=(BEST, count), mode=self._best_mode
            )
        self._rules_are_said = True

    def wait_until_staged(self) -> None:
        """Wait until the saved state may be donated, deleted or changed: with `staging="copy"` at
        once. Raises nothing: the error of a failed save is raised where the save is waited for.
        """
        for save in self._saves:
            save.staged.wait()

    def wait_until_finished(self) -> list[Commit]:
        """Wait until all saves under way are committed. Raises the first error."""
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
        """Raise, once, the error of a save that has failed meanwhile. Does not wait."""
        try:
            self._store.check_for_errors()
        finally:
            self._saves = [save for save in self._saves if not save.failure_told]

    def close(self) -> None:
        """Wait for all saves. The store stays open for others."""
        self.wait_until_finished()


def _one_of(given: object, args: object, meant: Callable[[object], object]) -> object:
    """What is given by itself, or by `args`. Raises Refused for both, and for args that come
    without their keyword, as Orbax does.
    """
    if isinstance(given, StandardSave | StandardRestore | Composite):
        raise Refused("ckpt_jax.args without args=", hint=f"args={type(given).__name__}(...)")
    if args is None:
        return given
    if given is not None:
        raise Refused("a state and args=: one of them")
    return meant(args)
