"""A stager's halves of memory, as its trainer has them mapped.

Mapping gigabytes takes a moment, and a Ctrl-C may strike in it. So a descriptor is kept until its
mapping is noted, and a half whose mapping was interrupted is mapped when it is wanted: one that is
lost would fail every later save that the stager grants it to.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ckpt_client.save.copying import HalfWriter
from ckpt_client.stager.arena import map_half
from ckpt_client.stager.line import Received


@dataclass(frozen=True, slots=True)
class SentHalf:
    """New memory of a half, as the stager has sent it."""

    packet: Received
    """That brought it: the same one may be taken in twice, after an interrupt."""
    descriptor: int
    size: int


class MappedHalves:
    """I belong to one StagerLink, and am used under its lock."""

    def __init__(self) -> None:
        self.made_s: dict[int, float] = {}
        """half -> how long its memory took to make and map, since the last ask."""
        #: half -> its memory, and what it was mapped from, whose descriptor is closed.
        self._mapped: dict[int, tuple[HalfWriter, SentHalf]] = {}
        #: half -> memory whose mapping is not noted yet. I close its descriptor.
        self._unmapped: dict[int, SentHalf] = {}

    def take(self, half: int, sent: SentHalf, fault_in_s: float) -> None:
        """The stager has made this half again; the descriptor is ours from now on."""
        if not self._has(half, sent):
            self._drop(half)
            self._unmapped[half] = sent
            self.made_s[half] = fault_in_s
        self.find(half)

    def find(self, half: int) -> HalfWriter | None:
        """Memory to write to; None when the stager has not sent it."""
        sent = self._unmapped.get(half)
        if sent is not None:
            begun = time.monotonic()
            writer = HalfWriter(map_half(os.dup(sent.descriptor), sent.size).memory)
            self._mapped[half] = writer, sent
            self.made_s[half] = self.made_s.get(half, 0.0) + time.monotonic() - begun
            del self._unmapped[half]
            os.close(sent.descriptor)
        mapped = self._mapped.get(half)
        return None if mapped is None else mapped[0]

    def all(self) -> list[HalfWriter]:
        """Those that the stager has sent."""
        found = [self.find(half) for half in (*self._mapped, *self._unmapped)]
        return [one for one in found if one is not None]

    def clear(self) -> None:
        """Forget all of them: mapped memory would outlive the stager here."""
        for half in (*self._mapped, *self._unmapped):
            self._drop(half)

    def abandon(self) -> None:
        """In a forked child: `clear`, but what is locked stays so, for the parent."""
        self._mapped.clear()
        self.clear()

    def _has(self, half: int, sent: SentHalf) -> bool:
        mapped, unmapped = self._mapped.get(half), self._unmapped.get(half)
        known = [unmapped] if mapped is None else [unmapped, mapped[1]]
        return any(one is not None and one.packet is sent.packet for one in known)

    def _drop(self, half: int) -> None:
        mapped = self._mapped.pop(half, None)
        if mapped is not None:
            mapped[0].release()
        unmapped = self._unmapped.pop(half, None)
        if unmapped is not None:
            os.close(unmapped.descriptor)
