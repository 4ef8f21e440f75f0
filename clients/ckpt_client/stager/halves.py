"""Which halves of the arena have memory, how large they may become, and which is being made.

Memory is made on a worker thread; until it is there a granted save waits. The cap counts both
halves: free memory is given up when another half needs the room, held memory never is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ckpt.base.units import align_up
from ckpt_client.stager.arena import HALF_UNIT_BYTES, Half, drop_half, half_size


@dataclass(slots=True)
class HalfSlot:
    """One half: its memory, who holds it, and what is being made for it."""

    memory: Half | None = None
    held: bool = False
    """Granted to a save that has not ended."""
    making_bytes: int = 0
    """Size of the memory that a worker is making; 0 when none is."""
    lent: bool = False
    """A reader has it mapped, who verified it once: it may never change again."""
    serial: int = 0
    """Grows with each new memory: what lay in an older one is not in this."""

    @property
    def size(self) -> int:
        return self.memory.size if self.memory is not None else 0

    @property
    def claimed_bytes(self) -> int:
        """What counts against the cap and cannot be given up now."""
        return max(self.size if self.held else 0, self.making_bytes)


@dataclass(slots=True)
class Halves:
    """I decide sizes.

    I expect `installed` for each size that `plan` returns; I never call a worker myself.
    """

    bytes_max: int
    on_drop: Callable[[Half], None]
    """Hears of memory before it is given up."""
    slots: list[HalfSlot] = field(default_factory=lambda: [HalfSlot(), HalfSlot()])

    def fits_ever(self, half_bytes: int) -> bool:
        """Whether the cap allows one half of this size."""
        return align_up(max(half_bytes, 1), HALF_UNIT_BYTES) <= self.bytes_max

    def may_fit(self, half_bytes: int) -> bool:
        """The cap does not forbid one more half of this size beside those that are held.

        Also true while both are held: whether one is free is not a question of bytes.
        """
        claimed = sorted(slot.claimed_bytes for slot in self.slots if slot.held)
        if len(claimed) == len(self.slots):
            claimed.pop()  # The next save gets the half that is released first, whichever that is.
        return sum(claimed) + align_up(max(half_bytes, 1), HALF_UNIT_BYTES) <= self.bytes_max

    def plan(self, number: int, half_bytes: int) -> int | None:
        """The size to make for this half, or None when its memory will do or the cap forbids it.

        Free memory of other halves is given up when the cap asks for it.
        """
        others = self._others(number)
        room = self.bytes_max - sum(one.claimed_bytes for one in others)
        return self._plan(number, half_bytes, room)

    def plan_beside(self, number: int, half_bytes: int) -> int | None:
        """`plan`, and the others keep what they have."""
        others = self._others(number)
        room = self.bytes_max - sum(max(one.size, one.making_bytes) for one in others)
        return self._plan(number, half_bytes, room)

    def _plan(self, number: int, half_bytes: int, room: int) -> int | None:
        slot = self.slots[number]
        if slot.size >= half_bytes or slot.making_bytes >= half_bytes:
            return None
        size = half_size(half_bytes, slot.size)
        if size > room:
            size = align_up(half_bytes, HALF_UNIT_BYTES)
        if size > room:
            return None
        for one in self._others(number):
            if not one.held and one.size + size > self.bytes_max:
                self._drop(one)
        self._drop(slot)
        slot.making_bytes = size
        return size

    def _others(self, number: int) -> list[HalfSlot]:
        return [one for place, one in enumerate(self.slots) if place != number]

    def installed(self, number: int, memory: Half) -> None:
        """Note that the worker has made the memory."""
        slot = self.slots[number]
        slot.memory, slot.making_bytes, slot.lent = memory, 0, False
        slot.serial += 1

    def failed(self, number: int) -> None:
        """Note that the worker got no memory."""
        self.slots[number].making_bytes = 0

    def take_back(self, number: int) -> None:
        """A save gets this half: what was lent stays its readers' alone."""
        slot = self.slots[number]
        if slot.lent:
            self._drop(slot)

    def close(self) -> None:
        for slot in self.slots:
            self._drop(slot)

    def _drop(self, slot: HalfSlot) -> None:
        if slot.memory is not None:
            self.on_drop(slot.memory)
            drop_half(slot.memory)
            slot.memory, slot.lent = None, False
