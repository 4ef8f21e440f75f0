"""One checkpoint on its way to one store: which of its parts are done, and who is at the others.

    free --take--> held --done--> done           all done: one worker at a time may commit
      ^              |
      +--worker left-+

A part is what the plan in the store calls an item. What is done has a receipt there, so this
only shares them out: it is lost with the coordinator, and workers report it again.

Invariants: a part is free, held by one slot or done; a slot holds at most one part; only a worker
that has a lease holds parts or commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Fenced, Refused
from ckpt.base.ids import CheckpointId
from ckpt.format.messages.drains import PartTaken, TakePart, Turn

PARTS_MAX: Final = 1 << 22
"""Of one checkpoint: more than a worker can report receipts of in one frame."""
Slot = tuple[str, int]
"""A worker and the number of its thread."""


@dataclass(slots=True)
class DrainJob:
    """I share out one checkpoint's parts."""

    checkpoint: CheckpointId
    workers: dict[str, int] = field(default_factory=dict)
    """Who has a lease, and the bytes that it wrote; in the order in which they came."""
    part_count: int | None = None
    """None until a worker has the plan."""
    done: set[int] = field(default_factory=set)
    rest_until_us: int = 0
    """It failed: nobody gets a lease until then."""

    #: Parts that nobody holds and that are not done. A heap: the lowest part goes first.
    _free: list[int] = field(default_factory=list)
    #: The part that each slot is at.
    _held: dict[Slot, int] = field(default_factory=dict)
    #: The worker that may commit; empty while there is none.
    _committer: str = ""

    @property
    def has_work(self) -> bool:
        """Whether one more worker would find something to do."""
        if self.part_count is None or self._free:
            return True
        return len(self.done) == self.part_count and not self._committer

    def begin(self, worker: str, part_count: int, done: Collection[int]) -> None:
        """Note that a worker has the plan and has looked at its receipts. Raises Fenced, or Refused
        for what is no plan, or another than the first one's.
        """
        self._check_leased(worker)
        if not 0 <= part_count <= PARTS_MAX or any(not 0 <= part < part_count for part in done):
            raise Refused(f"{self.checkpoint}: these are not among {part_count} parts")
        if self.part_count is None:
            self.part_count = part_count
            self._free = list(range(part_count))
        if part_count != self.part_count:
            raise Refused(f"{self.checkpoint} has {self.part_count} parts, not {part_count}")
        held = set(self._held.values())
        self.done |= set(done) - held
        self._free = [part for part in self._free if part not in self.done]

    def take(self, message: TakePart) -> PartTaken:
        """What the slot does next. Raises Fenced when its worker has no lease."""
        self._check_leased(message.worker)
        slot = message.worker, message.slot
        held = self._held.get(slot)
        if held is not None and held != message.done:
            return PartTaken(Turn.PART, held)
        if held is not None:
            del self._held[slot]
            self.done.add(held)
        if self._free:
            part = self._held[slot] = heapq.heappop(self._free)
            return PartTaken(Turn.PART, part)
        is_mine = self._committer in ("", message.worker)
        if len(self.done) == self.part_count and is_mine:
            self._committer = message.worker
            return PartTaken(Turn.COMMIT)
        return PartTaken(Turn.WAIT)

    def leave(self, worker: str) -> None:
        """Free what a worker held that ended, failed or fell silent."""
        self.workers.pop(worker, None)
        for slot in [slot for slot in self._held if slot[0] == worker]:
            heapq.heappush(self._free, self._held.pop(slot))
        if self._committer == worker:
            self._committer = ""

    def check(self) -> None:
        """Raises AssertionError when an invariant does not hold."""
        held = list(self._held.values())
        assert len(held) == len(set(held))
        if self.part_count is not None:
            known = sorted([*held, *self._free, *self.done])
            assert known == list(range(self.part_count)), self
        assert {worker for worker, _ in self._held} <= self.workers.keys()
        assert not self._committer or self._committer in self.workers

    def _check_leased(self, worker: str) -> None:
        if worker not in self.workers:
            raise Fenced(
                f"{self.checkpoint} is not leased to {worker}", hint="ask for a lease again"
            )
