"""Who answers people while nobody can lead? Every coordinator that stands by: why that is, and what
to do. All others are turned away, and come again until somebody leads.

A person's session is let in for as long, and ended when somebody leads.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from ckpt.aio.net.serving.server import Server
from ckpt.base.errors import Unavailable
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.coordinator.reading.answers import Check, StatusView
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView
from ckpt.protocol.events import Session

ASK_AGAIN_US: Final = US_PER_S // 5
"""How soon somebody may lead again."""
COORDINATORS: Final = "coordinators"
"""The question that People answer."""


class Informed(Protocol):
    """Who knows of the coordinators."""

    def answers(self, session: Session, request: int, message: Message) -> bool:
        """False when the message is a term's."""

    def checks(self) -> tuple[Check, ...]:
        """Of `ckpt status`."""


class House(Protocol):
    """Whose reception I am."""

    server: Server
    view: CoordinatorView

    @property
    def cluster(self) -> str:
        """The id of the cluster."""

    @property
    def known_people(self) -> Informed:
        """Who knows more."""


class Reception:
    """I am closed while `why` is empty."""

    def __init__(self, house: House) -> None:
        self.why = ""
        """Why nobody can lead, as far as is known here."""
        self._house = house
        #: Of people who came meanwhile.
        self._guests: set[Session] = set()

    def admits(self, role: Role) -> bool:
        """Whether this peer is let in; trainers and readers wait instead."""
        return bool(self.why) and role is Role.ADMIN

    def refusal(self) -> Failed:
        """The error for all others."""
        why = f": {self.why}" if self.why else ""
        text = f"no coordinator leads now{why}"
        return Failed(Unavailable.code, text, retry_after_us=ASK_AGAIN_US)

    def close(self) -> None:
        """Close: somebody leads, and whoever is here goes there."""
        self.why = ""
        guests, self._guests = self._guests, set()
        for session in guests:
            self._house.server.close_session(session, "a coordinator leads again")

    # ----------------------------------------------------------------------- sessions

    def opened(self, session: Session) -> None:
        """Note a session that was let in."""
        self._guests.add(session)

    def closed(self, session: Session) -> None:
        """Mine or not."""
        self._guests.discard(session)

    def received(self, session: Session, request: int, message: Message) -> None:
        """Handle a frame; one of another session is ignored: it belongs to a term that is over."""
        if session not in self._guests:
            return
        house = self._house
        match message:
            case Ask("status"):
                house.server.send(session, request, Answer(), msgspec.json.encode(self._status()))
            case Ask("coordinator"):
                house.server.send(session, request, Answer(), msgspec.json.encode(house.view))
            case Ask(what) if what == COORDINATORS:
                house.known_people.answers(session, request, message)
            case _:
                house.server.send(session, request, self.refusal())

    def _status(self) -> StatusView:
        """What is known without a term."""
        house = self._house
        return StatusView(
            house.cluster, house.view, "HEALTH_ERR", house.known_people.checks(), code="", term=0,
            epoch=0, targets=(), runs=(), attempts=(),
        )  # fmt: skip
