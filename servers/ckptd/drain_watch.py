"""What is committed, and is anybody saving? The drain's questions to the coordinator.

Over HTTP where an address is given, since such a question keeps no idle cluster awake; else by a
session of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from ckpt.aio.rpc import RpcClient
from ckpt.base.errors import CkptError
from ckpt.base.ids import Generation, RunName, Step
from ckpt.format.messages import Ask, Role
from ckpt.plan.drains import Committed
from ckpt.protocol.coordinator.views import RunView, StatusView, StepView
from ckptd.http_client import HttpAsker

BURST_ASK_S: Final = 0.5
"""The status is asked for no more often."""
ASIDE_S_MAX: Final = 60.0
"""A save that takes longer than this is no burst: draining goes on beside it."""

View = TypeVar("View")


class Watch:
    """I ask one coordinator; several threads may use me."""

    def __init__(self, address: str, http: str, secret: bytes, name: str) -> None:
        self._lock = threading.Lock()
        self._asker = HttpAsker(http, secret) if http else None
        self._rpc = None if http else RpcClient(address, secret=secret, role=Role.READER, name=name)

    def close(self) -> None:
        if self._rpc is not None:
            self._rpc.close()

    def runs(self) -> list[RunName]:
        """All runs that ever committed."""
        return [RunName(view.run) for view in self._ask(list[RunView], "runs")]

    def steps(self, run: RunName) -> list[StepView]:
        """All generations of a run that are there and not being deleted."""
        return self._ask(list[StepView], "steps", run)

    def cluster(self) -> str:
        """Its id."""
        return self._ask(StatusView, "status").cluster

    def is_saving(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._ask(StatusView, "status").attempts)

    def _ask(self, kind: type[View], what: str, run: RunName | None = None) -> View:
        with self._lock:
            if self._asker is None:
                assert self._rpc is not None
                _, answer = self._rpc.call(Ask(what, run))
                return msgspec.json.decode(answer, type=kind)
            path = f"/v1/{what}" if run is None else f"/v1/{what}?run={quote(run, safe='')}"
            return msgspec.convert(self._asker.ask(path), type=kind)


def committed(views: Iterable[StepView]) -> list[Committed]:
    """The newest committed generation of each step of a run that can be read now."""
    newest = {view.step: view for view in views if view.state == "committed" and view.readable}
    return [
        Committed(
            RunName(view.run),
            Step(view.step),
            Generation.parse(view.generation),
            view.bytes,
            view.committed_at_s,
        )
        for view in newest.values()
    ]


class BurstWatch:
    """I say whether to stand aside now; asked often, from several threads."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
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
