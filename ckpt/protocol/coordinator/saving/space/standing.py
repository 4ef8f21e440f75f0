"""Space that waits for a stager's next save of the same shape.

    put --the next save of this stager, of this shape--> the save's
     |
     `-- another stager or shape, a target left, no space otherwise, nobody came --> goes back

Invariants: one allotment stands for each rank of a run, that of its latest shape, so that a state
that grows with every save leaves no trail; it is given to nobody but the stager that heard of it,
since that one may claim it from the next coordinator (claiming.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckpt.base.ids import Rank, RunName, TargetId
from ckpt.format.layout import Layout
from ckpt.format.messages.saving import Place
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.events import Session

STANDING_LIFE_US = 600_000_000
"""An allotment that waits for its next save for longer than this gives its space back."""

StandingKey = tuple[RunName, Rank]


class StandingSpace:
    """I hold what stands, and nobody else does."""

    def __init__(
        self, desk: Desk, members: Membership, release: Callable[[Allotment], None]
    ) -> None:
        self._desk = desk
        self._members = members
        self._release = release
        #: By the rank whose next save it waits for.
        self._standing: dict[StandingKey, Allotment] = {}

    def all(self) -> list[Allotment]:
        """In no order that means anything."""
        return list(self._standing.values())

    def has(self, key: StandingKey, session: Session | None, layout: Layout) -> bool:
        """Whether the next save of this stager and shape needs ask nothing."""
        known = self._standing.get(key)
        return (
            known is not None
            and known.layout == layout
            and (known.heard_by is None or known.heard_by == session)
        )

    def put(self, key: StandingKey, allotment: Allotment) -> None:
        """Keep this allotment from now on; the earlier one goes back."""
        known = self._standing.pop(key, None)
        if known is not None:
            self._release(known)
        self._standing[key] = allotment

    def heard_again(self, key: StandingKey, session: Session, places: Iterable[Place]) -> bool:
        """The stager comes in another session, and says what stands; False when that does not."""
        known = self._standing.get(key)
        if known is None or known.heard_by is None:
            return False
        held = {(place.target, place.reservation) for place in known.places}
        if held != {(place.target, place.reservation) for place in places}:
            return False
        known.heard_by = session
        return True

    def take(self, key: StandingKey, session: Session | None, layout: Layout) -> Allotment | None:
        """Take what stands for a save that begins; what is not for it goes back."""
        fits = self.has(key, session, layout)
        standing = self._standing.pop(key, None)
        if standing is None:
            return None
        if fits and self._is_good(standing):
            return standing
        self._release(standing)
        return None

    def drop_all(self) -> bool:
        """Give it all back; True when there was any."""
        had = bool(self._standing)
        for key in list(self._standing):
            self._drop(key)
        return had

    def drop_on(
        self, targets: Iterable[TargetId], size: int, bytes_max: Callable[[], int]
    ) -> TargetId | None:
        """Give back what stands on one of these, the longest idle first, until that has so many
        bytes, and more of it as long as that is at most `bytes_max` everywhere; None, and nothing
        goes back, where no target would have them.
        """
        idle = sorted(self._standing.items(), key=lambda item: (item[1].idle_since_us, item[0]))
        for id in targets:
            left = max(1, size - self._members.targets[id].bytes_free)
            going = []
            for key, allotment in idle:
                held = sum(place.target == id for place in allotment.places)
                if held and left > 0:
                    going.append(key)
                    left -= held * allotment.file_bytes
            if going and left <= 0:
                self._drop_with_more(going, [key for key, _ in idle], bytes_max())
                return id
        return None

    def _drop_with_more(
        self, first: list[StandingKey], idle: list[StandingKey], bytes_max: int
    ) -> None:
        going = dict.fromkeys(first)
        given = sum(self._bytes_of(key) for key in going)
        for key in idle:
            if key not in going:
                given += self._bytes_of(key)
                if given > bytes_max:
                    break
                going[key] = None
        for key in going:
            self._drop(key)

    def _bytes_of(self, key: StandingKey) -> int:
        """On all targets."""
        allotment = self._standing[key]
        return len(allotment.places) * allotment.file_bytes

    def _drop(self, key: StandingKey) -> None:
        allotment = self._standing.pop(key)
        for held in allotment.places:
            # An estimate until the target's next renewal; it decides itself.
            target = self._members.targets[held.target]
            target.bytes_free += allotment.file_bytes
            target.device_bytes_free += allotment.file_bytes
        self._release(allotment)

    def target_left(self, target: TargetId) -> None:
        """Plan again what stands on a target that left."""
        for key, allotment in list(self._standing.items()):
            if any(place.target == target for place in allotment.places):
                self._release(self._standing.pop(key))

    def tick(self) -> None:
        """Give back what nobody came for."""
        now = self._desk.now_us
        for key, allotment in list(self._standing.items()):
            if now - allotment.idle_since_us >= STANDING_LIFE_US:
                self._release(self._standing.pop(key))

    def _is_good(self, allotment: Allotment) -> bool:
        targets = self._members.targets
        return all(
            place.target in targets
            and targets[place.target].session is not None
            and targets[place.target].boot == place.boot
            and not targets[place.target].is_failing
            for place in allotment.places
        )
