"""One save's way into its stager's memory: asked for, copied into, handed over; or refused."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, Step
from ckpt_client.environment import RankPlace
from ckpt_client.save.copying import Copier
from ckpt_client.save.handle import Save
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.stager_link import StagerLink
from ckpt_client.settings import Settings
from ckpt_client.warn import warn


@dataclass(slots=True)
class Staging:
    """I stage once: `copy`, then `hand_over` or `drop`.

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
        if self.failure is not None:
            error = self.failure
            self._refuse(error.message if isinstance(error, CkptError) else repr(error))
            raise error
        if self._touch_s is None:
            self._refuse("it was skipped, because an earlier save still held the arena")
            warn(f"{self.run}@{self.step} was skipped: the arena is full")
            return Save(self.run, self.step, self.place.rank, None)
        save = Save(self.run, self.step, self.place.rank, self.stager)
        save.staged_bytes = self.packing.layout.payload_bytes
        save.fault_in_s = self.start_s + self._touch_s
        save.stall_s = max(0.0, time.monotonic() - begun_s - save.fault_in_s)
        self.stager.hand_over(
            self.number,
            save,
            self.packing,
            replicas=self.settings.replicas,
            unchanged=self.settings.unchanged,
            references=self.settings.references,
            metrics=self.metrics,
        )
        return save

    def drop(self) -> None:
        """Nothing is saved, and nobody else hears of it. Raises only what interrupted the copy."""
        self.stager.drop(self.number)
        if self.failure is not None and not isinstance(self.failure, Exception):
            raise self.failure

    def _copied(self, copier: Copier) -> float | None:
        half_bytes, policy = self.packing.layout.half_bytes, self.settings.when_full
        early = self.stager.ask_half(self.number, self.run, self.step, half_bytes, policy)
        if early is not None:
            early.write(self.packing, copier)
        granted = self.stager.wait_half(self.number)
        if granted is None:
            return None
        half, touch_s = granted
        if half is not early:
            half.write(self.packing, copier)
        return touch_s

    def _refuse(self, why: str) -> None:
        if self.place.world_size > 1:
            self.stager.refuse(self.number, self.run, self.step, why)
        else:
            self.stager.drop(self.number)
