"""Reading together: what several ranks want at the same time is read from the tier by one of them.

    what is mine --targets--> memory --peer server--> other ranks
    what is theirs <--their peer servers, checked as if a target had sent it--

The coordinator says which is which (ckpt.protocol.coordinator.sharing). It takes no process group,
and no rank waits for one that has not come. Whatever goes wrong with a peer or with the sharing
itself, the bytes come from the tier: sharing never makes a load fail.
"""

from __future__ import annotations

import logging
import socket
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ckpt.aio.address import TcpAddress, endpoint_by_resolver, parse_address
from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import Rank
from ckpt.format.messages import LeaveReads, Message, NextReads, ShareReads, TargetAddress
from ckpt.format.spans import OURS, SPANS_MAX, PayloadSpan, decode_spans, encode_spans
from ckpt.protocol.reader.events import ReadLimits
from ckpt.protocol.reader.spans import Spans, minus, total, union
from ckpt.transfer.payload_receiver import PayloadReceiver, read_payloads
from ckpt.transfer.peer_server import PeerServer
from ckpt.transfer.read_job import Progress, ReadJob, ReceiverOptions, ReceiverStatistics
from ckpt_client.pinned import Pinned
from ckpt_client.stager.memory import runtime_directory

LEAVE_TIMEOUT_S: Final = 30.0
"""The longest that a rank which has everything stays for others."""

_log = logging.getLogger("ckpt.restore")
_Part = dict[Rank, Spans]


class SharedReading:
    """One read of what other ranks may want too. Used once, by one thread."""

    def __init__(
        self,
        pinned: Pinned,
        key: str,
        options: ReceiverOptions,
        receiver: PayloadReceiver,
        tell: Progress,
    ) -> None:
        """tell: hears how many bytes are done."""
        self.sources: set[str] = set()
        self.statistics: list[ReceiverStatistics] = []
        self._pinned = pinned
        self._key = key
        self._options = options
        self._receiver = receiver
        self._tell = tell
        self._wanted_bytes = 0
        self._jobs: dict[Rank, ReadJob] = {}
        #: What of them is not here yet.
        self._left: _Part = {}

    def read(self, jobs: list[ReadJob]) -> None:
        """Fill all their landings. Raises as PayloadReceiver.read does of targets."""
        for job in jobs:
            job.landings.close_gaps()
            self._jobs[job.payload.rank] = job
            self._left[job.payload.rank] = job.landings.spans()
        self._wanted_bytes = sum(map(total, self._left.values()))
        wanted = [
            PayloadSpan(OURS, rank, start, end)
            for rank, spans in self._left.items()
            for start, end in spans
        ]
        server = None if len(wanted) > SPANS_MAX else self._serve()
        if server is not None:
            try:
                self._read_together(server, wanted)
            finally:
                server.close()
        self._from_tier(self._left)

    # ----------------------------------------------------------------------- together

    def _serve(self) -> PeerServer | None:
        try:
            directory: Path | None = runtime_directory()
        except (Refused, OSError):
            directory = None
        try:
            host = _host_towards(self._pinned.coordinator)
            options = self._options
            return PeerServer(options.secret, options.cluster, host, directory)
        except CkptError as error:
            _log.warning("reading alone: %s", error.message)
            return None

    def _read_together(self, server: PeerServer, wanted: list[PayloadSpan]) -> None:
        checkpoint = self._pinned.resolved.info.checkpoint
        align_bytes = max(job.layout.cell_bytes for job in self._jobs.values())
        question: Message = ShareReads(checkpoint, self._key, server.address, align_bytes)
        bulk = encode_spans(wanted)
        stay_s = 0.0
        try:
            while (told := self._ask(question, bulk)) is not None:
                mine, theirs = told
                if not mine and not theirs:
                    stay_s = min(LEAVE_TIMEOUT_S, self._pinned.timeout_s)
                    break
                self._from_tier(mine)
                for rank, spans in mine.items():
                    job = self._jobs[rank]
                    server.offer(job, spans, self._receiver.manifests.get(job.manifest_digest))
                self._from_peers(theirs)
                question, bulk = NextReads(), b""
        finally:
            with suppress(CkptError):
                self._pinned.share(LeaveReads(int(stay_s * 1e6)))

    def _ask(
        self, question: Message, bulk: bytes
    ) -> tuple[_Part, dict[TargetAddress, _Part]] | None:
        """What to read from the tier, and what from whom; None when there is no sharing (left)."""
        try:
            reply, told = self._pinned.share(question, bulk)
            spans = decode_spans(told)
            peers = [reply.peers[span.peer] if span.peer != OURS else None for span in spans]
        except (CkptError, IndexError) as error:
            _log.warning("reading alone from here on: %s", error)
            return None
        mine: _Part = {}
        theirs: defaultdict[TargetAddress, _Part] = defaultdict(dict)
        for span, peer in zip(spans, peers, strict=True):
            part = mine if peer is None else theirs[peer]
            part[span.rank] = union(part.get(span.rank, ()), ((span.start, span.end),))
        return mine, theirs

    # ----------------------------------------------------------------------- bytes

    def _from_tier(self, part: _Part) -> None:
        jobs = self._within(part)
        if jobs:
            self.sources.add("tier")
            self.statistics.append(self._receiver.read(jobs, self._progress()))
            self._landed(part)

    def _from_peers(self, theirs: dict[TargetAddress, _Part]) -> None:
        """What is not given stays left, and comes from the tier in the end."""
        jobs = [job.from_peer(peer) for peer, part in theirs.items() for job in self._within(part)]
        if not jobs:
            return
        hasty = replace(self._options, limits=ReadLimits(timeout_us=0))
        try:
            self.statistics.append(read_payloads(jobs, hasty, self._progress()))
        except CkptError as error:
            _log.warning("another rank gives nothing: %s", error.message)
            return
        self.sources.add("peers")
        for part in theirs.values():
            self._landed(part)

    def _progress(self) -> Progress:
        before = self._wanted_bytes - sum(map(total, self._left.values()))
        return lambda done_bytes: self._tell(before + done_bytes)

    def _within(self, part: _Part) -> list[ReadJob]:
        return [self._jobs[rank].within(spans) for rank, spans in part.items() if spans]

    def _landed(self, part: _Part) -> None:
        for rank, spans in list(part.items()):
            self._left[rank] = minus(self._left[rank], spans)


def _host_towards(address: str) -> str:
    """The address of this host on the way there; empty for a Unix socket. Nothing is sent."""
    where = parse_address(address)
    if not isinstance(where, TcpAddress):
        return ""
    endpoint = endpoint_by_resolver(where)
    with socket.socket(endpoint.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(endpoint.sockaddr)
        except OSError:
            return ""
        return str(probe.getsockname()[0])
