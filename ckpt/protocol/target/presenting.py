"""What a coordinator hears of this target: who it is when it comes, how it does from then on; and
how long nothing is to be said or done.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from ckpt.base.limits import RENEW_US
from ckpt.format.messages.targets import LeaseRenewed, RegisterTarget, RenewLease, ScrubReport
from ckpt.protocol.events import Received, Send, Ticked
from ckpt.protocol.resting import Resting
from ckpt.protocol.target.at_rest.scrub import Scrub
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.disk_events import SpaceMeasured
from ckpt.protocol.target.notes.catalog_note import CatalogNote
from ckpt.protocol.target.notes.map_note import MapNote
from ckpt.protocol.target.reading.reads import Reads
from ckpt.protocol.target.space import Reservations, Space


class Presenting:
    """I say it, each part only when it is news. Of one session at a time."""

    def __init__(
        self, core: Core, space: Space, reservations: Reservations, note: CatalogNote, map: MapNote,
        scrub: Scrub,
    ) -> None:  # fmt: skip
        self._core = core
        self._space = space
        self._reservations = reservations
        self._note = note
        self._map = map
        self._scrub = scrub
        self._renewed_us = 0
        #: The counters that move in a burst, as they were at that renewal and when I was last asked
        #: whether one is due.
        self._told = self._seen = (0, 0, 0)
        #: When nothing had moved since I was asked before.
        self._still_us = 0
        #: Whether the present session has heard that the device fails.
        self._told_failing = False
        #: What it has heard of the scrub.
        self._told_scrub: ScrubReport | None = None

    @property
    def has_turned(self) -> bool:
        """The device fails, or is well again, and the coordinator has not heard it."""
        return self._core.device.is_failing is not self._told_failing

    def registration(self, term: int, coordinator: bytes, needs: int) -> RegisterTarget:
        """The first word on a session.

        term, coordinator: the highest that is durable, and whose it is.
        needs: which protocol one has to speak here.
        """
        identity, space = self._core.identity, self._space
        self._told_scrub = self._scrub.report
        return RegisterTarget(
            target=identity.target,
            boot=identity.boot,
            address=identity.address,
            unix=identity.unix,
            domain=identity.domain,
            directory=identity.directory,
            pid=identity.pid,
            bytes_total=space.bytes_total,
            bytes_free=max(0, space.available),
            bytes_used=self._core.bytes_used,
            term_seen=term,
            reservations=self._reservations.standing,
            device_bytes_free=max(0, space.device_available),
            catalog=self._note.stored,
            incarnation=identity.incarnation,
            place=identity.place,
            coordinator=coordinator,
            wire=identity.wire,
            scrub=self._told_scrub,
            map=self._map.digest,
            protocol=needs,
        )

    def begin_lease(self) -> None:
        """The session was heard: it lasts for a lease from here on."""
        self._renewed_us = self._core.now_us

    def taken_in(self) -> None:
        """The session has heard nothing of the device."""
        self._told_failing = False
        if not self.is_overdue():
            self._renewed_us = self._core.now_us

    def is_overdue(self) -> bool:
        """Whether it is longer than RENEW_US since the lease began, or was renewed."""
        return self._core.now_us - self._renewed_us >= RENEW_US

    @property
    def due_us(self) -> int:
        """When the next renewal is, while nothing moves."""
        return self._renewed_us + RENEW_US

    def renewal_is_due(self) -> bool:
        """Each second; and what people see of a burst is sent when it begins, each time it has
        lasted twice as long, and when it ends. That the device fails is sent at once.
        """
        now, counters = self._core.now_us, self._core.counters
        if self.has_turned:
            return True
        moved = counters.fragments, counters.bytes_given, counters.columns_verified
        if moved == self._seen:
            self._still_us = now
        self._seen = moved
        patience_us = RENEW_US if moved == self._told else (now - self._still_us) // 2
        return now - self._renewed_us >= min(RENEW_US, patience_us)

    def renewal(self) -> RenewLease:
        """What has changed since the last word."""
        self._renewed_us, self._told = self._core.now_us, self._seen
        device, scrub = self._core.device, self._scrub.report
        self._told_failing = device.is_failing
        self._space.count()
        renew = RenewLease(
            target=self._core.identity.target,
            boot=self._core.identity.boot,
            bytes_free=max(0, self._space.available),
            bytes_used=self._core.bytes_used,
            counters=self._core.counters.as_dict(),
            device_bytes_free=max(0, self._space.device_available),
            device=device.report or UNSET,
            scrub=UNSET if scrub == self._told_scrub else scrub,
        )
        self._told_scrub = scrub
        return renew


class TargetRest:
    """I know when the next Ticked is due. Streams, readers, operations of the disk and a scrub keep
    a target awake; its lease is renewed in time.
    """

    def __init__(self, core: Core, reads: Reads, scrub: Scrub, presenting: Presenting) -> None:
        self._core = core
        self._reads = reads
        self._scrub = scrub
        self._presenting = presenting
        self._resting = Resting()

    @property
    def stirred_us(self) -> int:
        """When something happened last."""
        return self._resting.stirred_us

    def saw(self, event: object, actions: Sequence[object]) -> None:
        """The event was handled, with these actions."""
        match event:
            case Ticked() | SpaceMeasured():
                is_quiet = all(map(_is_renewal, actions))
            case Received(message=LeaseRenewed()):
                is_quiet = not actions
            case _:
                is_quiet = False
        if not is_quiet:
            self._resting.stirred_us = self._core.now_us

    def rest_us(self, tick_us: int) -> int:
        """From the last event to the next Ticked, at least `tick_us`."""
        core = self._core
        is_busy = core.operations_open or core.counters.streams or not self._reads.is_idle
        if is_busy or self._scrub.is_at_work:
            return tick_us
        return self._resting.rest_us(core.now_us, tick_us, self._presenting.due_us)


def _is_renewal(action: object) -> bool:
    return isinstance(action, Send) and isinstance(action.message, RenewLease)
