"""Who reads what from the tier, when several ranks read the same bytes at the same time.

    wanted --nobody has it: granted to who asks--> READING --its reader asks for more--> READY
       ^                                              |                                    |
       +------ its reader is gone, or has left -------+------------------------------------+

A rank that wants a span which is READY is sent to the peer that read it; one that is READING makes
it wait, and after PATIENCE_US it reads the span itself. So each byte is read from the tier once as
long as nobody dies or hangs, and never more often than once by each rank.

Ranks that load from an object store share its objects in the same way: what is said here of
payloads and the tier also holds for them (decision 0010).

Only ranks that read at the same time share: who comes when all others have finished reads the tier.
A rank that has all it wanted goes on serving until the others of its group have it too, but for
those that are silent for PATIENCE_US; it never serves longer than its own timeout.
Nothing here is durable: after a restart ranks find no group, and read the tier.

Invariants (`check`): the segments of a payload are disjoint, and each one's owner is in the group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, Rank
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.sharing import LeaveReads, NextReads, ReadsShared, ShareReads
from ckpt.format.spans import OURS, SPANS_MAX, PayloadSpan, decode_spans, encode_spans
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.events import Buffer, Session

GRANT_BYTES: Final = (8 * MiB, 64 * MiB)
"""Least and most that a rank is granted at a time: large enough to stream, small enough that ranks
which begin a little later find something to do."""
READY_BYTES: Final = 256 * MiB
"""Most that a rank is sent to peers for at a time: it must be heard of within PATIENCE_US."""
PATIENCE_US: Final = 5 * US_PER_S
"""For a span that another rank is reading, and for a word from it; a live one reads what it was
granted in far less."""


@dataclass(slots=True, eq=False)
class _Segment:
    """A span that one rank reads, or has read."""

    rank: Rank
    start: int
    end: int
    owner: _Member
    ready: bool = False


class _Segments:
    """Of one payload, ascending and disjoint."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._all: list[_Segment] = []

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int, _Segment | None]]:
        """[start, end) in pieces, each with the segment it lies in, or None."""
        at = start
        for place in range(max(0, bisect_right(self._starts, start) - 1), len(self._all)):
            segment = self._all[place]
            if segment.start >= end:
                break
            if segment.end <= at:
                continue
            if at < segment.start:
                yield at, segment.start, None
                at = segment.start
            yield at, min(end, segment.end), segment
            at = min(end, segment.end)
        if at < end:
            yield at, end, None

    def add(self, segment: _Segment) -> None:
        place = bisect_left(self._starts, segment.start)
        self._starts.insert(place, segment.start)
        self._all.insert(place, segment)

    def drop(self, owner: _Member) -> None:
        self._all = [segment for segment in self._all if segment.owner is not owner]
        self._starts = [segment.start for segment in self._all]

    def check(self, members: dict[Session, _Member]) -> None:
        """Assert the invariants that the module states."""
        at = 0
        for segment in self._all:
            assert at <= segment.start < segment.end
            assert members.get(segment.owner.session) is segment.owner
            at = segment.end


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A question without an answer yet."""

    request: int
    until_us: int


@dataclass(slots=True, eq=False)
class _Member:
    """A rank that reads, over its session."""

    session: Session
    peer: TargetAddress
    align_bytes: int
    wanted: list[PayloadSpan]
    """Neither granted to it nor answered with a peer that has it."""
    reading: list[_Segment] = field(default_factory=list)
    """Granted to it by the last answer: it reads these for all."""
    asking: _Waiting | None = None
    """Its question for more, while that is open."""
    leaving: _Waiting | None = None
    """Its question whether it may go; it needs nothing more, others may need what it has."""
    heard_us: int = 0

    def needs_nobody(self, now_us: int) -> bool:
        """It has everything, or is silent for so long that nobody waits for it."""
        return self.leaving is not None or now_us - self.heard_us >= PATIENCE_US


@dataclass(slots=True, eq=False)
class _Group:
    """Ranks that read one generation together."""

    members: dict[Session, _Member] = field(default_factory=dict)
    segments: dict[Rank, _Segments] = field(default_factory=dict)

    def parts(self, span: PayloadSpan) -> Iterator[tuple[int, int, _Segment | None]]:
        return self.segments.setdefault(span.rank, _Segments()).parts(span.start, span.end)


class ReaderGroups:
    """I keep the groups of ranks that read together."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        #: By the generation and the key that its ranks share; none is empty.
        self._groups: dict[tuple[CheckpointId, str], _Group] = {}
        #: Of every member, the group that it is in.
        self._keys: dict[Session, tuple[CheckpointId, str]] = {}

    def handle(
        self, session: Session, request: int, message: ShareReads | NextReads | LeaveReads,
        bulk: Buffer,
    ) -> None:  # fmt: skip
        """Raises Refused."""
        match message:
            case ShareReads():
                self._share(session, request, message, bulk)
            case NextReads():
                self._next(session, request)
            case LeaveReads():
                self._leave(session, request, message.timeout_us)

    def _share(self, session: Session, request: int, message: ShareReads, bulk: Buffer) -> None:
        """A rank begins to read. Raises Refused for spans that overlap or do not ascend."""
        wanted = decode_spans(bulk)
        if any(
            a.rank > b.rank or (a.rank == b.rank and a.end > b.start) for a, b in pairwise(wanted)
        ):
            raise Refused("spans that overlap or do not ascend")
        if message.align_bytes < 1:
            raise Refused("spans cannot be parted at multiples of nothing")
        self._drop(session)
        key = self._keys[session] = (message.checkpoint, message.key)
        group = self._groups.setdefault(key, _Group())
        member = _Member(session, message.peer, message.align_bytes, wanted)
        group.members[session] = member
        self._ask(group, member, request)

    def _next(self, session: Session, request: int) -> None:
        """A rank has read what it was granted. Raises Refused for one that does not share."""
        group = self._group_of(session)
        if group is None:
            raise Refused("this session shares no reads", hint="ShareReads comes first")
        member = group.members[session]
        for segment in member.reading:
            segment.ready = True
        member.reading.clear()
        self._ask(group, member, request)

    def _leave(self, session: Session, request: int, timeout_us: int) -> None:
        """A rank needs nothing more; what it was granted and did not read is free."""
        group = self._group_of(session)
        if group is None:
            self._desk.send(session, request, ReadsShared())
            return
        member = group.members[session]
        member.wanted.clear()
        member.leaving = _Waiting(request, self._desk.now_us + timeout_us)
        if timeout_us <= 0:
            self._dismiss([member])
        self._settle(group)

    def session_closed(self, session: Session) -> None:
        """Note that a rank is gone, with all that it would have given."""
        self._drop(session)

    def tick(self) -> None:
        """End the patience with silent ranks."""
        for group in list(self._groups.values()):
            late = [
                member
                for member in group.members.values()
                if member.leaving is not None and member.leaving.until_us <= self._desk.now_us
            ]
            self._dismiss(late)
            self._settle(group)

    def check(self) -> None:
        """Assert the invariants that the module states."""
        for group in self._groups.values():
            assert group.members
            for segments in group.segments.values():
                segments.check(group.members)

    # ----------------------------------------------------------------------- members

    def _group_of(self, session: Session) -> _Group | None:
        key = self._keys.get(session)
        return None if key is None else self._groups[key]

    def _drop(self, session: Session) -> None:
        group = self._group_of(session)
        if group is not None:
            self._remove(group.members[session])
            self._settle(group)

    def _remove(self, member: _Member) -> None:
        key = self._keys.pop(member.session)
        group = self._groups[key]
        del group.members[member.session]
        for segments in group.segments.values():
            segments.drop(member)
        if not group.members:
            del self._groups[key]

    def _dismiss(self, members: list[_Member]) -> None:
        """They may go now."""
        for member in members:
            assert member.leaving is not None
            self._desk.send(member.session, member.leaving.request, ReadsShared())
            self._remove(member)

    def _settle(self, group: _Group) -> None:
        """When nobody needs anybody any more, who waits for that may go."""
        members = list(group.members.values())
        if all(member.needs_nobody(self._desk.now_us) for member in members):
            self._dismiss([member for member in members if member.leaving is not None])
        self._answer_all(group)

    # ----------------------------------------------------------------------- answers

    def _ask(self, group: _Group, member: _Member, request: int) -> None:
        member.heard_us = self._desk.now_us
        member.asking = _Waiting(request, self._desk.now_us + PATIENCE_US)
        self._answer_all(group)

    def _answer_all(self, group: _Group) -> None:
        for member in group.members.values():
            if member.asking is not None:
                self._try_answer(group, member, member.asking)

    def _try_answer(self, group: _Group, member: _Member, asking: _Waiting) -> None:
        free, ready, reading = self._sorted(group, member)
        if free:
            taken, left = _cut(free, self._grant_bytes(group, free), member.align_bytes)
            member.wanted = [*left, *ready, *reading]
            self._grant(group, member, taken)
            self._tell(member, taken)
        elif ready:
            taken, left = _cut(ready, READY_BYTES, member.align_bytes)
            member.wanted = [*left, *reading]
            self._tell(member, taken)
        elif not reading:
            self._tell(member, [])
        elif asking.until_us <= self._desk.now_us:
            member.wanted = []
            self._tell(member, reading)

    def _sorted(
        self, group: _Group, member: _Member
    ) -> tuple[list[PayloadSpan], list[PayloadSpan], list[PayloadSpan]]:
        """What the member wants: nobody has it, a peer has it, a peer is reading it."""
        free: list[PayloadSpan] = []
        ready: list[PayloadSpan] = []
        reading: list[PayloadSpan] = []
        for span in member.wanted:
            for start, end, segment in group.parts(span):
                part = PayloadSpan(OURS, span.rank, start, end)
                if segment is None:
                    free.append(part)
                elif segment.ready:
                    ready.append(part._replace(peer=segment.owner.session))
                else:
                    reading.append(part)
        return free, ready, reading

    def _grant_bytes(self, group: _Group, free: list[PayloadSpan]) -> int:
        share = sum(span.size for span in free) // (2 * max(2, len(group.members)))
        return min(max(share, GRANT_BYTES[0]), GRANT_BYTES[1])

    def _grant(self, group: _Group, member: _Member, taken: list[PayloadSpan]) -> None:
        for span in taken:
            segment = _Segment(span.rank, span.start, span.end, member)
            group.segments[span.rank].add(segment)
            member.reading.append(segment)

    def _tell(self, member: _Member, spans: list[PayloadSpan]) -> None:
        """Spans whose peer is a session go out with the peers' addresses."""
        asking, member.asking = member.asking, None
        assert asking is not None
        sessions = sorted({span.peer for span in spans if span.peer != OURS})
        numbers = {OURS: OURS, **{session: n for n, session in enumerate(sessions)}}
        group = self._group_of(member.session)
        assert group is not None
        peers = tuple(group.members[Session(session)].peer for session in sessions)
        rows = encode_spans(span._replace(peer=numbers[span.peer]) for span in spans)
        self._desk.send(member.session, asking.request, ReadsShared(peers), rows)


def _cut(
    spans: list[PayloadSpan], size: int, align_bytes: int
) -> tuple[list[PayloadSpan], list[PayloadSpan]]:
    """The first spans, of `size` bytes or a little more, and the rest."""
    for number, span in enumerate(spans[:SPANS_MAX]):
        if size <= span.size:
            border = -(-(span.start + size) // align_bytes) * align_bytes
            if border >= span.end:
                return spans[: number + 1], spans[number + 1 :]
            head, tail = span._replace(end=border), span._replace(start=border)
            return [*spans[:number], head], [tail, *spans[number + 1 :]]
        size -= span.size
    return spans[:SPANS_MAX], spans[SPANS_MAX:]
