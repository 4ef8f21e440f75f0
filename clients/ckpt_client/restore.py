"""Reading a committed checkpoint: resolve it once, keep it pinned, load what is asked for.

    resolve --record--> index (from targets) --tree documents, boxes--> byte ranges --stager's
    memory, ranks that read the same now, else tier--> arrays

Which step it is, and whether an older one may be taken, is the coordinator's decision for all
ranks.
Damage that this reader finds is reported; only when the coordinator has proved it, it is asked
again.
"""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np

from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.ids import Generation, PayloadId, Rank, RunName, Step
from ckpt.base.units import MiB
from ckpt.format.index import IndexPayload
from ckpt.format.layout import Layout
from ckpt.format.messages import CommitInfo, LaunchJoined, Resolve
from ckpt.format.tree import Node, decode_tree
from ckpt.protocol.events import Report
from ckpt.protocol.reader.events import ReadLimits
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import PayloadDamaged, ReadJob, ReceiverOptions, ReceiverStatistics
from ckpt.transfer.read_set import ReadSet
from ckpt_client.contents import Contents
from ckpt_client.memory_check import is_committed
from ckpt_client.pinned import Pinned, ReaderContext
from ckpt_client.restore_trees import LikeWalk, WholeWalk, own_tree, scalars_of
from ckpt_client.stager.memory import memory_source

RESOLVE_COUNT_MAX: Final = 64
"""Times one load may be resolved again."""
RETRY_S: Final = (0.05, 1.0)
"""First and longest rest before that."""
PROGRESS_AFTER_S: Final = 2.0
PROGRESS_EVERY_S: Final = 0.2
COPY_BYTES: Final = 8 * MiB
SHARED_BYTES_MIN: Final = 8 * MiB
"""Fewer bytes are read sooner than other ranks are found."""

_log = logging.getLogger("ckpt.restore")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Redundancy:
    """What the checkpoint survived losing when it was committed."""

    targets_survivable: int
    domains_survivable: int
    domain_level: str

    def __str__(self) -> str:
        domains = f"{self.domains_survivable} {self.domain_level}s"
        return f"survives {self.targets_survivable} targets, {domains}"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is that takes longer than two seconds."""

    done_bytes: int
    total_bytes: int
    seconds: float


OnProgress = Callable[[LoadProgress], None]


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
) -> Checkpoint:
    """The committed checkpoint to read, pinned until it is closed, in a session of its own.

    With a launch, `step=None` is the same for all its ranks. Ranks of one `launch_key`, or of one
    world size, that read at the same time read each byte from the tier once.

    Raises NotFound, Unavailable after `timeout_s` (with `fallback` an older step instead), Lost
    when its damage is proved.
    """
    launch, turn = (None, 0) if joined is None else (joined.launch, joined.turn)
    question = Resolve(run, step, launch, rank, world_size, int(timeout_s * 1e6), fallback, turn)
    key = None if (world_size or 1) == 1 else f"{launch_key or ''}/{world_size}"
    return Checkpoint(Pinned(context, question, timeout_s), progress, key)


class Checkpoint:
    """A committed generation, pinned against deletion until it is closed (or forgotten). One
    thread uses it."""

    def __init__(
        self, pinned: Pinned, progress: OnProgress | None = None, share_key: str | None = None
    ) -> None:
        """share_key: what ranks that may read together have in common; None reads alone."""
        self._pinned = pinned
        self._share_key = share_key
        self._on_progress = progress
        self._closer = weakref.finalize(self, pinned.close)
        self._sources: set[str] = set()
        self._memories: dict[Rank, memoryview] = {}
        #: Of one attempt to load: stagers' memory that was compared with the index.
        #: Of one attempt to load: its connections and whom it gave up.
        self._receiver: PayloadReceiver | None = None
        self._begun_s = 0.0
        self._told_s = 0.0
        self.statistics: tuple[ReceiverStatistics, ...] = ()
        """Of the last load's reads from the tier."""

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
        """All that was said at its commit."""
        return self._pinned.resolved.info

    @property
    def run(self) -> str:
        return self.info.checkpoint.run

    @property
    def step(self) -> int:
        return self.info.checkpoint.step

    @property
    def generation(self) -> Generation:
        return self.info.checkpoint.generation

    @property
    def world_size(self) -> int:
        """Ranks that saved it."""
        return self.info.world_size

    @property
    def redundancy(self) -> Redundancy:
        """At its commit."""
        info = self.info
        return Redundancy(info.targets_survivable, info.domains_survivable, info.domain_level)

    @property
    def source(self) -> str:
        """Where the last load's bytes came from: `peers`, `stager`, `tier`, joined by `+`, or empty
        before one."""
        return "+".join(sorted(self._sources))

    @property
    def skipped(self) -> tuple[str, ...]:
        """Newer steps that were passed over, each with its reason."""
        return self._pinned.resolved.skipped

    # ----------------------------------------------------------------------- loading

    def load(self, like: object = None, *, strict: bool = True, whole: bool = False) -> object:
        """This rank's own tree; with `like`, what it asks for; with `whole`, the union of all
        ranks'.

        like: a tree of Box (gives an array), arrays and Shards (filled in place) and plain
        values. Own leaves
            and plain values come from the caller's rank, or from rank 0 when the launch that
            saved had no such
            rank. `strict=False` takes what is there; otherwise keys that only one side has are
            Refused.
        whole: global tensors as whole arrays, what belongs to ranks as PerRank.

        Raises Refused for a caller of another world size without either, Unavailable, Lost. After
        an error the
        content of arrays that were to be filled is undefined.
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
        """What `plan` returns: it looks at the contents and has them filled where it wants them.

        It is run again from the beginning when bytes are damaged or their holders moved, then
        perhaps on another generation. Raises as `load`.
        """
        self._check_open()
        return self._reading(
            lambda: plan(Contents(self._pinned.index, self._documents, self._read, self._new_reads))
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
        state = own_tree(self._pinned.index, rank, root, reads)
        self._read(reads)
        return state

    def _load_like(self, like: object, strict: bool) -> object:
        rank = self._pinned.question.rank
        rank = rank if rank is not None and rank < self.world_size else Rank(0)
        scalars = scalars_of(self._documents([rank])[rank])
        reads = self._new_reads()
        walk = LikeWalk(self._pinned.index, rank, scalars, reads, strict)
        state = walk.fill(like)
        self._read(reads)
        return state

    def _load_whole(self) -> object:
        roots = self._documents([payload.rank for payload in self._pinned.index.payloads()])
        reads = self._new_reads()
        state = WholeWalk(self._pinned.index, reads).merge(roots)
        self._read(reads)
        return state

    # ----------------------------------------------------------------------- bytes

    def _documents(self, ranks: Iterable[Rank]) -> dict[Rank, Node]:
        """Tree documents."""
        reads = ReadSet()
        documents: dict[Rank, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}
        for rank in ranks:
            payload = self._pinned.index.payload(rank)
            documents[rank] = np.empty(payload.document_bytes, np.uint8)
            reads.add_range(rank, payload.document_offset, documents[rank])
        self._read(reads)
        return {rank: decode_tree(document.data) for rank, document in documents.items()}

    def _new_reads(self) -> ReadSet:
        return ReadSet(sharing=self._share_key is not None and self._pinned.resolved.sharing)

    def _read(self, reads: ReadSet) -> None:
        """Fill everything: from a stager's memory on this host where one holds exactly this, from
        ranks that read the same now, else from the tier."""
        jobs, shared = self._jobs(reads.landings), self._jobs(reads.shared)
        if sum(job.landings.wanted_bytes for job in shared) < SHARED_BYTES_MIN:
            jobs, shared = [*jobs, *shared], []
        if jobs or shared:
            total = sum(job.landings.wanted_bytes for job in (*jobs, *shared))
            before = total - sum(job.landings.wanted_bytes for job in jobs)
            if self._receiver is None:
                self._receiver = PayloadReceiver(self._options())
            if shared:
                self._read_shared(shared, self._receiver, total)
            if jobs:
                self._sources.add("tier")
                found = self._receiver.read(jobs, lambda done: self._tell(before + done, total))
                self.statistics = (*self.statistics, found)
        reads.finish()

    def _read_shared(self, jobs: list[ReadJob], receiver: PayloadReceiver, total: int) -> None:
        from ckpt_client.sharing import SharedReading

        assert self._share_key is not None
        reading = SharedReading(
            self._pinned,
            self._share_key,
            self._options(),
            receiver,
            lambda done: self._tell(done, total),
        )
        try:
            reading.read(jobs)
        finally:
            self._sources |= reading.sources
            self.statistics = (*self.statistics, *reading.statistics)

    def _jobs(self, wanted: Mapping[Rank, Landings]) -> list[ReadJob]:
        """What no stager's memory on this host gives."""
        addresses = {where.target: where for where in self._pinned.resolved.targets}
        jobs = []
        for rank, landings in sorted(wanted.items()):
            payload = self._pinned.index.payload(rank)
            if not landings or self._from_memory(payload, landings):
                continue
            jobs.append(
                ReadJob(
                    payload=PayloadId(self.info.checkpoint, rank),
                    layout=Layout(payload.code, payload.payload_bytes, payload.cell_bytes),
                    manifest_digest=payload.manifest_digest,
                    columns=payload.columns,
                    addresses=addresses,
                    landings=landings,
                )
            )
        return jobs

    def _options(self) -> ReceiverOptions:
        timeout_us = int(self._pinned.timeout_s * 1e6)
        return ReceiverOptions(
            secret=self._pinned.context.secret,
            name=self._pinned.context.name,
            cluster=self._pinned.record.cluster,
            limits=ReadLimits(timeout_us=timeout_us),
            report=_log_report,
        )

    def _from_memory(self, payload: IndexPayload, landings: Landings) -> bool:
        checkpoint, rank = self.info.checkpoint, payload.rank
        cluster, digest = self._pinned.record.cluster, payload.manifest_digest
        view = self._memories.get(rank)
        if view is None:
            view = memory_source(cluster, checkpoint.run, rank, checkpoint, digest)
            if view is None:
                return False
            if not is_committed(view, payload):
                _log.warning("%s: a stager's memory does not hold it any more", checkpoint)
                return False
            self._memories[rank] = view
        content = np.frombuffer(view, np.uint8)
        for start, end in landings.spans():
            for at in range(start, end, COPY_BYTES):
                landings.scatter(at, content[at : min(end, at + COPY_BYTES)])
        self._sources.add("stager")
        return True

    # ----------------------------------------------------------------------- trying again

    def _reading(self, once: Callable[[], Value]) -> Value:
        """Run it; when bytes are damaged or their holders moved, let the coordinator decide and
        run it again."""
        self._begun_s = self._told_s = time.monotonic()
        deadline = self._begun_s + self._pinned.timeout_s
        for attempt in range(RESOLVE_COUNT_MAX):
            self._sources.clear()
            self.statistics = ()
            try:
                if self._pinned.pin_lost:
                    self._resolve_same("the connection to the coordinator was lost")
                self._pinned.begin()
                value = once()
                superseded = self._pinned.confirm()
                if not superseded:
                    return value
                self._resolve_anew(superseded)
            except PayloadDamaged as error:
                self._resolve_past(error.payload, error)
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(min(RETRY_S[1], RETRY_S[0] * 2 ** min(attempt, 8)))
                self._resolve_same(error.message)
            finally:
                self._memories.clear()
                self._close_receiver()
        raise Unavailable(
            f"{self.info.checkpoint} could not be read in {RESOLVE_COUNT_MAX} attempts"
        )

    def _close_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()

    def _resolve_past(self, payload: PayloadId, error: CkptError) -> None:
        """Only proved damage lets the coordinator name another generation."""
        _log.warning("damage: %s; asking the coordinator to judge", error.message)
        judged = self._pinned.judge(payload, error.message)
        if not judged.proved:
            raise Unavailable(
                f"{payload} cannot be read ({error.message}), which is not proved: {judged.reason}",
                hint="load again when all its targets answer, or with fallback=True",
            ) from error
        before = self.info.checkpoint
        self._pinned.resolve()
        warnings.warn(
            f"{before} is lost ({judged.reason}); {self.info.checkpoint} is loaded",
            UserWarning,
            stacklevel=5,
        )

    def _resolve_anew(self, reason: str) -> None:
        """It was read whole, but the launch as a whole loads another: so does this rank."""
        before = self.info.checkpoint
        self._pinned.resolve()
        warnings.warn(
            f"{before} was loaded, but {reason}: {self.info.checkpoint} is loaded for all ranks",
            UserWarning,
            stacklevel=5,
        )

    def _resolve_same(self, reason: str) -> None:
        """Targets may have other addresses by now; the generation must be the same."""
        before = self.info.checkpoint
        _log.warning("%s: %s; resolving it again", before, reason)
        self._pinned.resolve(None if self._pinned.shared else before.step)
        if self.info.checkpoint != before:
            warnings.warn(
                f"{before} is not to be had any more ({reason}); {self.info.checkpoint} is loaded",
                UserWarning,
                stacklevel=5,
            )

    def _tell(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if self._on_progress is None or now - self._begun_s < PROGRESS_AFTER_S:
            return
        if now - self._told_s >= PROGRESS_EVERY_S or done_bytes == total_bytes:
            self._told_s = now
            self._on_progress(LoadProgress(done_bytes, total_bytes, now - self._begun_s))


def _log_report(report: Report) -> None:
    fields = " ".join(f"{name}={value}" for name, value in report.fields)
    _log.warning("%s: %s", report.text, fields)
