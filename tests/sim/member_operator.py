"""Someone who says how targets stand, and repeats it until there is an answer."""

from __future__ import annotations

from ckpt.base.ids import TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, TargetChanged
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.events import Send, Session
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.network import Network

LOOKS_US = 300_000


class MemberOperator:
    """I never die, and have one wish at a time."""

    name = "member operator"
    up = True
    stopped = False

    def __init__(self, clock: Clockwork, network: Network, coordinator: CoordinatorNode) -> None:
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._session: Session | None = None
        self._request = 0
        self._wish: ChangeTarget | None = None
        self.answer: TargetChanged | Failed | None = None
        """To the last wish; None while there is none."""
        self._look()

    def want(self, target: TargetId, standing: str) -> None:
        self._wish, self.answer = ChangeTarget(target, standing), None

    def _look(self) -> None:
        self._clock.after(LOOKS_US, self._look)
        if self._wish is None or not self._coordinator.up:
            return
        if self._session is None:
            self._dial()
        if self._session is not None:
            self._request += 1
            self._network.send(Send(self._session, self._request, self._wish))

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
        """`busy` and `unavailable` are no last words."""
        final = isinstance(message, Failed) and message.code in ("refused", "not_found")
        if self._wish is not None and (final or isinstance(message, TargetChanged)):
            assert isinstance(message, Failed | TargetChanged)
            if request == self._request:
                self._wish, self.answer = None, message
