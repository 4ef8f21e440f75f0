"""Which session reads what: each pin stays until its reader is done, or its session ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.events import Session


@dataclass(frozen=True, slots=True)
class _Pin:
    session: Session
    checkpoint: KeptCheckpoint
    since_us: int


class Pins:
    """I number pins, and keep those of sessions. My owner says who is released."""

    def __init__(self) -> None:
        #: By their numbers, which are never given again.
        self._held: dict[int, _Pin] = {}
        #: Their numbers, by session.
        self._of_session: dict[Session, dict[int, None]] = {}
        self._next = 1

    def new_number(self) -> int:
        self._next += 1
        return self._next - 1

    def hold(self, session: Session, checkpoint: KeptCheckpoint, now_us: int) -> int:
        """Pin the checkpoint for a session. Returns the pin's number."""
        pin = self.new_number()
        self._held[pin] = _Pin(session, checkpoint, now_us)
        self._of_session.setdefault(session, {})[pin] = None
        checkpoint.pins.add(pin)
        return pin

    def let_go(self, pin: int) -> KeptCheckpoint:
        """End a pin. Returns the checkpoint that it held."""
        held = self._held.pop(pin)
        checkpoint, mine = held.checkpoint, self._of_session[held.session]
        del mine[pin]
        if not mine:
            del self._of_session[held.session]
        checkpoint.pins.discard(pin)
        return checkpoint

    def is_of(self, session: Session, pin: int) -> bool:
        return pin in self._held and self._held[pin].session == session

    def of_session(self, session: Session) -> list[int]:
        return list(self._of_session.get(session, ()))

    def readers(self) -> Iterator[tuple[Session, int]]:
        """Who holds a checkpoint, and since when."""
        return ((pin.session, pin.since_us) for pin in self._held.values())
