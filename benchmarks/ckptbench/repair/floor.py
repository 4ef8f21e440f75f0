"""What does repair get while somebody saves? A worker in this process, of which each turn is noted,
beside a save that is under way all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import PeerError
from ckpt.base.ids import Rank, RunName, Step
from ckpt.base.units import KiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import OpenPayload, PayloadGivenUp, PayloadPlanned
from ckpt.objects.pace import WritePace
from ckpt.protocol.handshake import Caller
from ckptbench.cluster import BenchCluster
from ckptd.repair.worker import HANDS, RepairProcess, RepairWorker

NAME: Final = "ckptbench repair"
POLL_S: Final = 0.05
SLOW: Final = RunName("slow")
TURNS_MIN: Final = 4


@dataclass(slots=True)
class NotedPace(WritePace):
    """All that a worker's hands read, and when each part had its turn."""

    turns: list[tuple[float, int]] = field(default_factory=list)
    """Seconds and bytes, in their order."""

    def wait_turn(self, byte_count: int) -> None:
        """Then it is read."""
        WritePace.wait_turn(self, byte_count)
        self.turns.append((time.monotonic(), byte_count))


class MeasuredWorker:
    """I am a `ckptd repair` with its hands, while I am entered."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._address = cluster.url.removeprefix("ckpt://")
        self._stopped = threading.Event()
        self._pace = NotedPace(is_stopped=self._stopped.is_set)
        self._process = RepairProcess(cluster.secret, NAME, self._pace)
        self._hands = [threading.Thread(target=self._work, daemon=True) for _ in range(HANDS)]

    def __enter__(self) -> Self:
        for hand in self._hands:
            hand.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for hand in self._hands:
            hand.join()

    def bytes_per_s(self, since_s: float) -> float | None:
        """That were read from then until now; None: too little to say."""
        turns = [turn for turn in self._pace.turns if turn[0] >= since_s]
        if len(turns) < TURNS_MIN:
            return None
        # What had the last turn is read after it.
        return sum(size for _, size in turns[:-1]) / (turns[-1][0] - turns[0][0])

    def _work(self) -> None:
        process = self._process
        with RpcClient(self._address, Caller(process.secret, Role.DRAIN, process.name)) as rpc:
            RepairWorker(rpc, process).run(POLL_S, self._stopped)


@contextmanager
def saving_goes_on(cluster: BenchCluster) -> Iterator[None]:
    """A rank has handed a payload over, and gives it up at the end: between two saves that are
    measured nobody may think that none is under way.
    """
    caller = Caller(cluster.secret, Role.STAGER, NAME)
    with RpcClient(cluster.url.removeprefix("ckpt://"), caller) as stager:
        joined, _ = stager.call(JoinLaunch(SLOW, NAME, Rank(0), 1, NAME))
        if not isinstance(joined, LaunchJoined):
            raise PeerError(f"the coordinator answered with a {type(joined).__name__}")
        opened = OpenPayload(SLOW, Step(1), joined.launch, Rank(0), 1, NAME, 64 * KiB, save=1)
        planned, _ = stager.call(opened)
        if not isinstance(planned, PayloadPlanned):
            raise PeerError(f"the coordinator answered with a {type(planned).__name__}")
        try:
            yield
        finally:
            stager.call(PayloadGivenUp(planned.payload, "aborted", "it was no save"))
