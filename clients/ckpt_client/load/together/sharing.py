"""Reading together: what several ranks want at the same time is read by one of them.

    what is mine --tier or object store--> memory --peer server--> other ranks
    what is theirs <--their peer servers, checked as if it came from there--

The coordinator says which is which (ckpt.protocol.coordinator.reading.sharing). It takes no process
group, and no rank waits for one that has not come. Whatever goes wrong with a peer or with the
sharing itself, a rank reads the bytes itself: sharing never makes a load fail.

What the bytes are is the business of what is shared: payloads of the tier (payloads.py), or
objects of a store (chunks.py).
"""

from __future__ import annotations

import logging
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ckpt.aio.net.address import TcpAddress, endpoint_by_resolver, parse_addresses
from ckpt.aio.net.socketpath import runtime_directory
from ckpt.aio.net.wire_policy import FollowedWire
from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, Rank
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages import Message
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.sharing import LeaveReads, NextReads, ShareReads
from ckpt.format.spans import OURS, SPANS_MAX, PayloadSpan, decode_spans, encode_spans
from ckpt.protocol.runs.spans import Spans, minus, total, union
from ckpt.transfer.peer_server import PeerServer
from ckpt_client.load.together.meeting import Meeting

LEAVE_TIMEOUT_S: Final = 30.0
"""The longest that a rank which has everything stays to serve others."""
SHARED_BYTES_MIN: Final = 8 * MiB
"""Fewer bytes are read faster than other ranks are found."""

_log = logging.getLogger("ckpt.restore")
Part = Mapping[Rank, Spans]
"""Bytes of payloads by their rank (of a home's by a number above all ranks: PayloadFinder.number),
or of a store's objects by their number."""


def merged(parts: Iterable[Part]) -> Part:
    """All of them together."""
    whole: dict[Rank, Spans] = {}
    for part in parts:
        for rank, spans in part.items():
            whole[rank] = union(whole.get(rank, ()), spans)
    return whole


class Shared(Protocol):
    """The bytes that ranks read together. Asked from one thread; `done_bytes` are here already."""

    @property
    def align_bytes(self) -> int:
        """Spans are cut at multiples of it."""

    def wanted(self) -> Part:
        """All of them."""

    def read(self, part: Part, done_bytes: int) -> None:
        """Read these from where everybody can. Raises as a load does."""

    def offer(self, part: Part, server: PeerServer) -> None:
        """Make these bytes, which were read, available to peers."""

    def read_from(self, peers: Mapping[TargetAddress, Part], done_bytes: int) -> Part:
        """Ask peers for these bytes: returns what came and is right."""


class SharedReading:
    """One read of what other ranks may want too. Used once, by one thread."""

    def __init__(
        self, meeting: Meeting, checkpoint: CheckpointId, key: str, shared: Shared
    ) -> None:
        """key: what ranks that read together have in common."""
        self._meeting = meeting
        self._checkpoint = checkpoint
        self._key = key
        self._shared = shared
        #: By rank: the spans that are not here yet.
        self._left: dict[Rank, Spans] = dict(shared.wanted())
        self._wanted_bytes = sum(map(total, self._left.values()))

    def read(self) -> None:
        """Read all of it. Raises as `Shared.read` does."""
        wanted = [
            PayloadSpan(OURS, rank, start, end)
            for rank, spans in sorted(self._left.items())
            for start, end in spans
        ]
        server = None if len(wanted) > SPANS_MAX else self._serve()
        if server is not None:
            try:
                self._read_together(server, wanted)
            finally:
                server.close()
        self._read_myself(self._left)

    def _serve(self) -> PeerServer | None:
        try:
            directory: Path | None = runtime_directory()
        except CkptError:
            directory = None
        meeting = self._meeting
        try:
            host = _host_towards(meeting.address)
            wire = FollowedWire(meeting.wire)
            return PeerServer(meeting.secret, meeting.cluster, host, directory, wire)
        except CkptError as error:
            _log.warning("reading alone: %s", error.message)
            return None

    def _read_together(self, server: PeerServer, wanted: list[PayloadSpan]) -> None:
        question: Message = ShareReads(
            self._checkpoint, self._key, server.address, self._shared.align_bytes
        )
        bulk = encode_spans(wanted)
        stay_s = 0.0
        try:
            while (told := self._ask(question, bulk)) is not None:
                mine, theirs = told
                if not mine and not theirs:
                    stay_s = min(LEAVE_TIMEOUT_S, self._meeting.timeout_s)
                    break
                self._read_myself(mine)
                self._shared.offer(mine, server)
                if theirs:
                    # What is not given stays left, and is read in the end.
                    self._landed(self._shared.read_from(theirs, self._done_bytes))
                question, bulk = NextReads(), b""
        finally:
            with suppress(CkptError):
                self._meeting.share(LeaveReads(int(stay_s * US_PER_S)), b"")

    def _ask(
        self, question: Message, bulk: bytes
    ) -> tuple[dict[Rank, Spans], dict[TargetAddress, dict[Rank, Spans]]] | None:
        """What to read, and what from whom; None when there is no sharing (left)."""
        try:
            reply, told = self._meeting.share(question, bulk)
            spans = decode_spans(told)
            peers = [reply.peers[span.peer] if span.peer != OURS else None for span in spans]
        except (CkptError, IndexError) as error:
            _log.warning("reading alone from here on: %s", error)
            return None
        mine: dict[Rank, Spans] = {}
        theirs: defaultdict[TargetAddress, dict[Rank, Spans]] = defaultdict(dict)
        for span, peer in zip(spans, peers, strict=True):
            part = mine if peer is None else theirs[peer]
            part[span.rank] = union(part.get(span.rank, ()), ((span.start, span.end),))
        return mine, theirs

    def _read_myself(self, part: Part) -> None:
        if any(part.values()):
            self._shared.read(part, self._done_bytes)
            self._landed(part)

    @property
    def _done_bytes(self) -> int:
        return self._wanted_bytes - sum(map(total, self._left.values()))

    def _landed(self, part: Part) -> None:
        for rank, spans in list(part.items()):
            self._left[rank] = minus(self._left[rank], spans)


def _host_towards(address: str) -> str:
    """The address of this host on the way there, of several to the first; empty for a Unix socket.
    Nothing is sent.
    """
    where = parse_addresses(address)[0]
    if not isinstance(where, TcpAddress):
        return ""
    endpoint = endpoint_by_resolver(where)
    with socket.socket(endpoint.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(endpoint.sockaddr)
        except OSError:
            return ""
        return str(probe.getsockname()[0])
