"""What keeps a coordinator awake: an attempt, a question, an entry that is not durable. What does
not: renewals of leases, and what people ask. Leases of targets end in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.base.limits import LEASE_US, RENEW_US, STANDSTILL_US
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.targets import RenewLease
from ckpt.protocol.coordinator.asking import Asking
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.cluster.vouching import Vouching
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.events import Received, Ticked
from ckpt.protocol.resting import REST_US, Resting

_QUIET = (RenewLease, Ask)


class CoordinatorRest:
    """I know when the next Ticked is due."""

    def __init__(
        self, desk: Desk, members: Membership, vouching: Vouching, book: AttemptBook, asking: Asking
    ) -> None:
        self._desk = desk
        self._members = members
        self._vouching = vouching
        self._book = book
        self._asking = asking
        self._resting = Resting()

    @property
    def stirred_us(self) -> int:
        """When something happened last."""
        return self._resting.stirred_us

    def saw(self, event: object, actions: Sequence[object]) -> None:
        """The event was handled, with these actions."""
        match event:
            case Ticked():
                is_quiet = not actions
            case Received():
                is_quiet = isinstance(event.message, _QUIET) and len(actions) <= 1
            case _:
                is_quiet = False
        if not is_quiet:
            self._resting.stirred_us = self._desk.now_us

    def rest_us(self, tick_us: int) -> int:
        """From the last event to the next Ticked, at least `tick_us`."""
        if not self._vouching.serves or self._desk.awaits:
            return tick_us
        if self._book.open() or self._asking.waits:
            return tick_us
        return self._resting.rest_us(self._desk.now_us, tick_us, self._members.due_us())


assert RENEW_US + REST_US + STANDSTILL_US < LEASE_US, "who rests notices late that it stood still"
