"""Making what the coordinator hands out again, one payload after the other in each hand.

    lease --resolved and pinned, places and layout from the index--> rebuild_columns --> ended

A process has HANDS of them: while one waits for a lease, for connections or for a column's sync,
the other one reads. What is durable is the coordinator's and the targets': a worker that dies
leaves space that is given back, and columns that its targets are asked about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ckpt.aio.clock import draw
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.threads import start_thread
from ckpt.base.errors import CkptError, Fenced
from ckpt.base.ids import ColumnNumber, PayloadId
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    RenewRepair,
    RepairLeased,
    RepairNoted,
    RepairPace,
)
from ckpt.objects.pace import WritePace
from ckpt.plan.sources import SourceLoads
from ckpt.transfer.column_rebuilder import LostColumns, RebuildRoom, rebuild_columns
from ckpt.transfer.read_job import ReadJob, ReceiverOptions
from ckpt.transfer.target_links import SenderOptions
from ckptd.log import reporter
from ckptd.repair.lost import ANSWER_S, located
from ckptd.repair.memory import MemoryShares
from ckptd.scarcity import scarcity_is_unavailable

RENEW_US_MIN: Final = 10_000
REST_S_MAX: Final = 10.0
"""Pause between two tries to reach a coordinator; each failure is logged."""
ERROR_CHARS_MAX: Final = 500
HANDS: Final = 2
MEMORY_BYTES_MAX: Final = 160 * MiB
"""Of all hands' windows and connections, but for one payload that has more by itself."""
SCARCE: Final = "more memory, processes or descriptors for the repair worker"


@dataclass(frozen=True, slots=True)
class RepairProcess:
    """What the hands of one process have in common."""

    secret: bytes = field(repr=False)
    name: str
    pace: WritePace
    """Of all bytes that they read, whatever the coordinator says."""
    memory: MemoryShares = field(default_factory=lambda: MemoryShares(MEMORY_BYTES_MAX))


class RepairWorker:
    """I am one hand of the process, and work in the thread that calls `run`."""

    def __init__(self, rpc: RpcClient, process: RepairProcess) -> None:
        """`rpc` asks the coordinator, and is mine alone: it tells the hands apart."""
        self._rpc = rpc
        self._process = process
        self._secret = process.secret
        self._name = process.name
        #: As the coordinator says.
        self._pace = WritePace()
        #: What targets gave since there was nothing to do.
        self._loads = SourceLoads()
        #: The cluster, and what its payloads share; None while there is nothing to do.
        self._room: tuple[str, RebuildRoom] | None = None
        self._report = reporter("ckptd.repair.worker")

    def run(self, poll_s: float, stopped: threading.Event) -> None:
        """Work until `stopped` is set; what is under way then is left to another worker."""
        rests = Rests(poll_s, max(poll_s, REST_S_MAX), draw)
        try:
            while not stopped.is_set():
                try:
                    question = LeaseRepair(self._name)
                    leased, _ = self._rpc.ask(question, RepairLeased, timeout_s=ANSWER_S)
                    if leased.payload is None:
                        self._rest()
                        stopped.wait(poll_s)
                    else:
                        self._make(leased.payload, leased, stopped)
                    rests.begin_again()
                except CkptError as error:
                    self._report("warning", "cannot repair", {"reason": str(error)})
                    stopped.wait(rests.next_s())
        finally:
            self._rest()

    def _rest(self) -> None:
        """Nothing is kept of what is over."""
        self._leave_room()
        # What was read for an earlier loss says nothing of the next one.
        self._loads = SourceLoads()

    def _leave_room(self) -> None:
        if self._room is not None:
            self._room[1].close()
        self._room = None
        self._process.memory.give_back(self)

    def _make(self, payload: PayloadId, leased: RepairLeased, stopped: threading.Event) -> None:
        """One payload, to its end. Raises CkptError when that cannot be said."""
        columns = ",".join(str(one.column) for one in leased.lost)
        fields: dict[str, str | int | float] = {"payload": str(payload), "columns": columns}
        self._obey(leased.pace)
        lease = RepairHeartbeat(self._rpc, self._name, leased, self._obey)
        self._pace.is_stopped = lambda: stopped.is_set() or lease.lost.is_set()
        error = ""
        try:
            with scarcity_is_unavailable(SCARCE):
                self._rebuild(leased, lease)
        except CkptError as failure:
            error = str(failure)
        finally:
            lease.close()
        if lease.lost.is_set():
            return
        with suppress(Fenced):
            message = EndRepair(self._name, payload, error[:ERROR_CHARS_MAX])
            noted, _ = self._rpc.ask(message, RepairNoted, timeout_s=ANSWER_S)
            if error:
                self._report("error", "not made again", {**fields, "reason": error})
            else:
                self._report("info", "made again", {**fields, "counted": noted.counted})

    def _rebuild(self, leased: RepairLeased, lease: RepairHeartbeat) -> None:
        with located(self._rpc, self._secret, self._name, leased) as found:
            lost = found.lost
            rebuild_columns(
                replace(lost, source=self._evenly(lost.source, lost.places)),
                self._room_for(lost, found.cluster),
                SenderOptions(self._secret, self._name, found.cluster, Role.DRAIN),
                lambda size: self._turn(lease, size),
                self._pace.check_stopped,
            )

    def _room_for(self, lost: LostColumns, cluster: str) -> RebuildRoom:
        """The same as for the payload before, where there is one. Raises Aborted."""
        if self._room is not None and self._room[0] != cluster:
            self._leave_room()
        if self._room is None:
            options = ReceiverOptions(self._secret, self._name, cluster, Role.DRAIN)
            self._room = cluster, RebuildRoom(options)
        room, size = self._room[1], RebuildRoom.bytes_for(lost)
        self._process.memory.take(self, size, room.close, self._pace.is_stopped)
        return room

    def _evenly(self, source: ReadJob, lost: Collection[ColumnNumber]) -> ReadJob:
        """From those of its targets that gave least to this worker."""
        here = [id if id in source.addresses else None for id in source.columns]
        layout = source.layout
        spared = self._loads.choose(here, lost, layout.code.k, layout.column_bytes)
        return replace(source, spared=spared)

    def _obey(self, pace: RepairPace) -> None:
        """The coordinator's word, from now on; also for what waits for its turn."""
        self._pace.bytes_per_s = pace.bytes_per_s or None

    def _turn(self, lease: RepairHeartbeat, size: int) -> None:
        self._pace.wait_turn(size)
        self._process.pace.wait_turn(size)
        lease.read_bytes += size


class RepairHeartbeat:
    """I say from a thread of my own that the worker lives, until I am closed, and hear how fast it
    may go.
    """

    def __init__(
        self, rpc: RpcClient, worker: str, leased: RepairLeased, obey: Callable[[RepairPace], None]
    ) -> None:
        self.read_bytes = 0
        self.lost = threading.Event()
        """It is another worker's, or nobody needs it any more."""
        self._rpc = rpc
        self._worker = worker
        self._leased = leased
        self._obey = obey
        #: As it was heard last.
        self._renew_us = max(RENEW_US_MIN, leased.pace.renew_us)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ckpt-repair-lease", daemon=True)
        start_thread(self._thread)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._renew_us / US_PER_S):
            try:
                self._renew()
            except Fenced:
                self.lost.set()
                return
            except (CkptError, MemoryError):
                continue  # Away, or starved: the next one may come through.

    def _renew(self) -> None:
        assert self._leased.payload is not None
        message = RenewRepair(self._worker, self._leased.payload, self.read_bytes)
        noted, _ = self._rpc.call(message, timeout_s=ANSWER_S)
        if isinstance(noted, RepairNoted):
            self._renew_us = max(RENEW_US_MIN, noted.pace.renew_us)
            self._obey(noted.pace)
