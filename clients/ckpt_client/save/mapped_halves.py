"""A stager's halves of memory, as its trainer has them mapped.

Mapping gigabytes takes a moment, and a Ctrl-C may strike in it. So a descriptor is kept until its
mapping is noted, and a half whose mapping was interrupted is mapped when it is wanted: one that is
lost would fail every later save that the stager grants it to.
"""

from __future__ import annotations

import os
import time

from ckpt_client.save.copying import HalfWriter
from ckpt_client.stager.arena import map_half


class MappedHalves:
    """I belong to one StagerLink, and am used under its lock."""

    def __init__(self) -> None:
        self.made_s: dict[int, float] = {}
        """half -> how long its memory took to make and map, since the last ask."""
        self._mapped: dict[int, HalfWriter] = {}
        #: half -> (descriptor, size) of memory whose mapping is not noted yet. I close them.
        self._unmapped: dict[int, tuple[int, int]] = {}

    def take(self, half: int, descriptor: int, half_bytes: int, fault_in_s: float) -> None:
        """The stager has made this half again; the descriptor is ours from now on."""
        self._drop(half)
        self._unmapped[half] = descriptor, half_bytes
        self.made_s[half] = fault_in_s
        self.find(half)

    def find(self, half: int) -> HalfWriter | None:
        """Memory to write to; None when the stager has not sent it."""
        if half in self._unmapped:
            begun = time.monotonic()
            descriptor, half_bytes = self._unmapped[half]
            self._mapped[half] = HalfWriter(map_half(os.dup(descriptor), half_bytes).memory)
            self.made_s[half] = self.made_s.get(half, 0.0) + time.monotonic() - begun
            del self._unmapped[half]
            os.close(descriptor)
        return self._mapped.get(half)

    def all(self) -> list[HalfWriter]:
        """Those that the stager has sent."""
        found = [self.find(half) for half in (*self._mapped, *self._unmapped)]
        return [one for one in found if one is not None]

    def clear(self) -> None:
        """Forget all of them: mapped memory would outlive the stager here."""
        for half in (*self._mapped, *self._unmapped):
            self._drop(half)

    def _drop(self, half: int) -> None:
        writer = self._mapped.pop(half, None)
        if writer is not None:
            writer.release()
        descriptor, _ = self._unmapped.pop(half, (-1, 0))
        if descriptor >= 0:
            os.close(descriptor)
