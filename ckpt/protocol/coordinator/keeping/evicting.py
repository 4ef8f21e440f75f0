"""Room for the next save, and for repair: what was drained goes, oldest first, between two
watermarks.

    used share of the fullest device
    0 ------------- low ===== evicting, once begun ===== high ---- full
                                                          ^ begins here, or for a save without room

A checkpoint may go when an object store holds it, verified, a worker that looked there just now has
found it, no store waits for it and nobody reads or refers to it. The newest step of each run stays,
since a restart wants it at once. When nothing may go, saves are refused before a byte is sent (P6),
with the reason and when to come again.

What goes is counted as freed until its targets have reported what they have; then devices are
looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from math import inf

from ckpt.base.ids import CheckpointId, Domain, TargetId
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.devices import device_spaces
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.policy import Watermarks

SETTLE_US = 2 * LEASE_US
"""After an eviction, until targets have dropped it and said so; one that is away is not waited
for."""
LOOK_US = US_PER_S
ROOM_RETRY_S = 2.0
DRAIN_RETRY_S = (5.0, 60.0)
"""Shortest and longest time that a refused save is asked to wait for the drain."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The answer to a save that found no room."""

    reason: str
    """Empty: nothing is drained here, and nothing is kept."""
    retry_s: float


@dataclass(frozen=True, slots=True)
class DueColumns:
    """What a checkpoint lacks, and has no place for."""

    checkpoint: CheckpointId
    committed_at_s: float
    stored: bool
    """An object store has it: nothing as new goes for it."""
    file_bytes: int


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """How much room may be made at once."""

    due: tuple[DueColumns, ...] = ()
    bytes_max: int = 0
    """More is not made again before devices are looked at again."""

    def bytes_beside(self, gone: Set[CheckpointId], committed_at_s: float) -> int:
        """What is due can use so much, when these go, the newest of them from then."""
        due = sum(
            one.file_bytes
            for one in self.due
            if one.checkpoint not in gone
            and (not one.stored or committed_at_s < one.committed_at_s)
        )
        return min(self.bytes_max, due)

    @property
    def bytes_in_all(self) -> int:
        """What is due can use so much, when no checkpoint goes for it."""
        return min(self.bytes_max, sum(one.file_bytes for one in self.due))


class Evictor:
    """I make room for saves."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        queue: DrainQueue,
        marks: Watermarks,
        deleter: Deleter,
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._queue = queue
        self._marks = marks
        self._deleter = deleter
        #: When the devices are looked at next.
        self._look_at_us = 0
        #: What was evicted last is not gone everywhere before this: until then no device is looked
        #: at again.
        self._settled_at_us = 0
        #: The most bytes that a save since the last look needed on a device and did not find.
        self._wanted_bytes = 0
        self.evicted_count = 0
        """Checkpoints that were evicted since this coordinator began."""
        self.evicted_bytes = 0

    def tick(self) -> None:
        """Evict when the fullest device is above the high mark, down to the low one."""
        now_us = self._desk.now_us
        if now_us < max(self._look_at_us, self._settled_at_us) or not self._queue.stores:
            return
        self._look_at_us = now_us + LOOK_US
        wanted, self._wanted_bytes = self._wanted_bytes, 0
        goals: dict[Domain, float] = {}  # Bytes that shall go from each device.
        for space in device_spaces(self._members.live()):
            device, used, free = space.domain, space.columns_bytes, space.free_bytes
            is_over = used > self._marks.high * (used + free)
            surplus = used - self._marks.low * (used + free) if is_over else 0.0
            payload = sum(self._payload_on(one, device) for one in self._committed())
            if payload:
                # In bytes of payload: headers, padding and manifests go along by their share.
                goals[device] = max(surplus, wanted - free) * min(1.0, payload / max(1, used))
        if not self._make_room(goals):
            self._wanted_bytes = max(self._wanted_bytes, wanted)  # Stores are being asked.

    def may_free(self, device: Domain) -> int:
        """About how many bytes on the device free themselves when a save needs the room."""
        return sum(self._payload_on(one, device) for one in self._evictable())

    @property
    def is_settling(self) -> bool:
        """What goes is not gone everywhere, as far as is known."""
        return self._desk.now_us < self._settled_at_us

    def clear(
        self, targets: Sequence[TargetId], size: int, lacking: KeptCheckpoint,
        wanted: Callable[[], RoomWanted],
    ) -> TargetId | None:  # fmt: skip
        """Let go what has so many bytes on one of these targets, for a column that is lacking, and
        more as long as that is wanted; None where nothing goes, since no target would have room for
        it then.
        """
        may_go = [one for one in self._evictable() if self._may_go_for(one, lacking)]
        best: tuple[int, int, TargetId, list[KeptCheckpoint]] | None = None
        for order, id in enumerate(targets):
            needed = max(1, size - self._members.targets[id].bytes_free)
            going = self._going(may_go, id, needed)
            if going and (best is None or (len(going), order) < best[:2]):
                best = len(going), order, id, going
        if best is None:
            return None
        going = self._with_more(best[3], may_go, wanted())
        let_go = [one for one in going if self._queue.lets_go(one.id)]
        if not {one.id for one in best[3]}.issubset(one.id for one in let_go):
            return None  # It is asked for again.
        self._evict(let_go)
        return best[2]

    def _with_more(
        self, first: Sequence[KeptCheckpoint], may_go: Sequence[KeptCheckpoint], wanted: RoomWanted
    ) -> list[KeptCheckpoint]:
        """The oldest go beside these until so much is free as what is due can use; not a byte more
        for them."""
        going = {one.id: one for one in first}
        freed = sum(map(self._freed_by, first))
        for one in may_go:
            if one.id in going:
                continue
            freed += self._freed_by(one)
            gone = {*going, one.id}
            if freed > wanted.bytes_beside(gone, one.info.committed_at_s):
                break
            going[one.id] = one
        return list(going.values())

    def _freed_by(self, one: KeptCheckpoint) -> int:
        """Bytes on all targets where something else may come."""
        staying = {target.id for target in self._members.live() if target.stays}
        return sum(
            file_bytes(placed.layout, manifest_bytes_bound(placed.layout))
            * sum(id in staying for id in placed.columns)
            for placed in (one.placement or {}).values()
        )

    def _may_go_for(self, one: KeptCheckpoint, lacking: KeptCheckpoint) -> bool:
        """For what is in a store itself nothing that is as new goes."""
        is_older = one.info.committed_at_s < lacking.info.committed_at_s
        return is_older or not self._queue.holding(lacking.id)

    def _going(
        self, may_go: Sequence[KeptCheckpoint], target: TargetId, needed: int
    ) -> list[KeptCheckpoint]:
        """The oldest ones, as many as free so much there; empty: all are too few."""
        going, left = [], needed
        for one in may_go:
            held = _file_bytes_on(one, target)
            if held:
                going.append(one)
                left -= held
            if left <= 0:
                return going
        return []

    def no_room(self, device_bytes: int) -> NoRoom:
        """The answer when a save needs so many bytes on each device and found less."""
        may_go = any(True for _ in self._evictable())
        if may_go:
            self._wanted_bytes = max(self._wanted_bytes, device_bytes)
        if may_go or self.is_settling:
            return NoRoom("room is being made from what was drained", ROOM_RETRY_S)
        backlogs = {url: len(self._queue.waiting(s)) for url, s in self._queue.stores.items()}
        waits = [f"{count} wait for {url}" for url, count in backlogs.items() if count]
        if not waits:
            return NoRoom(self._kept_text(), DRAIN_RETRY_S[0])
        reason = f"nothing may go before it is drained: {', '.join(waits)}"
        if kept := self._kept_text():
            reason = f"{reason}; {kept}"
        return NoRoom(reason, self._seconds_to_drain(device_bytes))

    def _kept_text(self) -> str:
        """What stays because somebody has said so; empty for nothing."""
        committed = list(self._committed())
        kept = sum(one.is_kept for one in committed)
        if not kept:
            return ""
        return f"{kept} of {len(committed)} checkpoints stay, since they have a name or are pinned"

    def _seconds_to_drain(self, byte_count: int) -> float:
        """At the rate of the slowest store that is at work, within DRAIN_RETRY_S."""
        stores = self._queue.stores.values()
        rates = [sum(worker.bytes_per_s for worker in store.workers.values()) for store in stores]
        slowest = min((rate for rate in rates if rate), default=float(byte_count))
        least, most = DRAIN_RETRY_S
        return min(most, max(least, byte_count / max(1.0, slowest)))

    def _make_room(self, goals: dict[Domain, float]) -> bool:
        """False when something would go that a store has to be asked for first."""
        is_done = True
        for checkpoint in self._evictable():
            held = {device: self._payload_on(checkpoint, device) for device in goals}
            if not any(held[device] and goal > 0 for device, goal in goals.items()):
                continue
            for device in goals:
                goals[device] -= held[device]
            if self._queue.lets_go(checkpoint.id):
                self._evict([checkpoint])
            else:
                is_done = False
        return is_done

    def _evict(self, going: Iterable[KeptCheckpoint]) -> None:
        self._settled_at_us = self._desk.now_us + SETTLE_US
        for checkpoint in going:
            self.evicted_count += 1
            self.evicted_bytes += checkpoint.info.payload_bytes
            self._desk.report("info", "evicted", checkpoint=str(checkpoint.id))
            self._deleter.evict(checkpoint)

    def _committed(self) -> Iterator[KeptCheckpoint]:
        return (one for one in self._checkpoints.all() if one.state is RowState.COMMITTED)

    def _evictable(self) -> Iterator[KeptCheckpoint]:
        """Oldest commit first."""
        found: list[tuple[float, KeptCheckpoint]] = []
        for run in self._checkpoints.runs():
            committed = self._checkpoints.of_line(run, RowState.COMMITTED)
            needed = self._queue.needed(run)
            for at_s, one in dated(committed)[:-1]:
                key = one.id.step, one.id.generation
                # Bytes that others refer to would not go.
                used = one.pins or one.users or one.is_kept
                if not used and key not in needed and self._queue.holding(one.id):
                    found.append((at_s, one))
        yield from (one for _, one in sorted(found, key=lambda each: (each[0], each[1].id)))

    def _payload_on(self, checkpoint: KeptCheckpoint, device: Domain) -> int:
        """About so many bytes of its payloads lie there, parity counted."""
        if checkpoint.placement is None:
            return 0
        targets = self._members.targets
        ranks = len(checkpoint.placement)
        columns = sum(
            id is not None and id in targets and targets[id].domain == device
            for placed in checkpoint.placement.values()
            for id in placed.columns
        )
        return checkpoint.info.payload_bytes * columns // (ranks * checkpoint.code.k)


def dated(line: Iterable[KeptCheckpoint]) -> list[tuple[float, KeptCheckpoint]]:
    """When each of a run's steps was committed, in their order: none after a later one, whatever
    the clocks of coordinators said.
    """
    found: list[tuple[float, KeptCheckpoint]] = []
    at_s = inf
    for one in reversed(list(line)):
        at_s = min(at_s, one.info.committed_at_s)
        found.append((at_s, one))
    return found[::-1]


def _file_bytes_on(checkpoint: KeptCheckpoint, target: TargetId) -> int:
    """So much its columns take there, as their space was reserved."""
    return sum(
        file_bytes(placed.layout, manifest_bytes_bound(placed.layout))
        for placed in (checkpoint.placement or {}).values()
        if target in placed.columns
    )
