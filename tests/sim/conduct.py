"""How a process behaves at each step, whatever it keeps in mind: what it says, to whom, how often.

    nothing goes to a session that ended long ago
    who was told that its request failed hears no more of it, until it asks again
    no batch of actions says the same twice, but for questions that came twice

One watcher for each incarnation of a process; it is told every event and what followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ckpt.format.messages.hello import Failed
from ckpt.protocol.events import CloseSession, Received, Send, Session, SessionClosed
from tests.sim.oracles import Violation

FORGOTTEN_US = 10_000_000
"""What was asked when a session ended may still be answered: it waits for a disk, or for targets
that come back."""


class Conduct:
    """I raise Violation at the first step that breaks a rule."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.slowest = 1
        """What its disk was slower by, at worst: answers that wait for it come so much later."""

        #: Sessions that have ended, and when.
        self._ended_us: dict[Session, int] = {}
        #: How often each request came; the network may bring one twice.
        self._heard: Counter[tuple[Session, int]] = Counter()
        self._now_us = 0
        #: Requests that were answered with a failure and not asked again.
        self._failed: set[tuple[Session, int]] = set()
        #: How often each request was answered; one that came twice may be answered in two ways.
        self._answered: Counter[tuple[Session, int]] = Counter()

    def step(self, event: object, actions: Sequence[object]) -> None:
        """An event, and all that followed from it."""
        kind = type(event)
        self._now_us = event.now_us
        if kind is SessionClosed:
            self._end(event.session)
        elif kind is Received:
            self._heard[event.session, event.request] += 1
            self._failed.discard((event.session, event.request))
        said: list[tuple[Session, int, object, object]] = []
        for action in actions:
            kind = type(action)
            if kind is Send:
                self._says(action)
                said.append((action.session, action.request, action.message, action.bulk))
            elif kind is CloseSession:
                self._end(action.session)
        if len(said) > 1:
            self._check_once(said, event)

    def _says(self, action: Send) -> None:
        told = type(action.message).__name__
        ended_us = self._ended_us.get(action.session, self._now_us)
        if self._now_us - ended_us > FORGOTTEN_US * self.slowest:
            raise Violation(f"{self._name} says {told} to a session that has ended long ago")
        request = action.session, action.request
        if request in self._failed and self._answered[request] >= self._heard[request]:
            raise Violation(f"{self._name} says {told} to a request that it has failed")
        self._answered[request] += 1
        if type(action.message) is Failed:
            self._failed.add(request)

    def _check_once(self, said: list[tuple[Session, int, object, object]], event: object) -> None:
        for at, each in enumerate(said):
            before = said[:at].count(each)
            # Questions of a session that has ended are forgotten; nobody hears these answers.
            hears = each[0] not in self._ended_us
            if hears and before and before >= self._heard[each[0], each[1]]:
                raise Violation(f"{self._name} says {each[2]} twice, at {event}")

    def _end(self, session: Session) -> None:
        self._ended_us.setdefault(session, self._now_us)
        self._failed = {request for request in self._failed if request[0] != session}
        for request in [request for request in self._heard if request[0] == session]:
            del self._heard[request], self._answered[request]
