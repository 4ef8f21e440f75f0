"""Payloads of the tier as what ranks read together: peers are read as targets are."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ckpt.base.errors import CkptError
from ckpt.base.ids import Rank
from ckpt.format.messages.loading import TargetAddress
from ckpt.protocol.reader.events import ReadLimits
from ckpt.transfer.payload_receiver import PayloadReceiver, read_payloads
from ckpt.transfer.peer_server import PeerServer
from ckpt.transfer.read_job import Progress, ReadJob, ReceiverOptions, ReceiverStatistics
from ckpt_client.load.together.sharing import Part, merged

_log = logging.getLogger("ckpt.restore")


class SharedPayloads:
    """I fill the landings of these jobs; see ckpt_client.load.together.sharing.Shared."""

    def __init__(
        self,
        jobs: Mapping[Rank, ReadJob],
        options: ReceiverOptions,
        receiver: PayloadReceiver,
        tell: Progress,
    ) -> None:
        """jobs: by what all ranks call their payloads (PayloadFinder.number).
        tell: hears how many bytes are done."""
        self.sources: set[str] = set()
        self.came = Counter[str]()
        """How many bytes came from each of `sources`."""
        self.statistics: list[ReceiverStatistics] = []
        self.align_bytes = max(job.layout.cell_bytes for job in jobs.values())
        self._options = options
        self._receiver = receiver
        self._tell = tell
        self._jobs = jobs
        for job in jobs.values():
            job.landings.close_gaps()

    def wanted(self) -> Part:
        return {rank: job.landings.spans() for rank, job in self._jobs.items()}

    def read(self, part: Part, done_bytes: int) -> None:
        progress = self._progress(done_bytes)
        self._count("tier", self._receiver.read(self._within(part), progress))

    def offer(self, part: Part, server: PeerServer) -> None:
        for rank, spans in part.items():
            job = self._jobs[rank]
            server.offer(job, spans, self._receiver.manifests.get(job.manifest_digest))

    def read_from(self, peers: Mapping[TargetAddress, Part], done_bytes: int) -> Part:
        """Read all that these peers have, or nothing."""
        jobs = [job.from_peer(peer) for peer, part in peers.items() for job in self._within(part)]
        hasty = replace(self._options, limits=ReadLimits(timeout_us=0))
        try:
            found = read_payloads(jobs, hasty, self._progress(done_bytes))
        except CkptError as error:
            _log.warning("another rank gives nothing: %s", error.message)
            return {}
        self._count("peers", found)
        return merged(peers.values())

    def _count(self, source: str, found: ReceiverStatistics) -> None:
        self.sources.add(source)
        self.statistics.append(found)
        self.came[source] += found.wanted_bytes

    def _progress(self, before: int) -> Progress:
        return lambda done_bytes: self._tell(before + done_bytes)

    def _within(self, part: Part) -> list[ReadJob]:
        return [self._jobs[rank].within(spans) for rank, spans in part.items() if spans]
