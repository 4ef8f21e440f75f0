"""Does anybody save or load now? Then repair makes way.

A save is under way from the first payload that a rank hands over until all that were handed over
are certified; a load while its reader holds a pin, for LOAD_US_MAX at most: who keeps a checkpoint
open for longer reads it now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.keeping.pins import Pins
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.events import Session

LOAD_US_MAX: Final = 600 * US_PER_S


class Traffic:
    """I look at attempts and pins, as often as I am asked."""

    def __init__(self, book: AttemptBook, pins: Pins, roles: Mapping[Session, Role]) -> None:
        """`roles`: of sessions. For workers, that drain or repair, nobody makes way."""
        self._book = book
        self._pins = pins
        self._roles = roles

    def is_busy(self, now_us: int) -> bool:
        return self._is_saving() or self._is_loading(now_us)

    def _is_saving(self) -> bool:
        return any(
            not payload.certified
            for attempt in self._book.open()
            for payload in attempt.payloads.values()
        )

    def _is_loading(self, now_us: int) -> bool:
        return any(
            now_us - since_us < LOAD_US_MAX and self._roles.get(session) is not Role.DRAIN
            for session, since_us in self._pins.readers()
        )
