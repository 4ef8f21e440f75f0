"""Is this coordinator's catalog the newest there is? Nothing is served before its targets say so.

    GATHERING --enough targets have vouched--> VOUCHED
        +----- one target proves it old -------+------> OLD, for good: it is noted in the catalog

A catalog may be lost, emptied, put back from a copy, or rolled back with its disk. It cannot see
that by itself, and acknowledged steps would be gone, or a generation given out twice. What targets
keep shows it:

    term      a target obeys the highest term that it ever met; the catalog is old when that is
              above this process's term, or equal to it but another process's
    position  (term, ticket) of the newest entry that a coordinator had made durable: sent to
              targets with each lease, kept on their stable storage; the catalog's own is before it
    holdings  a commit record, a tombstone, an index or a column of a generation that the catalog
              has never opened, or has open, or aborted; a tombstone of one that it calls committed

A target vouches when none of these speaks against the catalog, it has listed all that it holds, and
this coordinator's term is on its stable storage. N counts all targets that the catalog knows or
that came, but for those that were not there when it was made from targets, until they come; for a
catalog without a checkpoint at least as many as its code has columns, for one that was made from
targets at least as many as were named then. Enough are

    at once           N - m, or those of all domains but m: before its commit is acknowledged, a
                      record lies on m + 1 targets, in as many domains: one of them vouches
    after 6 seconds   the majority of N, when that is fewer: larger clusters miss more than m
                      targets on any day; two majorities share a target, which knows the newest
                      term, and a position not much older than the newest entry. Not for a catalog
                      that was made from targets and has never served: its position is above any
                      that a coordinator which still runs may have sent them since

Until then only the status is answered. What stagers ask waits. What others ask waits as long as
targets are given to come, then fails and names those that are away. OLD refuses everything but what
stagers ask about saves under way: these may be committed, so they wait for a coordinator that
knows. A proof that comes later than VOUCHED also ends the service.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ckpt.base.errors import CkptError, Corrupt, Unavailable
from ckpt.base.ids import CatalogPosition, CheckpointId, Generation, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Ask, ReplaceTarget
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import OpenPayload
from ckpt.format.messages.targets import Attest, Attested, DocumentSummary, RegisterTarget
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.electorate import Electorate
from ckpt.protocol.coordinator.cluster.membership import (
    GATHERING_US,
    Membership,
    Target,
    TargetState,
)
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CatalogVouched, TargetListed, TargetVouched
from ckpt.protocol.coordinator.holding import HeldRequest, HeldRequests, kept
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.events import Buffer, Received, Session

HELD_COUNT_MAX = 65_536
HELD_BYTES_MAX = 64 << 20
"""Most requests that wait for the targets, here or in confirming.py, and most bytes of their bulks;
a peer that asks for more is cut off.
"""

NOBODY: Final[frozenset[TargetId]] = frozenset()

_BEFORE: Final[dict[DocumentKind, tuple[RowState, ...]]] = {
    DocumentKind.RECORD: (RowState.OPEN, RowState.ABORTED),
    DocumentKind.TOMBSTONE: (
        RowState.OPEN, RowState.DECIDED, RowState.COMMITTED, RowState.DAMAGED,
    ),
    DocumentKind.INDEX: (),
    DocumentKind.LABELS: (),
}  # fmt: skip
"""In these the catalog was when none was there yet: a record is put on targets only after it has
decided.
"""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the answer to a commit allows to lose, on top of who was away then."""

    absent: frozenset[TargetId] = NOBODY
    targets: int = 0
    domains: int = 0

    def covers(self, other: Allowance) -> bool:
        """Whether it allows all that the other one allows."""
        return (
            other.absent <= self.absent
            and other.targets <= self.targets
            and other.domains <= self.domains
        )


class CatalogStanding(Enum):
    """See the drawing above."""

    GATHERING = "gathering"
    VOUCHED = "vouched"
    OLD = "old"


@dataclass(frozen=True, slots=True, eq=False)
class _Held(HeldRequest):
    role: Role


class KnownGenerations(Protocol):
    """What the coordinator knows now."""

    @property
    def forgotten(self) -> Generation:
        """The newest generation whose row was forgotten."""

    def state_of(self, id: CheckpointId) -> RowState | None:
        """How far a generation has come; None when nothing is known of it."""


class Vouching:
    """I compare what targets say with the catalog. My owner asks me before it serves anybody."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        image: CatalogImage,
        policy: CoordinatorPolicy,
        known: KnownGenerations,
    ) -> None:
        self._desk = desk
        self._members = members
        self._parity = policy.code.m
        self._electorate = Electorate(members, policy.level)
        self._mend = policy.mend
        self._known = known

        #: The position of the newest entry in the catalog when this coordinator began.
        self._began_at = image.position
        self._rebuilt_term = image.rebuilt_term
        self._passed_over = frozenset(image.passed_over)
        self._is_empty = not image.rows
        self._target_count_min = max(policy.code.n if self._is_empty else 1, image.rebuilt_from)
        #: False for a catalog made of the targets that has not served yet. One that has served has
        #: reached an entry of its own.
        self._has_served = not image.rebuilt_from or image.position.ticket > 0

        #: Targets, and their directories' incarnations, that this process has sent its term.
        self._met: set[TargetId | bytes] = set()
        #: Of those targets, the ones that have it on stable storage; none that proved the catalog
        #: old, and none that has registered since and did not say so again.
        self._obey: set[TargetId] = set()
        #: Of those in `_met`, the ones that could not store it; each tick asks them again.
        self._unable: set[TargetId] = set()
        #: Of every target that registered, taken in or not, for the command that mends.
        self._addresses: dict[TargetId, str] = {}
        #: Requests that wait until service begins: at most HELD_COUNT_MAX, of HELD_BYTES_MAX.
        self._held: HeldRequests[_Held] = HeldRequests()
        #: When the first tick came; None before. Targets have GATHERING_US from here to come.
        self._born_us: int | None = None

        self.reason = image.outdated
        """What proves the catalog old; empty while nothing does."""
        self.standing = CatalogStanding.OLD if image.outdated else CatalogStanding.GATHERING

    # ----------------------------------------------------------------------- questions

    @property
    def serves(self) -> bool:
        return self.standing is CatalogStanding.VOUCHED

    @property
    def position(self) -> CatalogPosition | None:
        """How far the catalog is durable; None before the targets vouched for it."""
        return self._desk.position

    def problem(self) -> CkptError | None:
        """Why nobody is served, with what to do."""
        match self.standing:
            case CatalogStanding.VOUCHED:
                return None
            case CatalogStanding.OLD:
                text = f"the catalog is older than its targets: {self.reason}"
                return Corrupt(text, hint=f"run: {self.remedy()}")
        here, needed = len(self._vouching()), self._needed(patient=True)
        targets = self._members.targets
        waited = sorted(self._electorate.domains)
        away = [id for id in waited if targets[id].state is not TargetState.LIVE]
        if self.is_new:
            waits = f"{needed} are to vouch for it"
            text = f"the catalog is new and empty, and no target has come: {waits}"
            return Unavailable(text, hint=self.new_remedy(), retry_after_s=1.0)
        text = f"the catalog may be older than its targets: {here} of {needed} have vouched for it"
        named = f"; away: {', '.join(away)}" if away else ""
        return Unavailable(
            text + named, hint="start the targets: ckpt status says how", retry_after_s=1.0
        )

    @property
    def is_new(self) -> bool:
        """It names nothing, and nobody has come: it is of a cluster that begins, or another one is
        missing in its place.
        """
        return self._is_empty and not self._members.targets

    def new_remedy(self) -> str:
        """What to do of both."""
        again = self._mend.replace("{targets}", "HOST:PORT ...")
        return (
            "of a new cluster start the targets; if it had a catalog, end this coordinator and"
            f" bring that back where it was, or make it again: {again}"
        )

    def remedy(self) -> str:
        """The command that makes a catalog of what the targets hold."""
        addresses = " ".join(address for _, address in sorted(self._addresses.items()) if address)
        return self._mend.replace("{targets}", addresses)

    def learns_addresses(self) -> bool:
        """Whether targets may still come whose addresses the mending command needs: a catalog that
        is made from some targets lacks what the others hold."""
        return "{targets}" in self._mend and not self._is_patient()

    def _vouching(self) -> list[TargetId]:
        return [target.id for target in self._members.live() if target.id in self._obey]

    def _needed(self, *, patient: bool) -> int:
        count = max(len(self._electorate.domains), self._least())
        most = count - self._parity
        return max(1, min(most, count // 2 + 1) if patient and self._has_served else most)

    def _least(self) -> int:
        """So many targets there are at least, known or not."""
        removed = len(self._members.targets) - self._members.count
        return max(1, self._target_count_min - removed)

    def is_majority(self, ids: set[TargetId], allowed: Allowance) -> bool:
        """Whether so many would vouch for a catalog, with patience; or all but those that the last
        commit's answer allows to lose (confirming.py).
        """
        if self._is_enough(ids, patient=True) or self._are_domains(ids, NOBODY, self._parity):
            return True
        if not ids:
            return False
        known = self._electorate.domains
        if len(known) - len(allowed.absent) - len(ids) <= allowed.targets:
            left = known.keys() - allowed.absent - ids
            if len(left) <= allowed.targets:
                return True
        return self._are_domains(ids, allowed.absent, allowed.domains)

    def _is_enough(self, ids: set[TargetId], *, patient: bool) -> bool:
        if len(ids) >= self._needed(patient=patient):
            return True
        return not self._is_empty and self._are_domains(ids, NOBODY, self._parity)

    def _are_domains(self, ids: set[TargetId], absent: Set[TargetId], lost: int) -> bool:
        """Whether these are all targets of all domains but so many; of targets that are not known
        yet nobody can say where they stand.
        """
        votes = self._electorate
        if not ids or len(votes.domains) < self._least():
            return False
        if not votes.lacks_at_most(lost, come=len(ids), absent=len(absent)):
            return False
        return len(votes.away(ids, absent)) <= min(lost, votes.domain_count(absent) - 1)

    # ----------------------------------------------------------------------- requests

    def hold(self, role: Role, event: Received) -> None:
        """Keep a request until service begins; refuse it when it never will."""
        if self._is_refused(role, event):
            self._refuse(event)
            return
        held_bytes = self._held.bulk_bytes + len(event.bulk)
        if len(self._held) >= HELD_COUNT_MAX or held_bytes > HELD_BYTES_MAX:
            self._desk.close(event.session, "too much waits for the targets to come")
        else:
            self._held.add(_Held(kept(event), role))

    def _is_refused(self, role: Role, event: Received) -> bool:
        """Whether the answer is that the catalog is old. Not for what a stager asks about a save
        under way: that save may be committed, as the next catalog will know.
        """
        if self.standing is not CatalogStanding.OLD or self.learns_addresses():
            return False
        match event.message:
            case JoinLaunch(launch=known):
                return role is not Role.STAGER or known is None
            case OpenPayload(resume=attempt):
                return attempt is None
        return role is not Role.STAGER

    def _is_patient(self) -> bool:
        """Whether targets have had their time to come."""
        born_us = self._desk.now_us if self._born_us is None else self._born_us
        return self._desk.now_us - born_us >= GATHERING_US

    def session_closed(self, session: Session) -> None:
        self._held.session_closed(session)

    def release(self) -> list[Received]:
        """The requests that waited, in their order."""
        return [held.event for held in self._held.take_all()]

    def _refuse(self, event: Received) -> None:
        problem = self.problem()
        assert problem is not None
        if event.request:
            self._desk.fail(event.session, event.request, problem)

    # ----------------------------------------------------------------------- targets

    def objection(self, message: RegisterTarget) -> str:
        """What a target that registers proves against the catalog; empty if nothing."""
        id, term, noted = message.target, self._members.term, message.catalog
        if noted is not None and noted > self._began_at and noted.term < term:
            return f"target {id} knows its entry {noted}, but it ends with {self._began_at}"
        if message.term_seen > term or (message.term_seen == term and not self._is_mine(message)):
            return (
                f"target {id} has obeyed a coordinator of term {message.term_seen}, "
                f"which began from another catalog"
            )
        return ""

    def _is_mine(self, message: RegisterTarget) -> bool:
        """Whether the term that it has obeyed came from this process."""
        process = self._members.process
        if process and message.coordinator:
            return message.coordinator == process
        return message.target in self._met or message.incarnation in self._met

    def refuses(self, session: Session, request: int, message: RegisterTarget) -> bool:
        """Whether a target that registers is not taken in, since it proves the catalog old."""
        objection = self.objection(message)
        if not objection:
            return False
        self._addresses[message.target] = message.address
        self._obey.discard(message.target)
        self._is_old(objection)
        problem = self.problem()
        assert problem is not None
        self._desk.send(session, request, Failed(problem.code, problem.message, problem.hint))
        return True

    def registered(self, target: Target, incarnation: bytes) -> None:
        """Note that a target was sent the term, which it must put on stable storage."""
        assert target.session is not None
        self._met.add(target.id)
        if incarnation:
            self._met.add(incarnation)
        self._addresses[target.id] = target.address
        self._obey.discard(target.id)
        self._ask(target, target.session)

    def _ask(self, target: Target, session: Session) -> None:
        asked_us = self._desk.now_us

        def answered(message: Message, _bulk: Buffer) -> None:
            if target.session != session:
                return
            if isinstance(message, Attested):
                # Its disk had to make the term durable first.
                target.reserving.disk_answered(self._desk.now_us - asked_us)
                self._obey.add(target.id)
                self._count()
            else:
                self._unable.add(target.id)

        self._unable.discard(target.id)
        self._desk.ask(session, Attest(self._members.term, ()), answered)

    def _ask_again(self) -> None:
        """Those whose disk was full, say, when they were asked."""
        for target in [self._members.targets[id] for id in sorted(self._unable)]:
            if target.session is not None:
                self._ask(target, target.session)

    def listed(self, fact: TargetListed) -> None:
        """Compare all that a target holds with the catalog."""
        objection = self._objection_of_holdings(self._members.targets[fact.target])
        if objection:
            self._is_old(objection)
        elif self.serves:
            self._desk.tell(TargetVouched(fact.target))
        else:
            self._count()

    def _objection_of_holdings(self, target: Target) -> str:
        doubted = [one for one in target.documents if self._is_doubted(one)]
        if doubted:
            first = min(doubted, key=lambda d: (d.kind.value, d.checkpoint))
            state = self._known.state_of(first.checkpoint)
            known = "it does not know that" if state is None else f"there it is {state.value}"
            what = f"{first.kind.value} of {first.checkpoint}"
            return f"target {target.id} holds the {what}, {known}"
        news = [id for id in target.proved.checkpoints() if self._is_news(id, None)]
        if news:
            return f"target {target.id} holds a column of {min(news)}, it does not know that"
        return ""

    def _is_doubted(self, document: DocumentSummary) -> bool:
        state = self._known.state_of(document.checkpoint)
        if state is None:
            return self._is_news(document.checkpoint, document.kind)
        return state in _BEFORE[document.kind]

    def _is_news(self, id: CheckpointId, kind: DocumentKind | None) -> bool:
        """Whether a catalog that is not old would have a row of it.

        Columns and indexes alone are left of attempts that never committed: a rebuild makes no rows
        of them, nor of records that it has found and refused.
        """
        if self._known.state_of(id) is not None:
            return False
        if kind in (DocumentKind.RECORD, DocumentKind.TOMBSTONE):
            if id in self._passed_over:
                return False
        elif id.generation.term <= self._rebuilt_term:
            return False
        return id.generation > self._known.forgotten

    # ----------------------------------------------------------------------- time

    def tick(self) -> None:
        """Decide whether enough targets have come, or have had their time."""
        if self._born_us is None:
            self._born_us = self._desk.now_us
        self._ask_again()
        self._count()
        if self.standing is CatalogStanding.OLD and self._held and not self.learns_addresses():
            self._refuse_all()
        if self.standing is not CatalogStanding.GATHERING:
            return
        for held in self._held:
            waited_us = self._desk.now_us - held.event.now_us
            if held.role is not Role.STAGER and waited_us >= GATHERING_US:
                self._held.take(held)
                self._refuse(held.event)

    def _count(self) -> None:
        if self.standing is not CatalogStanding.GATHERING or self._are_few():
            return
        if not self._is_enough(set(self._vouching()), patient=self._is_patient()):
            return
        self.standing, self._has_served = CatalogStanding.VOUCHED, True
        self._desk.report("info", "the targets vouch for the catalog", targets=len(self._obey))
        self._desk.vouched(self._members.term)
        self._desk.tell(CatalogVouched())

    def _are_few(self) -> bool:
        """So few vouch that nobody has to be looked at, as while a thousand come."""
        most = min(len(self._obey), self._members.live_count)
        enough = most >= self._needed(patient=self._is_patient())
        return not enough and not self._electorate.lacks_at_most(self._parity, come=most, absent=0)

    def _is_old(self, reason: str) -> None:
        if self.standing is CatalogStanding.OLD:
            return
        self.standing, self.reason = CatalogStanding.OLD, reason
        problem = self.problem()
        assert problem is not None
        self._desk.report("error", problem.message, remedy=self.remedy())
        # Each start takes a term more: it would outgrow the proof.
        self._desk.persist((catalog.CatalogOutdated(reason),), lambda: None)
        if not self.learns_addresses():
            self._refuse_all()

    def _refuse_all(self) -> None:
        for held in self._held:
            if self._is_refused(held.role, held.event):
                self._held.take(held)
                self._refuse(held.event)


def is_of_people(message: Message) -> bool:
    """What is answered also while nobody is served: the status, and which directory is a target."""
    return isinstance(message, ReplaceTarget) or (
        isinstance(message, Ask) and message.what == "status"
    )
