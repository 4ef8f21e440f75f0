"""Requests that wait until they may be answered, in the order in which they came.

Thousands of ranks ask at once, hear at once that they asked in vain, and leave at once: each is
found, and goes, without a look at the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ckpt.protocol.events import Received, Session


@dataclass(frozen=True, slots=True, eq=False)
class HeldRequest:
    """One of them; two that say the same are two."""

    event: Received
    """Its bulk is a copy (`kept`)."""


SomeRequest = TypeVar("SomeRequest", bound=HeldRequest)


class HeldRequests(Generic[SomeRequest]):
    """I hold them until my owner takes them, or their session ends."""

    def __init__(self) -> None:
        #: In their order.
        self._all: dict[SomeRequest, None] = {}
        self._of_session: dict[Session, dict[SomeRequest, None]] = {}
        self.bulk_bytes = 0
        """Of all of them."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, one: SomeRequest) -> bool:
        return one in self._all

    def __iter__(self) -> Iterator[SomeRequest]:
        """As they are now: whoever goes through them may take some."""
        return iter(tuple(self._all))

    def add(self, one: SomeRequest) -> None:
        self._all[one] = None
        self._of_session.setdefault(one.event.session, {})[one] = None
        self.bulk_bytes += len(one.event.bulk)

    def take(self, one: SomeRequest) -> bool:
        """It waits no more; False when it did not."""
        if one not in self._all:
            return False
        del self._all[one]
        self.bulk_bytes -= len(one.event.bulk)
        session = one.event.session
        del self._of_session[session][one]
        if not self._of_session[session]:
            del self._of_session[session]
        return True

    def take_all(self) -> list[SomeRequest]:
        taken = list(self._all)
        for one in taken:
            self.take(one)
        return taken

    def session_closed(self, session: Session) -> None:
        """Nobody is left to be answered."""
        for one in tuple(self._of_session.get(session, ())):
            self.take(one)


def kept(event: Received) -> Received:
    """The same with a bulk of its own: the one that came is another's after the event."""
    return Received(event.now_us, event.session, event.request, event.message, bytes(event.bulk))
