"""Someone who deletes one step, and asks no more when the answer is lost."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.ids import RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Send, Session
from tests.sim.network import Network, Node


@dataclass(slots=True)
class AdminNode:
    """I live until I have my answer."""

    network: Network
    coordinator: Node
    run: RunName
    step: Step
    name: str = "admin"
    up: bool = True
    stopped: bool = False

    def start(self) -> None:
        self.network.dial(
            self, self.coordinator, Role.ADMIN, Role.COORDINATOR,
            failed=lambda: None, opened=self._ask,
        )  # fmt: skip

    def _ask(self, session: Session) -> None:
        self.network.send(Send(session, 1, DeleteStep(self.run, self.step)))

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        """The dial's continuation asks."""

    def session_closed(self, session: Session) -> None:
        """The answer is lost."""

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self.network.died(self)
