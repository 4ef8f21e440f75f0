"""Someone who looks at the status now and then. When a directory asks for the place of a target
that is away, as an emptied one does, they say that it is the target from now on.
"""

from __future__ import annotations

from ckpt.format.messages import Message
from ckpt.format.messages.asking import ReplaceTarget
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Send, Session
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.network import Network

LOOKS_US = 100_000


class OperatorNode:
    """I never die, and repeat what was not answered."""

    name = "operator"
    up = True
    stopped = False

    def __init__(self, clock: Clockwork, network: Network, coordinator: CoordinatorNode) -> None:
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._session: Session | None = None
        self._request = 0

    def look(self) -> None:
        self._clock.after(LOOKS_US, self.look)
        if not self._coordinator.up:
            return
        asking = {
            claim.target: claim.incarnation
            for claim in self._coordinator.machine.members.claims()
            if claim.replaces
        }
        if asking and self._session is None:
            self._dial()
        for target, incarnation in asking.items() if self._session is not None else ():
            self._request += 1
            self._network.send(
                Send(self._session, self._request, ReplaceTarget(target, incarnation))
            )

    def _dial(self) -> None:
        self._network.dial(
            self, self._coordinator, Role.ADMIN, Role.COORDINATOR, lambda: None, lambda _: None
        )

    # ----------------------------------------------------------------------- network

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._session = session

    def session_closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """Whether it was done shows at the next look."""
