"""Someone who looks at the cluster now and then, and says what is to be.

OperatorNode: when a directory asks for the place of a target that is away, as an emptied one does,
they say that it is the target from now on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ckpt.format.messages import Message
from ckpt.format.messages.asking import ReplaceTarget
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Send, Session
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.network import Network

LOOKS_US = 100_000


class LookingOperator(ABC):
    """I never die, and repeat what was not answered."""

    up = True
    stopped = False

    def __init__(
        self, name: str, clock: Clockwork, network: Network, coordinator: CoordinatorNode
    ) -> None:
        self.name = name
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._session: Session | None = None
        #: The number of the last message.
        self._request = 0

    @abstractmethod
    def _wishes(self) -> Iterable[Message]:
        """What is to be said now. The coordinator is up."""

    def look(self) -> None:
        self._clock.after(LOOKS_US, self.look)
        wishes = list(self._wishes()) if self._coordinator.up else []
        if wishes and self._session is None:
            self._dial()
        for wish in wishes if self._session is not None else ():
            self._request += 1
            self._network.send(Send(self._session, self._request, wish))

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

    @abstractmethod
    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """An answer."""


class OperatorNode(LookingOperator):
    """I let emptied directories in."""

    def __init__(self, clock: Clockwork, network: Network, coordinator: CoordinatorNode) -> None:
        super().__init__("operator", clock, network, coordinator)

    def _wishes(self) -> Iterable[Message]:
        asking = {
            claim.target: claim.incarnation
            for claim in self._coordinator.machine.members.claims()
            if claim.replaces
        }
        return (ReplaceTarget(*claim, force=True) for claim in asking.items())

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """Whether it was done shows at the next look."""
