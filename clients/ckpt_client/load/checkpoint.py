"""Reading a committed checkpoint: resolve it once, keep it pinned, load what is asked for.

    resolve --record--> index (from targets) --tree documents, boxes--> byte ranges --stager's
    memory, ranks that read the same now, else tier--> arrays
    resolve --lost or out of reach here, whole in an object store--> its manifest --chunks, from
    there or from ranks that read the same now--> arrays

Which step it is, and whether an older one may be taken, is the coordinator's decision for all
ranks.
Damage that this reader finds is reported; only when the coordinator has proved it, it is asked
again.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import numpy as np

from ckpt.aio.clock import draw
from ckpt.aio.collector import collector_paused
from ckpt.base.errors import CkptError, Corrupt, Lost, Refused, Unavailable
from ckpt.base.ids import Generation, PayloadId, Rank, RunName, Step
from ckpt.base.printable import printable
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import Resolve
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.tree import Node, decode_tree
from ckpt.plan.reads import PayloadKey
from ckpt.protocol.events import Report
from ckpt.protocol.reader.events import ReadLimits
from ckpt.transfer.index_source import IndexUnreadable
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_finder import FoundPayload
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import PayloadDamaged, ReadJob, ReceiverOptions, ReceiverStatistics
from ckpt.transfer.read_set import ReadSet
from ckpt_client.load.contents import Contents
from ckpt_client.load.load_counts import next_load
from ckpt_client.load.memory_check import is_committed
from ckpt_client.load.pin import Pinned
from ckpt_client.load.plan import BoxReads, TensorIndex
from ckpt_client.load.progress import OnProgress, ProgressTeller
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.redundancy import RedundancyAtCommit
from ckpt_client.load.together.meeting import share_key
from ckpt_client.load.trees import LikeWalk, WholeWalk, own_tree, scalars_of
from ckpt_client.stager.memory import memory_source
from ckpt_client.warn import warn

if TYPE_CHECKING:
    from ckpt.objects.reader import StoreStatistics
    from ckpt_client.load.from_store import StoredReading

RESOLVE_COUNT_MAX: Final = 64
"""Times one load may be resolved again."""
RETRY_S: Final = (0.05, 1.0)
"""First and longest rest before that."""

_log = logging.getLogger("ckpt.restore")
Value = TypeVar("Value")


def resolve(
    context: ReaderContext,
    run: RunName,
    step: Step | None = None,
    *,
    rank: Rank | None = None,
    world_size: int | None = None,
    joined: LaunchJoined | None = None,
    launch_key: str | None = None,
    timeout_s: float = 10.0,
    fallback: bool = False,
    progress: OnProgress | None = None,
    together: bool = True,
) -> Checkpoint:
    """The committed checkpoint to read, pinned until it is closed, in a session of its own.

    With a launch, it is the same for all its ranks. Ranks of one `launch_key`, or of one world
    size, that read at the same time read each byte from the tier once, if `together`.

    Raises NotFound, Unavailable after `timeout_s` (with `fallback` an older step instead), Lost
    when its damage is proved.
    """
    launch = None if joined is None else joined.launch
    turn = 0 if joined is None else joined.turn
    if joined is not None and step is not None and rank is not None:
        turn = next_load((context.cluster, run, joined.launch, rank, step))
    question = Resolve(
        run, step, launch, rank, world_size, int(timeout_s * US_PER_S), fallback, turn,
        stored=bool(context.durable),
    )  # fmt: skip
    pinned = Pinned(context, question, timeout_s)
    return Checkpoint(pinned, progress, share_key(launch_key, world_size) if together else None)


class Checkpoint:
    """A committed checkpoint to load from, as `Store.resolve` returns it. It is pinned against
    deletion until it is closed (or forgotten). Used by one thread at a time."""

    def __init__(
        self, pinned: Pinned, progress: OnProgress | None = None, share_key: str | None = None
    ) -> None:
        """share_key: what ranks that may read together have in common; None reads alone."""
        self._pinned = pinned
        self._share_key = share_key
        self._progress = ProgressTeller(progress)
        self._closer = weakref.finalize(self, pinned.close)
        self._sources: set[str] = set()
        #: Of one attempt to load: stagers' memory that was compared with the index.
        self._memories: dict[PayloadId, memoryview] = {}
        #: Of one attempt to load: its connections, and the targets that it gave up.
        self._receiver: PayloadReceiver | None = None
        #: Of one attempt to load what only an object store has whole; else None.
        self._stored: StoredReading | None = None
        self.statistics: tuple[ReceiverStatistics, ...] = ()
        """Of the last load's reads from the tier, and from ranks that read it too."""
        self.store_statistics: StoreStatistics | None = None
        """Of the last load, when it read an object store."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let it go: it may be deleted from now on. Idempotent."""
        self._closer()

    # ----------------------------------------------------------------------- what it is

    @property
    def info(self) -> CommitInfo:
        """All that the coordinator said at its commit."""
        return self._pinned.resolved.info

    @property
    def run(self) -> str:
        """The name of the run that saved it."""
        return self.info.checkpoint.run

    @property
    def step(self) -> int:
        """The step's number."""
        return self.info.checkpoint.step

    @property
    def generation(self) -> Generation:
        """Which attempt to write the step it is: that differs when a step was saved again."""
        return self.info.checkpoint.generation

    @property
    def world_size(self) -> int:
        """Ranks that saved it."""
        return self.info.world_size

    @property
    def redundancy(self) -> RedundancyAtCommit:
        """At its commit."""
        info = self.info
        return RedundancyAtCommit(
            info.targets_survivable, info.domains_survivable, info.domain_level
        )

    @property
    def source(self) -> str:
        """Where the last load's bytes came from: `peers`, `stager`, `store` or `tier`; several
        are joined by `+`. Empty before a load."""
        return "+".join(sorted(self._sources))

    @property
    def skipped(self) -> tuple[str, ...]:
        """Newer steps that were passed over, each with its reason."""
        return self._pinned.resolved.skipped

    # ----------------------------------------------------------------------- loading

    def load(self, like: object = None, strict: bool = True, whole: bool = False) -> object:
        """This rank's own tree as it was saved, with new arrays; or one of the two below.

        like: a tree that says what to load. A Box gives a new array; arrays and Shards are filled
            in place, and must have the saved dtype and global shape; plain values are as saved.
            What belongs to ranks comes from the caller's rank, or from rank 0 when the launch that
            saved had no such rank.
        strict: refuse names that only one of `like` and the checkpoint has, instead of taking what
            is there.
        whole: the union of all ranks' trees. Global tensors are whole arrays, also where some
            ranks have None since they hold nothing of them; what belongs to ranks is a PerRank.

        Raises Refused, by path where a leaf does not fit, and for a caller of another world size
        that passes neither `like` nor `whole`; Unavailable; Lost. After an error, arrays that were
        to be filled may hold anything.
        """
        self._check_open()
        if whole and like is not None:
            raise Refused("like= and whole= exclude each other")
        if whole:
            return self._reading(self._load_whole)
        if like is not None:
            return self._reading(lambda: self._load_like(like, strict))
        return self._reading(self._load_own)

    def read(self, plan: Callable[[Contents], Value]) -> Value:
        """Call `plan` with the contents, of which it reads what it wants; returns what it returns.

        It is called again from the beginning when bytes are damaged or their holders moved, then
        perhaps with another generation. Raises Unavailable and Lost, and what `plan` raises.
        """
        self._check_open()
        return self._reading(
            lambda: plan(
                Contents(self._index, self._ranks(), self._documents, self._read, self._new_reads)
            )
        )

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise Refused("this checkpoint is closed")

    def _load_own(self) -> object:
        rank, world_size = self._pinned.question.rank, self._pinned.question.world_size
        if rank is None or world_size != self.world_size:
            caller = "nobody in particular" if rank is None else f"rank {rank} of {world_size}"
            raise Refused(
                f"{self.info.checkpoint} was saved by {self.world_size} ranks; you are {caller}",
                hint="pass rank= and world_size=, a like= tree, or whole=True",
            )
        root = self._documents([rank])[rank]
        reads = self._new_reads()
        with collector_paused():
            state = own_tree(self._index, rank, root, reads)
        self._read(reads)
        return state

    def _load_like(self, like: object, strict: bool) -> object:
        rank = self._pinned.question.rank
        rank = rank if rank is not None and rank < self.world_size else Rank(0)
        scalars = scalars_of(self._documents([rank])[rank])
        reads = self._new_reads()
        with collector_paused():
            state = LikeWalk(self._index, rank, scalars, reads, strict).fill(like)
        self._read(reads)
        return state

    def _load_whole(self) -> object:
        roots = self._documents(self._ranks())
        reads = self._new_reads()
        with collector_paused():
            state = WholeWalk(self._index, reads).merge(roots)
        self._read(reads)
        return state

    # ----------------------------------------------------------------------- bytes

    @property
    def _index(self) -> TensorIndex:
        return self._pinned.index if self._stored is None else self._stored.index

    def _ranks(self) -> list[Rank]:
        """Those that saved, ascending."""
        if self._stored is not None:
            return self._stored.ranks()
        return [payload.rank for payload in self._pinned.index.payloads()]

    def _documents(self, ranks: Iterable[Rank]) -> dict[Rank, Node]:
        """Tree documents."""
        if self._stored is not None:
            return self._stored.documents(ranks)
        reads = ReadSet()
        documents: dict[Rank, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}
        for rank in ranks:
            payload = self._pinned.index.payload(rank)
            documents[rank] = np.empty(payload.document_bytes, np.uint8)
            reads.add_range(rank, payload.document_offset, documents[rank])
        self._read(reads)
        with collector_paused():
            return {rank: decode_tree(document.data) for rank, document in documents.items()}

    def _new_reads(self) -> BoxReads:
        if self._stored is not None:
            return self._stored.new_reads()
        return ReadSet(sharing=self._share_key is not None and self._pinned.resolved.sharing)

    def _read(self, reads: BoxReads) -> None:
        """Fill everything: from a stager's memory on this host where one holds exactly this, from
        ranks that read the same now, else from the tier; or all of it from an object store."""
        if self._stored is not None:
            self._stored.read(reads)
            self.store_statistics = moved = self._stored.statistics()
            self._sources |= {"store", "peers"} if moved.peer_bytes else {"store"}
            return
        assert isinstance(reads, ReadSet)
        with reads.memory:
            self._read_tier(reads)
        reads.finish()

    def _read_tier(self, reads: ReadSet) -> None:
        jobs, shared = self._jobs(reads.landings), self._jobs(reads.shared)
        total = sum(job.landings.wanted_bytes for job in (*jobs, *shared))
        if total and self._receiver is None:
            self._receiver = PayloadReceiver(self._options())
        if shared and self._receiver is not None:
            jobs += self._read_shared(shared, self._receiver, total)
        if jobs and self._receiver is not None:
            self._sources.add("tier")
            before = total - sum(job.landings.wanted_bytes for job in jobs)
            found = self._receiver.read(
                jobs, lambda done: self._progress.tell(before + done, total)
            )
            self.statistics = (*self.statistics, found)

    def _read_shared(
        self, jobs: list[ReadJob], receiver: PayloadReceiver, total: int
    ) -> list[ReadJob]:
        """What is not worth the meeting is left."""
        from ckpt_client.load.together.payloads import SharedPayloads
        from ckpt_client.load.together.sharing import SHARED_BYTES_MIN, SharedReading

        assert self._share_key is not None
        if sum(job.landings.wanted_bytes for job in jobs) < SHARED_BYTES_MIN:
            return jobs
        options = self._options()
        number = self._pinned.finder.number
        shared = SharedPayloads(
            {number(job.payload): job for job in jobs}, options, receiver,
            lambda done: self._progress.tell(done, total),
        )  # fmt: skip
        checkpoint = self.info.checkpoint
        try:
            SharedReading(self._pinned.meeting(), checkpoint, self._share_key, shared).read()
        finally:
            self._sources |= shared.sources
            self.statistics = (*self.statistics, *shared.statistics)
        return []

    def _jobs(self, wanted: Mapping[PayloadKey, Landings]) -> list[ReadJob]:
        """What no stager's memory on this host gives."""
        jobs = []
        for key, landings in sorted(wanted.items(), key=lambda one: one[0].order):
            if landings:
                found = self._pinned.finder.find(key)
                if not self._from_memory(found, landings):
                    jobs.append(self._pinned.finder.job(found, landings))
        return jobs

    def _options(self) -> ReceiverOptions:
        timeout_us = int(self._pinned.timeout_s * US_PER_S)
        return ReceiverOptions(
            secret=self._pinned.context.secret,
            name=self._pinned.context.name,
            cluster=self._pinned.record.cluster,
            limits=ReadLimits(timeout_us=timeout_us),
            report=_log_report,
        )

    def _from_memory(self, found: FoundPayload, landings: Landings) -> bool:
        checkpoint, rank = found.id.checkpoint, found.id.rank
        cluster, digest = self._pinned.record.cluster, found.entry.manifest_digest
        view = self._memories.get(found.id)
        if view is None:
            view = memory_source(cluster, checkpoint.run, rank, checkpoint, digest)
            if view is None:
                return False
            if not is_committed(view, found.entry):
                _log.warning("%s: a stager's memory does not hold it any more", checkpoint)
                return False
            self._memories[found.id] = view
        landings.fill(np.frombuffer(view, np.uint8))
        self._sources.add("stager")
        return True

    # ----------------------------------------------------------------------- trying again

    def _reading(self, once: Callable[[], Value]) -> Value:
        """Run it; when bytes are damaged or their holders moved, let the coordinator decide and
        run it again."""
        self._progress.begin()
        deadline = time.monotonic() + self._pinned.timeout_s
        rests = Rests(*RETRY_S, draw)
        for _ in range(RESOLVE_COUNT_MAX):
            self._sources.clear()
            self.statistics, self.store_statistics = (), None
            try:
                if self._pinned.pin_lost:
                    self._resolve_same("the connection to the coordinator was lost")
                self._pinned.begin()
                self._open_stored()
                value = once()
                superseded = self._pinned.confirm()
                if not superseded:
                    return value
                self._resolve_anew(superseded)
            except PayloadDamaged as error:
                judged = self._pinned.resolve_past(error)
                if not judged.proved and not self._goes_to_store(judged.reason):
                    text = f"{error.payload} cannot be read ({error.message}), which is not proved"
                    hint = "load again when all its targets answer, or with fallback=True"
                    raise Unavailable(f"{text}: {judged.reason}", hint=hint) from error
            except (Unavailable, Corrupt) as error:
                if self._walked_back(error):
                    continue
                if not error.retryable or time.monotonic() >= deadline:
                    if self._goes_to_store(error.message):
                        continue
                    raise
                # Thousands of ranks lose the same target at the same instant.
                time.sleep(rests.next_s())
                self._resolve_same(error.message)
            finally:
                self._memories.clear()
                self._close_readers()
        raise Unavailable(
            f"{self.info.checkpoint} could not be read in {RESOLVE_COUNT_MAX} attempts"
        )

    def _open_stored(self) -> None:
        resolved, checkpoint = self._pinned.resolved, self.info.checkpoint
        if not resolved.stored:
            return
        from ckpt_client.load.from_store import StoredReading

        urls = list(dict.fromkeys([self._pinned.context.durable, *resolved.stored]))
        meeting = self._pinned.meeting() if resolved.sharing else None
        reason: CkptError = Lost(f"{checkpoint} is lost in the tier")
        if resolved.away:
            reason = Unavailable(f"{checkpoint} is out of reach in the tier: {resolved.away}")
        self._stored = StoredReading(checkpoint, urls, reason, meeting, self._share_key)
        text = f"{reason.message}; it is loaded from {self._stored.url}"
        warn(text)

    def _close_readers(self) -> None:
        receiver, self._receiver = self._receiver, None
        stored, self._stored = self._stored, None
        for one in (receiver, stored):
            if one is not None:
                one.close()

    def _walked_back(self, error: CkptError) -> bool:
        """Whether it was the tier's index that could not be read, and its loss is proved."""
        in_tier = isinstance(error, IndexUnreadable | Corrupt) and self._stored is None
        return in_tier and self._pinned.resolve_past(error).proved

    def _goes_to_store(self, reason: str) -> bool:
        """Whether what the tier does not give now is whole in a store: the same generation."""
        if self._stored is not None or not self._pinned.context.durable:
            return False
        before = self.info.checkpoint
        _log.warning(printable(f"{before}: {reason}; asking for an object store that has it"))
        try:
            self._pinned.resolve(None if self._pinned.shared else before.step, away=True)
        except Unavailable:
            return False
        return bool(self._pinned.resolved.stored)

    def _resolve_anew(self, reason: str) -> None:
        """It was read whole, but the launch as a whole loads another: so does this rank."""
        before = self.info.checkpoint
        self._pinned.resolve()
        text = f"{before} was loaded, but {reason}: {self.info.checkpoint} is loaded for all ranks"
        warn(text)

    def _resolve_same(self, reason: str) -> None:
        """Targets may have other addresses by now; the generation must be the same."""
        before = self.info.checkpoint
        _log.warning(printable(f"{before}: {reason}; resolving it again"))
        self._pinned.resolve(None if self._pinned.shared else before.step)
        if self.info.checkpoint != before:
            text = (
                f"{before} is not to be had any more ({reason}); {self.info.checkpoint} is loaded"
            )
            warn(text)


def _log_report(report: Report) -> None:
    fields = " ".join(f"{name}={value}" for name, value in report.fields)
    _log.warning(printable(f"{report.text}: {fields}"))
