"""Saves under way end when too few targets are left for any of them, and nobody is about to come.

    enough live or coming --too few--> SHORT --for STRANDED_US--> what is not certified is aborted
          ^------------- enough -------'

A stager waits for a target that says nothing for as long as its peers say nothing either: their
network, or its own host, may stand still. Whether they are there only this coordinator knows, by
their leases. What all ranks have certified waits in committing.py.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.errors import Unavailable
from ckpt.base.limits import LEASE_US
from ckpt.base.units import counted
from ckpt.protocol.coordinator.saving.attempts import ABORTABLE, Attempt
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.ending import Ending

STRANDED_US: Final = 3 * LEASE_US
"""As long as a certified payload may stay below its floor. A silent target is late for another
lease before that, so a save ends five leases after its targets were heard last."""


class Stranded:
    """I look at the targets on every tick, and at saves only when too few are left."""

    def __init__(self, context: SavingContext, ending: Ending) -> None:
        self._desk = context.desk
        self._book = context.book
        self._members = context.members
        self._code = context.policy.code
        self._ending = ending
        #: Since when too few are left; None while there are enough.
        self._short_since_us: int | None = None

    def tick(self) -> None:
        """End what cannot go on."""
        members, now_us = self._members, self._desk.now_us
        floor, live = self._code.floor, members.live_count
        if live >= floor or live + len(members.coming()) >= floor:
            self._short_since_us = None
            return
        if self._short_since_us is None:
            self._short_since_us = now_us
        if now_us - self._short_since_us < STRANDED_US:
            return
        for attempt in self._book.open():
            # Files end one by one: others of their attempt may be certified.
            is_its = attempt.state in ABORTABLE and not attempt.of_members
            if is_its and not all(each.certified for each in attempt.payloads.values()):
                self._ending.abort(attempt, self._why(attempt))

    def _why(self, attempt: Attempt) -> Unavailable:
        members, code = self._members, self._code
        return Unavailable(
            f"{attempt.checkpoint}: {counted(members.live_count, 'target', 'is', 'are')} live, "
            f"{code.floor} are needed for {code}{members.silence()}{members.failing_text()}",
            hint="start the missing targets, or let those go on that are stopped (ckpt status says "
            "why each is away), and save again",
        )
