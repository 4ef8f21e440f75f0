"""Small documents onto enough targets: index, commit record, tombstone.

Goals: the wanted number of durable copies, in distinct domains where possible, and in at least as
many domains as an answer has already promised; a silent target costs a small multiple of what the
others take, not its lease; a merely slow one still counts when it answers.
Plan: ask as many targets as copies are missing; for each that fails or is late, ask one more. A
late one stays asked, so that a cluster whose every disk is slow still comes to an end. One more
costs little, so it is asked soon; only a target that passes the whole patience, and takes many
times what most others do, is called slow. When the copies lie in too few domains, one in another
domain is asked. When no other is live, but targets are still coming after a coordinator's restart,
the copies are not enough yet.
Invariant: `then` runs once, with the targets that said DocumentStored, or () when they are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from msgspec.structs import replace

from ckpt.base.errors import NoSpace
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.record import CommitRecord
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DocumentStored, DocumentSummary, PutDocument
from ckpt.plan.placement import (
    Holder,
    Level,
    Survivable,
    check_level,
    document_targets,
    domain_key,
)
from ckpt.protocol.coordinator.cluster.candidates import document_candidates
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk, Reply, Then
from ckpt.protocol.events import Buffer, Session

PATIENCE_US = 300_000
"""A target that has not stored a small document within this is joined by another one."""
PATIENCE_BYTES_PER_US = 20
"""How much longer a large document may take."""
COMPANY_US_MIN = 50_000
"""Once most others have stored it, a target is joined by another one, but not before this."""
COMPANY_FACTOR = 2
"""Nor before so many times what they took."""
LATE_FACTOR = 8
"""Devices of one cluster differ by less: one that takes so many times as long is slow."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How many copies of a document are wanted, and where."""

    count: int
    first: tuple[TargetId, ...] = ()
    """Asked before all others."""
    domains: int = 0
    """In so many domains of `level` at least."""
    level: Level = "target"
    least: int = 1
    """On fewer it does not count, however few live."""
    full: tuple[TargetId, ...] = ()
    """Known to have no room: these are not asked."""


def copies_of_record(record: CommitRecord) -> Copies:
    """Where the index went: those have just answered; and in the domains that its answer needs.

    A record that lies on fewer than m + 1 is not seen by everybody who may be in force next.
    """
    code, info = Code.parse(record.info.code), record.info
    count, level = code.m + 1, check_level(info.domain_level)
    domains = info.domains_survivable + 1
    return Copies(count, record.index_targets, domains, level, least=min(count, code.floor))


def store_document(
    desk: Desk,
    members: Membership,
    checkpoint: CheckpointId,
    kind: DocumentKind,
    document: bytes,
    copies: Copies,
    then: Callable[[tuple[TargetId, ...]], None],
    later: Then = lambda: None,
    no_room: Callable[[tuple[TargetId, ...]], None] = lambda _full: None,
) -> None:
    """Put a document on as many live targets as `copies` says, or on all of them when fewer live
    and no more are to come; never on fewer than its `least`. `later` runs for each that has it
    after `then`; `no_room` before `then` where it is on fewer than it should be, with those that
    have said that they are full.
    """
    spread = _Spread(desk, members, checkpoint, kind, document, copies, then)
    spread.later, spread.no_room = later, no_room
    spread.fill()


def spread_of(members: Membership, on: Collection[TargetId], level: Level) -> Survivable:
    """What may be lost with a copy left."""
    domains = {domain_key(id, members.targets[id].domain, level) for id in on}
    return Survivable(len(on) - 1, len(domains) - 1, level)


def send_document(
    desk: Desk,
    session: Session,
    message: PutDocument,
    document: bytes,
    reply: Reply,
    *,
    patience_us: int,
    late: Then | None = None,
) -> int:
    """All parts to one target, of which only the last is answered; `message` is of the first. The
    number and the rest as of `Desk.ask`.
    """
    view = memoryview(document)
    last = max(0, (len(document) - 1) // FRAME_BULK_BYTES_MAX * FRAME_BULK_BYTES_MAX)
    for offset in range(0, last, FRAME_BULK_BYTES_MAX):
        part = view[offset : offset + FRAME_BULK_BYTES_MAX]
        desk.send(session, 0, replace(message, offset=offset), part)
    return desk.ask(
        session, replace(message, offset=last), reply, view[last:], patience_us=patience_us,
        late=late,
    )  # fmt: skip


class _Spread:
    """I am one document on its way. My closures keep me until `then` has run."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoint: CheckpointId,
        kind: DocumentKind,
        document: bytes,
        copies: Copies,
        then: Callable[[tuple[TargetId, ...]], None],
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoint = checkpoint
        self._kind = kind
        self._document = document
        self._digest = xxh3_128(document)
        self._copies = copies
        self._then = then
        self.later: Then = lambda: None
        """For each that has stored it after `then`."""
        self.no_room: Callable[[tuple[TargetId, ...]], None] = lambda _full: None
        """Before `then`, with those that had no room, when copies are missing."""
        self._patience_us = PATIENCE_US + len(document) // PATIENCE_BYTES_PER_US
        #: When each was asked.
        self._began_us: dict[TargetId, int] = {}
        #: The desk's numbers of those that may still be hastened.
        self._questions: dict[TargetId, int] = {}
        #: What each that has stored it took.
        self._took_us: list[int] = []

        #: Everybody who was chosen so far: nobody is asked twice.
        self._tried: set[TargetId] = set(copies.full)
        #: Those that did not answer yet, late ones too.
        self._asked: set[TargetId] = set()
        #: Those of `_asked` whose patience is over: others are asked in their place.
        self._late: set[TargetId] = set()
        #: Those of `_late` that are not called slow yet.
        self._unblamed: set[TargetId] = set()
        #: Those that have it on stable storage.
        self._stored: set[TargetId] = set()
        #: Those that have no room for it.
        self._full: set[TargetId] = set(copies.full)
        self._done = False

    def fill(self) -> None:
        """Ask whom it takes; conclude when nothing more can come, or enough has."""
        if self._done:
            return
        wanted = self._copies.count - len(self._stored) - len(self._asked - self._late)
        if wanted > 0:
            chosen = self._choose(wanted, last_resort=False, among=self._copies.first)
            chosen += self._choose(wanted - len(chosen), last_resort=False)
            # A device that fails may still take a small one.
            chosen += self._choose(wanted - len(chosen), last_resort=True)
            for target in chosen:
                self._put(target)
        elif not self._asked and self._lacks_domains:
            for target in self._choose_elsewhere():
                self._put(target)
        if not self._done and (self._has_enough or not self._asked):
            self._done = True
            possible = max(self._copies.least, len(self._members.live()))
            needed = self._copies.count
            if not self._members.gathering:
                needed = min(needed, possible)
            waits = self._members.gathering and self._lacks_domains
            enough = len(self._stored) >= needed and not waits
            if self._full and not self._has_enough:
                self.no_room(tuple(sorted(self._full)))
            self._then(tuple(sorted(self._stored)) if enough else ())

    @property
    def _has_enough(self) -> bool:
        return len(self._stored) >= self._copies.count and not self._lacks_domains

    @property
    def _lacks_domains(self) -> bool:
        return len({self._domain_of(id) for id in self._stored}) < self._copies.domains

    def _domain_of(self, id: TargetId) -> object:
        return domain_key(id, self._members.targets[id].domain, self._copies.level)

    def _choose_elsewhere(self) -> tuple[TargetId, ...]:
        """One more, if somebody is live whose domain has no copy."""
        taken = {self._domain_of(id) for id in self._stored}
        known = document_candidates(self._members, last_resort=False)
        fresh = [c for c in known if c.target not in self._tried]
        chosen = document_targets([c for c in fresh if self._domain_of(c.target) not in taken], 1)
        self._tried.update(chosen)
        self._asked.update(chosen)
        return chosen

    def _choose(
        self, count: int, *, last_resort: bool, among: tuple[TargetId, ...] | None = None
    ) -> tuple[TargetId, ...]:
        known = document_candidates(self._members, last_resort=last_resort)
        if among is not None:
            known = [c for c in known if c.target in among]
        # A late one may never store it: its domain is open to whoever comes in its place.
        hold = sorted(self._stored | (self._asked - self._late))
        beside = [Holder(id, self._members.targets[id].domain) for id in hold]
        untried = [c for c in known if c.target not in self._tried]
        chosen = document_targets(untried, count, beside)
        self._tried.update(chosen)
        self._asked.update(chosen)
        return chosen

    def _answered(self, target: TargetId, stored: bool) -> None:
        self._asked.discard(target)
        self._late.discard(target)
        self._unblamed.discard(target)
        self._questions.pop(target, None)
        if stored:
            self._stored.add(target)
            took_us = self._desk.now_us - self._began_us[target]
            self._members.targets[target].reserving.disk_answered(took_us)
            if self._was_slow(took_us):
                self._members.note_slow(target)
            self._took_us.append(took_us)
            self._blame()
            size = len(self._document)
            summary = DocumentSummary(self._kind, self._checkpoint, size, self._digest)
            # Labels, or an index, have taken the place of earlier ones.
            self._members.targets[target].documents.put(summary)
            if self._done:
                self.later()
        self._hasten()
        self.fill()

    def _hasten(self) -> None:
        """Those that are still asked get company once most others have stored it, long ago."""
        took = sorted(self._took_us)
        if 2 * len(took) <= len(self._questions):
            return
        company_us = max(COMPANY_US_MIN, COMPANY_FACTOR * took[len(took) // 2])
        for target, question in self._questions.items():
            self._desk.hasten(question, self._began_us[target] + company_us)

    def _was_slow(self, took_us: int) -> bool:
        """Whether who took so long passed the patience, and most others took a small part of it."""
        took = sorted(self._took_us)
        # One may have had it before, and answers at once.
        if not took or 2 * len(took) <= len(self._began_us) - 1:
            return False
        return took_us >= max(self._patience_us, LATE_FACTOR * took[len(took) // 2])

    def _is_late(self, target: TargetId) -> None:
        if target in self._asked:
            self._questions.pop(target, None)
            self._late.add(target)
            self._unblamed.add(target)
            self._blame()
            self.fill()

    def _blame(self) -> None:
        """Late ones are slow beside most others, never by themselves: all disks may be."""
        for target in sorted(self._unblamed):
            if self._was_slow(self._desk.now_us - self._began_us[target]):
                self._unblamed.discard(target)
                self._members.note_slow(target)

    def _put(self, id: TargetId) -> None:
        """All parts of the document to one target; only the last part is answered."""
        session = self._members.targets[id].session
        self._began_us[id] = self._desk.now_us
        message = PutDocument(
            self._members.term, self._kind, self._checkpoint, len(self._document), 0, self._digest
        )
        if session is None or not self._desk.knows(session, message):
            self._answered(id, False)
            return

        def answered(message: Message, _bulk: Buffer) -> None:
            if isinstance(message, Failed) and message.code == NoSpace.code:
                self._full.add(id)
            self._answered(id, isinstance(message, DocumentStored))

        self._questions[id] = send_document(
            self._desk, session, message, self._document, answered,
            patience_us=self._patience_us, late=lambda: self._is_late(id),
        )  # fmt: skip
