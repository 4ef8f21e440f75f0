"""Making what the coordinator hands out again, one payload after the other.

    lease --resolved and pinned, places and layout from the index--> rebuild_columns --> ended

What is durable is the coordinator's and the targets': a worker that dies leaves space that is given
back, and columns that its targets are asked about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from ckpt.aio.clock import draw
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Aborted, CkptError, Fenced, PeerError
from ckpt.base.ids import PayloadId
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S
from ckpt.format.documents.record import decode_record
from ckpt.format.messages import Message
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    RenewRepair,
    RepairLeased,
    RepairNoted,
    RepairPace,
)
from ckpt.objects.pace import WritePace
from ckpt.plan.reads import PayloadKey
from ckpt.transfer.column_rebuilder import LostColumns, rebuild_columns
from ckpt.transfer.landings import Landings
from ckpt.transfer.moves import ask_moves
from ckpt.transfer.payload_finder import PayloadFinder
from ckpt.transfer.read_job import ReceiverOptions
from ckpt.transfer.target_links import SenderOptions
from ckptd.log import reporter
from ckptd.scarcity import scarcity_is_unavailable

ANSWER_S: Final = 30.0
READ_S: Final = 10.0
"""With too few columns in reach: how long to try them again. The coordinator leases it again."""
RENEW_US_MIN: Final = 10_000
REST_S_MAX: Final = 10.0
"""Between two tries to reach a coordinator; each failure is logged."""
ERROR_CHARS_MAX: Final = 500

Answer = TypeVar("Answer")


class RepairWorker:
    """I work in the thread that calls `run`."""

    def __init__(self, rpc: RpcClient, secret: bytes, name: str, pace: WritePace) -> None:
        """`rpc` asks the coordinator; `pace` counts bytes that are read. What it says now is never
        exceeded, whatever the coordinator says."""
        self._rpc = rpc
        self._secret = secret
        self._name = name
        self._pace = pace
        self._rate_max = pace.bytes_per_s
        self._report = reporter("ckptd.repair.worker")

    def run(self, poll_s: float, stopped: threading.Event) -> None:
        """Until `stopped` is set; what is under way then is another worker's."""
        rests = Rests(poll_s, max(poll_s, REST_S_MAX), draw)
        while not stopped.is_set():
            try:
                leased = self._call(LeaseRepair(self._name), RepairLeased)
                if leased.payload is None:
                    stopped.wait(poll_s)
                else:
                    self._make(leased.payload, leased, stopped)
                rests.begin_again()
            except CkptError as error:
                self._report("warning", "cannot repair", {"reason": str(error)})
                stopped.wait(rests.next_s())

    def _make(self, payload: PayloadId, leased: RepairLeased, stopped: threading.Event) -> None:
        """One payload, to its end. Raises CkptError when that cannot be said."""
        columns = ",".join(str(one.column) for one in leased.lost)
        fields: dict[str, str | int | float] = {"payload": str(payload), "columns": columns}
        self._obey(leased.pace)
        lease = RepairHeartbeat(self._rpc, self._name, leased, self._obey)
        self._pace.is_stopped = lambda: stopped.is_set() or lease.lost.is_set()
        error = ""
        try:
            with scarcity_is_unavailable("more memory or more processes for the repair worker"):
                self._rebuild(payload, leased, lease)
        except CkptError as failure:
            error = str(failure)
        finally:
            lease.close()
        if lease.lost.is_set():
            return
        with suppress(Fenced):
            noted = self._call(EndRepair(self._name, payload, error[:ERROR_CHARS_MAX]), RepairNoted)
            if error:
                self._report("error", "not made again", {**fields, "reason": error})
            else:
                self._report("info", "made again", {**fields, "counted": noted.counted})

    def _rebuild(self, payload: PayloadId, leased: RepairLeased, lease: RepairHeartbeat) -> None:
        id = payload.checkpoint
        question = Resolve(
            id.run, id.step, timeout_us=int(READ_S * US_PER_S), only=id.generation, for_repair=True
        )  # fmt: skip
        resolved, bulk = self._rpc.call(question, timeout_s=READ_S + ANSWER_S)
        if not isinstance(resolved, Resolved):
            raise PeerError(f"the coordinator answered with a {type(resolved).__name__}")
        try:
            record = decode_record(bulk)
            if record.info.checkpoint != id:
                raise Aborted(f"{id} is not there any more")
            with PayloadFinder(
                resolved, record, partial(ask_moves, self._rpc),
                secret=self._secret, name=self._name, timeout_s=READ_S,
            ) as finder:  # fmt: skip
                found = finder.find(PayloadKey(None, payload.rank))
                lost = LostColumns(
                    finder.job(found, Landings()),
                    record.info.launch,
                    {one.column: one.place for one in leased.lost},
                )
            rebuild_columns(
                lost,
                ReceiverOptions(secret=self._secret, name=self._name, cluster=record.cluster),
                SenderOptions(self._secret, self._name, record.cluster),
                lambda size: self._turn(lease, size),
            )
        finally:
            self._rpc.tell(ReleasePin(resolved.pin))

    def _obey(self, pace: RepairPace) -> None:
        """The coordinator's word, from now on; also for what waits for its turn."""
        rates = [rate for rate in (pace.bytes_per_s, self._rate_max) if rate]
        self._pace.bytes_per_s = min(rates, default=None)

    def _turn(self, lease: RepairHeartbeat, size: int) -> None:
        self._pace.wait_turn(size)
        lease.read_bytes += size

    def _call(self, message: Message, kind: type[Answer]) -> Answer:
        answer, _ = self._rpc.call(message, timeout_s=ANSWER_S)
        if not isinstance(answer, kind):
            raise PeerError(f"the coordinator answered with a {type(answer).__name__}")
        return answer


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
        self._thread.start()

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
