"""A drain worker's place in the coordinator's queue: leases, parts, and a sign of life.

    open --every run's content sent--> lease --> parts ... --> ended --> lease ...

One session for all stores of this process. What the coordinator has forgotten (it was rebuilt) is
sent again. A lease that is lost stops the writing at its next step; what was done has receipts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Aborted, CkptError, Fenced
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.drains import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    LeaseDrain,
    OpenStore,
    PartTaken,
    RenewDrain,
    TakePart,
    TellStored,
    TellTrouble,
    Turn,
    encode_parts,
    encode_stored,
)
from ckpt.plan.drains import StorePolicy

RENEW_S: Final = 3.0
WAIT_S: Final = 0.2
"""Pause between two questions for a part while others are at the last ones."""
ANSWER_S: Final = 60.0
"""Patience with a coordinator that may be starting again."""
TROUBLE_CHARS_MAX: Final = 1000

Answer = TypeVar("Answer", bound=Message)


class QueueClient:
    """I speak for one worker of one store. Several threads may use me."""

    def __init__(self, rpc: RpcClient, policy: StorePolicy, worker: str) -> None:
        self._rpc = rpc
        self._policy = policy
        self._worker = worker

    def open(self, conditional: bool) -> None:
        """Say that this store is served."""
        policy = self._policy
        self._call(
            OpenStore(
                policy.url, self._worker, policy.every, policy.keep, policy.runs, conditional
            ),
            DrainNoted,
        )

    def tell_trouble(self, error: str) -> None:
        """Why the store cannot be used; empty once it can."""
        trouble = TellTrouble(self._policy.url, self._worker, error[:TROUBLE_CHARS_MAX])
        self._call(trouble, DrainNoted)

    def version(self) -> int:
        """Of what is known of the store; ask before looking at it."""
        return self._call(RenewDrain(self._policy.url, self._worker, None), DrainNoted).version

    def tell_stored(
        self, run: RunName, stored: Iterable[tuple[Step, Generation]], version: int
    ) -> None:
        """Report what the store has of a run, and keeps. Raises Busy when another worker has
        reported something since `version`: look again."""
        message = TellStored(self._policy.url, self._worker, run, version)
        self._call(message, DrainNoted, encode_stored(stored))

    def lease(self) -> CheckpointId | None:
        """What to drain now. Raises NotFound when the store is not known any more: open it."""
        return self._call(LeaseDrain(self._policy.url, self._worker), DrainLeased).checkpoint

    def renew(
        self, id: CheckpointId | None, written_bytes: int, bytes_per_s: float
    ) -> tuple[CheckpointId, ...]:
        """A sign of life; returns what to look for in the store. Raises Fenced when the lease is
        gone."""
        message = RenewDrain(
            self._policy.url, self._worker, id, written_bytes, bytes_per_s, looks=True
        )
        return self._call(message, DrainNoted).look

    def tell_looked(self, stands: dict[CheckpointId, bool], bytes_per_s: float) -> None:
        """Whether each is committed in the store, as somebody has just seen."""
        there = tuple(id for id, is_there in stands.items() if is_there)
        gone = tuple(id for id, is_there in stands.items() if not is_there)
        message = RenewDrain(
            self._policy.url, self._worker, None, 0, bytes_per_s, True, there, gone
        )
        self._call(message, DrainNoted)

    def end(self, id: CheckpointId, error: str = "") -> None:
        """Verified in the store, or why not."""
        self._call(EndDrain(self._policy.url, self._worker, id, error), DrainNoted)

    def begin_parts(self, id: CheckpointId, count: int, done: Collection[int]) -> None:
        message = BeginParts(self._policy.url, self._worker, id, count)
        self._call(message, DrainNoted, encode_parts(done))

    def take_part(self, id: CheckpointId, slot: int, done: int | None) -> PartTaken:
        return self._call(TakePart(self._policy.url, self._worker, id, slot, done), PartTaken)

    def _call(self, message: Message, kind: type[Answer], bulk: bytes = b"") -> Answer:
        return self._rpc.ask(message, kind, bulk, timeout_s=ANSWER_S)[0]


class SharedParts:
    """The parts of a leased checkpoint; see ckpt.objects.writer.Parts."""

    def __init__(
        self, queue: QueueClient, id: CheckpointId, is_stopped: Callable[[], bool]
    ) -> None:
        self._queue = queue
        self._id = id
        self._is_stopped = is_stopped
        self._failed = threading.Event()

    def begin(self, count: int, done: Collection[int]) -> None:
        self._queue.begin_parts(self._id, count, done)

    def take(self, slot: int, done: int | None) -> int | None:
        while not self._is_stopped():
            taken = self._queue.take_part(self._id, slot, done)
            if taken.turn is Turn.PART:
                return taken.part
            if taken.turn is Turn.COMMIT:
                return None
            if self._failed.wait(WAIT_S):
                break
        raise Aborted(f"draining {self._id} was stopped", hint="the next worker goes on from here")

    def stop(self) -> None:
        self._failed.set()


class Heartbeat:
    """I renew a worker's lease from a thread of my own, while I am open."""

    def __init__(self, queue: QueueClient, stands: Callable[[CheckpointId], bool]) -> None:
        """`stands`: whether the store has it now; may raise CkptError."""
        self.checkpoint: CheckpointId | None = None
        self.written_bytes = 0
        self.bytes_per_s = 0.0
        self.lost = threading.Event()
        """The lease is somebody else's."""
        self._queue = queue
        self._stands = stands
        self._asked: tuple[CheckpointId, ...] = ()
        self._gone: set[RunName] = set()
        self._closing, self._look_due = threading.Event(), threading.Event()
        # A slow store shall cost no lease.
        self._threads = [
            threading.Thread(target=self._run, name="ckpt-drain-lease", daemon=True),
            threading.Thread(target=self._run_looks, name="ckpt-drain-look", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def lease(self, checkpoint: CheckpointId | None) -> None:
        """What is leased from now on."""
        self.checkpoint, self.written_bytes = checkpoint, 0
        self.lost.clear()

    def lost_runs(self) -> list[RunName]:
        """Of which something was not there, since this was asked last."""
        found, self._gone = self._gone, set()
        return sorted(found)

    def close(self) -> None:
        self._closing.set()
        self._look_due.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._closing.wait(RENEW_S):
            checkpoint = self.checkpoint
            try:
                self._asked = self._queue.renew(checkpoint, self.written_bytes, self.bytes_per_s)
                if self._asked:
                    self._look_due.set()
            except Fenced:
                if checkpoint == self.checkpoint:
                    self.lost.set()
            except (CkptError, MemoryError):
                continue  # Away, rebuilt, starved: the worker's own questions find that out.

    def _run_looks(self) -> None:
        while self._look_due.wait() and not self._closing.is_set():
            self._look_due.clear()
            try:
                stands = {id: self._stands(id) for id in self._asked}
                self._queue.tell_looked(stands, self.bytes_per_s)
            except (CkptError, MemoryError):
                continue  # It is asked for again.
            self._gone = self._gone | {id.run for id in stands if not stands[id]}
