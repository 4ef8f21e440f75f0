"""Someone who has targets balanced, and repeats it until there is an answer."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.format.messages import Message
from ckpt.format.messages.balancing import BalanceTargets, TargetsBalanced
from ckpt.format.messages.hello import Failed
from ckpt.protocol.events import Session
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.network import Network
from tests.sim.operator_node import LookingOperator


class BalanceOperator(LookingOperator):
    """I have one wish at a time."""

    def __init__(self, clock: Clockwork, network: Network, coordinator: CoordinatorNode) -> None:
        super().__init__("balance operator", clock, network, coordinator)
        self._wish: BalanceTargets | None = None
        self.answer: TargetsBalanced | Failed | None = None
        """To the last wish; None while there is none."""

    @property
    def is_waiting(self) -> bool:
        """The last wish is not answered yet."""
        return self._wish is not None

    def want(self, *, stop: bool = False) -> None:
        self._wish, self.answer = BalanceTargets(stop=stop), None

    def _wishes(self) -> Iterable[Message]:
        return () if self._wish is None else (self._wish,)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """To the newest question; `busy` and `unavailable` are no last words."""
        if self._wish is None or request != self._request:
            return
        match message:
            case TargetsBalanced() | Failed("refused"):
                self._wish, self.answer = None, message
