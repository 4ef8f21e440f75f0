"""What is committed, and is anybody saving? The drain's questions to the coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName
from ckpt.format.messages.asking import Ask
from ckpt.protocol.coordinator.reading.answers import RunView, StatusView, StepView

BURST_ASK_S: Final = 0.5
"""The status is not asked for more often than this."""
ASIDE_S_MAX: Final = 60.0
"""A save that takes longer than this is no burst: draining goes on beside it."""

View = TypeVar("View")


class CoordinatorWatch:
    """I ask one coordinator. Thread safe."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc
        self._cluster = ""

    def runs(self) -> list[RunName]:
        """All runs that ever committed."""
        return [RunName(view.run) for view in self._ask(list[RunView], "runs")]

    def steps(self, run: RunName) -> list[StepView]:
        """All generations of a run that are there and not being deleted."""
        return self._ask(list[StepView], "steps", run)

    def cluster(self) -> str:
        """Its id."""
        if not self._cluster:
            self._cluster = self._ask(StatusView, "status").cluster
        return self._cluster

    def is_saving(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._ask(StatusView, "status").attempts)

    def _ask(self, kind: type[View], what: str, run: RunName | None = None) -> View:
        _, answer = self._rpc.call(Ask(what, run))
        return msgspec.json.decode(answer, type=kind)


class BurstWatch:
    """I say whether to stand aside now; asked often, from several threads."""

    def __init__(
        self, watch: CoordinatorWatch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watch = watch
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = -BURST_ASK_S
        self._since_s: float | None = None

    def __call__(self) -> bool:
        with self._lock:
            now_s = self._clock()
            if now_s - self._asked_s >= BURST_ASK_S:
                self._asked_s = now_s
                if not self._is_saving():
                    self._since_s = None
                elif self._since_s is None:
                    self._since_s = now_s
            return self._since_s is not None and now_s - self._since_s < ASIDE_S_MAX

    def _is_saving(self) -> bool:
        try:
            return self._watch.is_saving()
        except CkptError:
            return False  # A coordinator that is away admits no saves.
