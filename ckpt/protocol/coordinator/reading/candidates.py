"""What there is to be had of a run or a step, newest first, where from, and what is said where
there is nothing.

A damaged checkpoint is to be had from an object store, for a reader that can read stores. What is
out of reach for now is to be had all the same: resolving.py says how long it is waited for.
"""

from __future__ import annotations

from ckpt.base.errors import CkptError, Lost, NotFound
from ckpt.format.messages.loading import Resolve
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.instead import instead
from ckpt.protocol.coordinator.reading.launch_round import Round
from ckpt.protocol.losses import loss_reason, loss_text


class Candidates:
    """I know what a question may be answered with, wherever its targets are."""

    def __init__(self, checkpoints: Checkpoints, drains: DrainQueue) -> None:
        self._checkpoints = checkpoints
        self._drains = drains

    def of(self, message: Resolve) -> tuple[list[KeptCheckpoint], tuple[str, ...]]:
        """Resolvable checkpoints, newest first; and damaged ones newer than the first."""
        known = self._known(message)
        good: list[KeptCheckpoint] = []
        skipped: list[str] = []
        for checkpoint in reversed(known):
            if self.is_to_be_had(checkpoint, message):
                good.append(checkpoint)
            elif not good:
                skipped.append(f"{checkpoint.id}: {loss_reason(checkpoint.id, checkpoint.reason)}")
        return good, tuple(skipped)

    def _known(self, message: Resolve) -> list[KeptCheckpoint]:
        """All that is not deleted, oldest first. What a rollback has set aside is never the newest;
        by its number its step is it only when it was not saved again since.
        """
        both = (RowState.COMMITTED, RowState.DAMAGED)
        if message.step is None:
            return self._checkpoints.of_line(message.run, *both)
        states = tuple(RowState) if message.for_repair and message.only else both
        known = self._checkpoints.of_step(message.run, message.step, *states)
        if message.only is not None:
            return known
        return [one for one in known if not one.is_aside] or known

    def is_to_be_had(self, checkpoint: KeptCheckpoint, message: Resolve) -> bool:
        """From here as far as is known, or from a store that its reader can read."""
        if checkpoint.state is RowState.DAMAGED:
            return message.stored and bool(self._drains.holding(checkpoint.id))
        needed = message.for_repair and checkpoint.is_needed
        return checkpoint.state is RowState.COMMITTED or needed

    def stores_to_read(self, chosen: KeptCheckpoint, message: Resolve) -> tuple[str, ...]:
        """Object stores to read it from instead of the tier; none when the tier has it."""
        if chosen.state is RowState.DAMAGED:
            return self._drains.holding(chosen.id)
        is_here = self._checkpoints.readable(chosen) and not message.away
        return self._drains.holding(chosen.id) if message.stored and not is_here else ()

    def check_reads_stores(self, given: Round, message: Resolve) -> None:
        """Raises Lost for a rank that can read no store, in a launch that loads from one."""
        urls = self._drains.holding(given.id)
        if given.is_readable and urls and not message.stored:
            raise Lost(
                f"{given.why_not}; the other ranks load it from {urls[0]}",
                hint=f"open with durable={urls[0]!r}",
            )

    def nothing(self, message: Resolve) -> CkptError:
        """The error for who asked, when there is none."""
        what = f"run {message.run!r}" if message.step is None else f"{message.run}@{message.step}"
        stores = self._drains.holders(message.run, message.step)
        drained = f"it is in {', '.join(stores)}: open with durable={stores[0]!r}" if stores else ""
        lost = [loss_text(one.id, one.reason) for one in reversed(self._known(message))]
        if lost:
            return Lost("; ".join(lost), hint=drained or "load an older step by its number")
        aside = self._checkpoints.of_run(message.run, RowState.COMMITTED)
        if message.step is None and aside:
            text = f"all committed checkpoints of {what} are set aside by a rollback"
            hint = (
                f"load one by its name (ckpt tag {message.run}), or bring it back: ckpt tag --help"
            )
            return NotFound(text, hint=hint)
        hint = drained or instead(self._checkpoints, message.run)
        return NotFound(f"{what} has no committed checkpoint here", hint=hint)
