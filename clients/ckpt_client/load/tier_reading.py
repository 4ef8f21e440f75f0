"""Reading from the tier: a stager's memory on this host where one holds exactly this, else ranks
that read the same now, else the targets.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ckpt.aio.collector import collector_paused
from ckpt.base.ids import PayloadId, Rank
from ckpt.base.printable import printable
from ckpt.base.units import US_PER_S, format_bytes
from ckpt.format.tree import Node, decode_tree
from ckpt.plan.reads import PayloadKey
from ckpt.protocol.events import Report
from ckpt.protocol.reader.events import ReadLimits
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_finder import FoundPayload
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import ReadJob, ReceiverOptions, ReceiverStatistics
from ckpt.transfer.read_set import ReadSet
from ckpt_client.load.memory_check import CheckedMemory
from ckpt_client.load.pin import Pinned
from ckpt_client.load.plan import BoxReads, TensorIndex
from ckpt_client.load.progress import ProgressTeller
from ckpt_client.stager.memory import memory_source

_log = logging.getLogger("ckpt.restore")


class TierReading:
    """One attempt; see ckpt_client.load.reading.Reading."""

    store_statistics = None
    """It reads no object store."""

    def __init__(self, pinned: Pinned, share_key: str | None, progress: ProgressTeller) -> None:
        """share_key: what ranks that may read together have in common; None reads alone."""
        self._pinned = pinned
        self._share_key = share_key
        self._progress = progress
        self.sources: set[str] = set()
        self.tier_statistics: tuple[ReceiverStatistics, ...] = ()
        #: How many bytes came from each of `sources`.
        self._came = Counter[str]()
        #: Stagers' memory of which all that was used was compared.
        self._memories: dict[PayloadId, CheckedMemory] = {}
        self._expected_bytes, self._in_pieces = 0, False
        #: The connections, and the targets that were given up.
        self._receiver: PayloadReceiver | None = None

    @property
    def name(self) -> str:
        return str(self._pinned.resolved.info.checkpoint)

    @property
    def world_size(self) -> int:
        return self._pinned.resolved.info.world_size

    @property
    def index(self) -> TensorIndex:
        return self._pinned.index

    def ranks(self) -> list[Rank]:
        return [payload.rank for payload in self._pinned.index.payloads()]

    def documents(self, ranks: Iterable[Rank]) -> dict[Rank, Node]:
        reads = ReadSet()
        documents: dict[Rank, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}
        for rank in ranks:
            payload = self._pinned.index.payload(rank)
            documents[rank] = np.empty(payload.document_bytes, np.uint8)
            reads.add_range(rank, payload.document_offset, documents[rank])
        self._fill(reads)
        with collector_paused():
            return {rank: decode_tree(document.data) for rank, document in documents.items()}

    def expect(self, wanted_bytes: int, *, in_pieces: bool) -> None:
        self._expected_bytes, self._in_pieces = wanted_bytes, in_pieces

    def new_reads(self) -> BoxReads:
        return ReadSet(sharing=self._share_key is not None and self._pinned.resolved.sharing)

    def read(self, reads: BoxReads) -> None:
        assert isinstance(reads, ReadSet)
        wanted, before = _wanted_bytes(reads), self._came.copy()
        self._fill(reads)
        came = self._came - before
        _log.info(
            "%s: %s were wanted, %s came from targets, %s from other ranks, %s from a stager of "
            "this host",
            self.name,
            format_bytes(wanted),
            *(format_bytes(came[source]) for source in ("tier", "peers", "stager")),
        )

    def _fill(self, reads: ReadSet) -> None:
        with reads.memory:
            self._read(reads)
        reads.finish()

    def close(self) -> None:
        self._memories.clear()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()

    def _read(self, reads: ReadSet) -> None:
        jobs, shared = self._jobs(reads.landings), self._jobs(reads.shared)
        total = sum(job.landings.wanted_bytes for job in (*jobs, *shared))
        if total and self._receiver is None:
            self._receiver = PayloadReceiver(self._options())
            first = (*jobs, *shared)[0]
            self._receiver.expect(first, self._expected_bytes)
            if self._in_pieces:
                self._receiver.expect_pieces(first.layout)
        if shared and self._receiver is not None:
            jobs += self._read_shared(shared, self._receiver, total)
        if jobs and self._receiver is not None:
            self.sources.add("tier")
            before = total - sum(job.landings.wanted_bytes for job in jobs)
            found = self._receiver.read(
                jobs, lambda done: self._progress.tell(before + done, total)
            )
            self.tier_statistics = (*self.tier_statistics, found)
            self._came["tier"] += found.wanted_bytes

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
        checkpoint = self._pinned.resolved.info.checkpoint
        try:
            SharedReading(self._pinned.meeting(), checkpoint, self._share_key, shared).read()
        finally:
            self.sources |= shared.sources
            self.tier_statistics = (*self.tier_statistics, *shared.statistics)
            self._came.update(shared.came)
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
            borrows=True,
            report=_log_report,
        )

    def _from_memory(self, found: FoundPayload, landings: Landings) -> bool:
        if self._pinned.context.avoid:
            return False
        checkpoint, rank = found.id.checkpoint, found.id.rank
        cluster, digest = self._pinned.record.cluster, found.entry.manifest_digest
        known = self._memories.get(found.id)
        if known is None:
            memory = memory_source(cluster, checkpoint.run, rank, checkpoint, digest)
            if memory is None:
                return False
            known = CheckedMemory(memory.payload, found.entry, memory.manifest)
        if not known.holds(landings.ranges()):
            _log.warning("%s: a stager's memory does not hold it any more", checkpoint)
            self._memories.pop(found.id, None)
            return False
        self._memories[found.id] = known
        landings.fill(np.frombuffer(known.content, np.uint8))
        self.sources.add("stager")
        self._came["stager"] += landings.wanted_bytes
        return True


def _wanted_bytes(reads: ReadSet) -> int:
    every = (*reads.landings.values(), *reads.shared.values())
    return sum(landings.wanted_bytes for landings in every)


def _log_report(report: Report) -> None:
    fields = " ".join(f"{name}={value}" for name, value in report.fields)
    _log.warning(printable(f"{report.text}: {fields}"))
