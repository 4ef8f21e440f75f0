"""One save's way into its stager's memory: asked for, copied into, handed over; or refused."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, Step
from ckpt_client.copying import Copier
from ckpt_client.environment import Place
from ckpt_client.packing import Packing
from ckpt_client.saving import Save
from ckpt_client.settings import Settings
from ckpt_client.stagers import StagerLink


@dataclass(frozen=True, slots=True)
class Staging:
    """I stage once. What I raise was told to the other ranks: they wait for nobody."""

    stager: StagerLink
    run: RunName
    step: Step
    place: Place
    number: int
    """Of the save, as `next_save_number` gave it."""
    settings: Settings

    def stage(self, packing: Packing, copier: Copier, begun_s: float, start_s: float) -> Save:
        """Copy and hand over; a Save that was skipped when the policy says so.

        begun_s: `time.monotonic()` when the training stopped. start_s: what of it was spent on the
        stager's start. Raises what refused it.
        """
        layout = packing.layout
        try:
            touch_s = self._copy(packing, copier)
        except BaseException as error:
            self._refuse(error.message if isinstance(error, CkptError) else repr(error))
            raise
        if touch_s is None:
            self._refuse("it was skipped, because an earlier save still held the arena")
            text = f"{self.run}@{self.step} was skipped: the arena is full"
            warnings.warn(text, UserWarning, stacklevel=6)
            return Save(self.run, self.step, self.place.rank, None)
        save = Save(self.run, self.step, self.place.rank, self.stager)
        save.staged_bytes = layout.payload_bytes
        save.fault_in_s = start_s + touch_s
        save.stall_s = max(0.0, time.monotonic() - begun_s - save.fault_in_s)
        self.stager.hand_over(
            self.number,
            save,
            packing,
            replicas=self.settings.replicas,
            unchanged=self.settings.unchanged,
            references=self.settings.references,
        )
        return save

    def _copy(self, packing: Packing, copier: Copier) -> float | None:
        """The seconds of first touch; None when there was no half and the save is to be skipped."""
        half_bytes, policy = packing.layout.half_bytes, self.settings.when_full
        early = self.stager.ask_half(self.number, self.run, self.step, half_bytes, policy)
        if early is not None:
            early.write(packing, copier)
        granted = self.stager.wait_half(self.number)
        if granted is None:
            return None
        half, touch_s = granted
        if half is not early:
            half.write(packing, copier)
        return touch_s

    def _refuse(self, why: str) -> None:
        if self.place.world_size > 1:
            self.stager.refuse(self.number, self.run, self.step, why)
        else:
            self.stager.drop(self.number)
