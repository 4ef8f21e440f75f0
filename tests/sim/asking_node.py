"""Somebody who asks the coordinator for one change after another, whatever becomes of sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Final, Generic, TypeVar

from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Send, Session
from tests.sim.world import World

RETRY_US: Final = 100_000
Change = TypeVar("Change", bound=Message)


class Asking(ABC, Generic[Change]):
    """I dial until a session stands, and again when it breaks while there is more to ask for."""

    up, stopped = True, False

    def __init__(self, world: World, name: str, changes: int, seed: str) -> None:
        self.name = name
        self.changes = changes
        """So many more."""
        self.ends: list[str] = []
        self._clock, self._network, self._gap_us = world.clock, world.network, world.gap_us
        self._coordinator = world.coordinator
        self._rng = Random(seed)
        self._session: Session | None = None
        self._request = 0
        self._asked: Change | None = None

    @abstractmethod
    def _next(self) -> Change:
        """What is asked for now."""

    @abstractmethod
    def _heard(self, asked: Change, message: Message) -> None:
        """The answer, which ends it."""

    @property
    def waits(self) -> bool:
        """For an answer, or to ask."""
        return self._asked is not None or self.changes > 0

    def dial(self) -> None:
        if self._session is not None:
            return
        self._network.dial(
            self, self._coordinator, Role.ADMIN, Role.COORDINATOR,
            failed=lambda: self._clock.after(RETRY_US, self.dial), opened=lambda _: None,
        )  # fmt: skip

    def go_on(self) -> None:
        """There is more to ask for."""
        if self._session is None:
            self.dial()
        else:
            self._ask()

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        # Of two dials both may come through; what was asked on the first is answered there.
        if self._session is None:
            self._session = session
            self._ask()

    def session_closed(self, session: Session) -> None:
        """Whether what was asked for is done, nobody knows."""
        if session != self._session:
            return
        self._session = None
        if self._asked is not None:
            self._end("lost")
        if self.waits:
            self._clock.after(RETRY_US, self.dial)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if session != self._session or request != self._request or self._asked is None:
            return
        self._heard(self._asked, message)
        pause_us = self._rng.choice([0, 1_000, self._gap_us, 3 * self._gap_us])
        self._clock.after(pause_us, self._ask)

    def _end(self, how: str) -> None:
        self.ends.append(how)
        self._asked = None
        self._clock.changed = True

    def _ask(self) -> None:
        if self._session is None or self._asked is not None or not self.waits:
            return
        self._asked = self._next()
        self.changes -= 1
        self._request += 1
        self._network.send(Send(self._session, self._request, self._asked))
