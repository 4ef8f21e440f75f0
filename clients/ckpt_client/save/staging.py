"""One save's way into its stager's memory: asked for, copied into, handed over; or refused.

copy, then hand_over or drop     while the training stands still
overlap                          on another thread, all of it: the training goes on
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Aborted, CkptError
from ckpt.base.ids import RunName, Step
from ckpt.base.units import US_PER_S, KiB
from ckpt_client.environment import RankPlace
from ckpt_client.save.calls import let_return
from ckpt_client.save.copying import Copier, HalfWriter
from ckpt_client.save.handle import Save
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.save.overlap import OverlapCopier
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.staged import Staged
from ckpt_client.settings import Settings
from ckpt_client.stager import wire
from ckpt_client.warn import warn

AHEAD_BYTES_MIN: Final = 64 * KiB
"""Smallest declaration that is read ahead: some thousand entries, several milliseconds."""


def _nothing() -> None:
    """Nobody waits."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Staging:
    """I stage once: `copy`, then `hand_over` or `drop`; `give_up` after an interrupt.

    What `hand_over` raises was sent to the other ranks: they wait for nobody.
    """

    stager: StagerLink
    run: RunName
    step: Step
    place: RankPlace
    number: int
    """Of the save, as `next_save_number` gave it."""
    settings: Settings
    start_s: float
    """What of the save's time was spent on the stager's start."""
    packing: PackingPlan
    metrics: dict[str, float]
    """What is said of the step."""
    failure: BaseException | None = None
    """What ended the copy; `hand_over` raises it."""
    is_given_up: bool = False
    """The caller knows that nothing was saved: no later save raises it."""
    #: Of a save that is staged beside the training.
    _staged: Staged | None = None
    #: Seconds that the first touch of the half took; None when there was none: the save is skipped.
    _touch_s: float | None = None

    def copy(self, copier: Copier) -> None:
        """Ask for memory and copy into it. Raises nothing: see `failure`."""
        try:
            self._touch_s = self._copied(copier)
        except BaseException as failure:  # A Ctrl-C too.
            self.failure = failure

    def hand_over(self, begun_s: float) -> Save:
        """From here on it is the stager's; a Save that was skipped when the policy says so.

        begun_s: `time.monotonic()` when the training stopped. Raises what refused it.
        """
        save = self._save()
        if self._touch_s is not None:
            save.fault_in_s += self._touch_s
        save.stall_s = max(0.0, time.monotonic() - begun_s - save.fault_in_s)
        self._end(save)
        return save

    def overlap(
        self, copier: OverlapCopier, begun_s: float, run: Callable[[Callable[[], None]], None]
    ) -> Save:
        """`copy` and `hand_over` on the thread of `run`. What refuses it ends the Save."""
        save = self._save()
        save.staged = staged = self._staged = Staged(copier.follow)
        caller = threading.current_thread()

        def beside() -> None:
            try:
                self._touch_s = self._copied(copier, staged.note_queued)
                let_return(caller, lambda: staged.is_met(caller))
                self._refuse_changed(copier)
            except BaseException as failure:
                self.failure = self._explained(failure, copier)
            try:
                self._end(save)
            except CkptError as error:
                self._note_failed(save, error)
            except BaseException as error:
                self._note_failed(save, Aborted(f"{self.run}@{self.step}: {error!r}"))
            finally:
                staged.note_over()

        run(beside)
        save.stall_s = max(0.0, time.monotonic() - begun_s - save.fault_in_s)
        return save

    def give_up(self) -> None:
        """The call that was to return the Save was interrupted: its caller may change the state
        from now on, so only what is handed over already is saved.
        """
        if self._staged is None:
            self.stager.give_back(self.number, "the save was interrupted")
            return
        if self.failure is None:
            self.failure = Aborted(f"{self.run}@{self.step}: the call that saved was interrupted")
        self.is_given_up = True
        self._staged.note_over()

    def drop(self) -> None:
        """Nothing is saved, and nobody else hears of it. Raises only what interrupted the copy."""
        self.stager.drop(self.number)
        error, self.failure = self.failure, None
        if error is not None and not isinstance(error, Exception):
            raise error

    def _save(self) -> Save:
        save = Save(self.run, self.step, self.place.rank, self.stager)
        save.staged_bytes = self.packing.layout.payload_bytes
        save.fault_in_s = self.start_s
        return save

    def _note_failed(self, save: Save, error: CkptError) -> None:
        if self.is_given_up:
            save.mark_told()
        self.stager.note_failed(save, error)

    def _end(self, save: Save) -> None:
        """Hand the copied save over, or let the others hear why not, and raise that."""
        error = self.failure
        if error is not None:
            self._refuse(error.message if isinstance(error, CkptError) else repr(error))
            self.failure = None  # Its traceback holds us.
            raise error
        if self._touch_s is None:
            self._refuse("it was skipped, because an earlier save still held the arena")
            warn(f"{self.run}@{self.step} was skipped: the arena is full")
            save.skip()
            return
        layout, settings = self.packing.layout, self.settings
        message = wire.HandOver(
            save=self.number,
            payload_bytes=layout.payload_bytes,
            document_bytes=len(self.packing.document),
            declaration_offset=layout.declaration_offset,
            declaration_bytes=len(layout.declaration),
            replicas=settings.replicas,
            stall_us=int(save.stall_s * US_PER_S),
            fault_in_us=int(save.fault_in_s * US_PER_S),
            unchanged=settings.unchanged,
            references=settings.references,
            metrics=self.metrics,
        )
        self.stager.hand_over(save, message)

    def _copied(self, copier: Copier, on_queued: Callable[[], None] = _nothing) -> float | None:
        """Ask for memory and copy into it: the seconds that its first touch took, None when the
        save is skipped. on_queued: called when all is copied, or queued on a device.
        """
        try:
            return self._copied_into_half(copier, on_queued)
        except BaseException:
            # The half is another save's next: nothing may be on its way into it.
            with suppress(CkptError):
                copier.finish()
            raise

    def _copied_into_half(self, copier: Copier, on_queued: Callable[[], None]) -> float | None:
        half_bytes, policy = self.packing.layout.half_bytes, self.settings.when_full
        early = self.stager.ask_half(self.number, self.run, self.step, half_bytes, policy, self)
        if early is not None:
            self._write(early, copier)
        granted = self.stager.wait_half(self.number)
        if granted is None:
            copier.finish()
            return None
        half, touch_s = granted
        if half is not early:
            self._write(half, copier)
        on_queued()
        copier.finish()
        half.check_finite(self.packing)
        return touch_s

    def _write(self, half: HalfWriter, copier: Copier) -> None:
        """The stager reads a large declaration while the rest is copied."""
        layout = self.packing.layout
        is_new, length = half.declare(layout), len(layout.declaration)
        if is_new and length >= AHEAD_BYTES_MIN:
            self.stager.tell(wire.Declared(self.number, layout.declaration_offset, length))
        half.write(self.packing, copier)

    def _explained(self, failure: BaseException, copier: OverlapCopier) -> BaseException:
        """What ended the copy: a change of the state, where it stumbled over one."""
        if isinstance(failure, CkptError) or not isinstance(failure, Exception):
            return failure
        try:
            self._refuse_changed(copier)
        except Exception as cause:
            return cause if isinstance(cause, CkptError) else failure
        return failure

    def _refuse_changed(self, copier: OverlapCopier) -> None:
        """A torn state is no checkpoint."""
        changed = [self.packing.layout.names[leaf] for leaf in copier.changed()]
        if changed:
            others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise Aborted(
                f"{changed[0]}{others} changed while rank {self.place.rank} staged it",
                hint="let ckpt_torch.guard(optimizer), or save.staged.wait(), come before the "
                'change, or save with staging="copy"',
            )

    def _refuse(self, why: str) -> None:
        if self.place.world_size > 1:
            self.stager.refuse(self.number, self.run, self.step, why)
        else:
            self.stager.drop(self.number)
