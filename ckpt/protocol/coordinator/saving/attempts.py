"""One attempt to write (run, step): what each rank has handed over and how far the commit has come.

    OPENING --row durable--> OPEN --all certified--> COMPARING --agreed--> INDEXING
       |                      |  ^                       |                    |  |
       |                      |  +---- too few columns --+--------------------+  | m+1 stored
       +----------------------+---> ABORTING --row durable--> ABORTED            v
                                                                              DECIDING
                                                                                 | row durable
                                                                                 v
              COMMITTED <--row durable-- CLOSING <-----------m+1 stored------ RECORDING

Left of DECIDING an attempt may abort; from DECIDING on it is only rolled forward. An attempt's
payloads are those of a launch's ranks, or files (members) under numbers of their own; the list of
members is closed by an explicit commit (members.py). Invariants: a payload is certified only with
proofs that check; COMMITTED only after RECORDING; `decided` bytes never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.documents.record import CommitRecord
from ckpt.format.layout import Layout
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.saving import (
    AttemptAborted,
    Certify,
    CommitInfo,
    PayloadPlanned,
    ReplicaPolicy,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.format.packed_table import Table
from ckpt.plan.placement import DomainKey, domain_key
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.keeping.placements import Placement
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.saving.forms import TableForms
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.events import Session


class AttemptState(Enum):
    """See the drawing above."""

    OPENING = "opening"
    OPEN = "open"
    COMPARING = "comparing"
    INDEXING = "indexing"
    DECIDING = "deciding"
    RECORDING = "recording"
    CLOSING = "closing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


ABORTABLE = (
    AttemptState.OPENING,
    AttemptState.OPEN,
    AttemptState.COMPARING,
    AttemptState.INDEXING,
)
"""States in which an abort is still possible."""
ENDED = (AttemptState.COMMITTED, AttemptState.ABORTING, AttemptState.ABORTED)


@dataclass(slots=True)
class Payload:
    """What one rank has handed over in this attempt."""

    id: PayloadId
    process: str
    save: int
    replicas: ReplicaPolicy
    session: Session | None
    layout: Layout
    allotment: Allotment | None = None
    """None while it is asked for, and for a payload resumed after a coordinator restart."""
    planned: PayloadPlanned | None = None
    opened_us: int = 0
    away_since_us: int | None = None
    """When its stager's session ended; None while it is here."""
    certify: Certify | None = None
    table_bytes: bytearray = field(default_factory=bytearray)
    """What has come of the document so far; empty once it is whole."""
    table: Table | None = None
    table_digest: bytes = b""
    """Of the document that the table was decoded from."""
    proofs: dict[ColumnNumber, ColumnProof] = field(default_factory=dict)
    """Of the last certify; a column that is streamed again loses its own."""
    fingerprints: tuple[bytes, ...] | None = None
    """Answers to the open comparison."""
    certified_us: int = 0
    request: int = 0
    """The number of its stager's open question; the plan is the answer."""
    member: str = ""
    """The file's name below the run; empty for a rank's payload."""
    homes: tuple[Home, ...] = ()
    """What its tensors may refer to."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What its trainer says of the step."""
    nth: int = 0
    """As in OpenPayload."""

    @property
    def certified(self) -> bool:
        return self.table is not None

    def column(self, number: ColumnNumber) -> ColumnId:
        return ColumnId(self.id, number)


@dataclass(slots=True)
class Attempt:
    """I am one generation in the making. The coordinator moves me; I only answer questions."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    world_size: int
    opened_us: int
    state: AttemptState = AttemptState.OPENING
    payloads: dict[Rank, Payload] = field(default_factory=dict)
    lagging: list[Rank] = field(default_factory=list)
    """Ranks whose payloads were not certified when `certified` looked at all of them."""
    left: dict[Rank, Payload] = field(default_factory=dict)
    """Payloads whose stager's session has ended once; it may be back. AttemptBook notes them."""
    recovered: bool = False
    """Found in the catalog at start; its stagers have to come back."""
    forms: TableForms = field(default_factory=TableForms)
    """Of its tables."""
    record: CommitRecord | None = None
    record_bytes: bytes = b""
    placement: Placement = field(default_factory=dict)
    """The accepted target of each column; fixed with the index."""
    index: bytes = b""
    warnings: tuple[str, ...] = ()
    homes: tuple[Home, ...] = ()
    """What its tables refer to, ascending; fixed with the index."""
    info: CommitInfo | None = None
    failure: AttemptAborted | None = None
    """What all are sent, once aborting."""
    refused: bool = False
    """A rank refused the step; whoever comes first to its launch afterwards hears it too."""
    refused_nth: int = 0
    """Its how-many-th save of the step that was; a later save of another rank does not hear it."""
    closed: bool = True
    """No payload may be added: False for members until a commit names them."""
    next_number: int = 0
    """Of the next member. For an open member list `world_size` is the durable bound of numbers."""
    askers: list[tuple[Session, int]] = field(default_factory=list)
    """Sessions that asked for the commit of members, and their requests: answered at its end."""
    written_by: set[LaunchNumber] = field(default_factory=set)
    """Launches whose ranks asked for the commit of members: their next loads get it, or newer."""

    @property
    def handed_over(self) -> bool:
        """Whether every rank has staged its payload; of files: whether the list is closed."""
        if self.of_members:
            return self.closed
        return len(self.payloads) == self.world_size

    @property
    def of_members(self) -> bool:
        """Whether its payloads are files."""
        return self.launch == NO_LAUNCH

    @property
    def certified(self) -> bool:
        """Every payload is. Asked at each that is certified: looks at all of them twice, not at
        each of thousands thousands of times.
        """
        if not self.handed_over:
            return False
        while self.lagging:
            payload = self.payloads.get(self.lagging[-1])
            if payload is not None and not payload.certified:
                return False
            self.lagging.pop()
        self.lagging = [rank for rank, each in self.payloads.items() if not each.certified]
        return not self.lagging

    def has(self, payload: Payload) -> bool:
        """Whether a payload is in it, and was not dropped."""
        return self.payloads.get(payload.id.rank) is payload

    @property
    def missing_ranks(self) -> list[Rank]:
        return [Rank(r) for r in range(self.world_size) if Rank(r) not in self.payloads]


class AttemptBook:
    """Every attempt in the making and the newest ended ones, in order of opening;
    several parts share me.
    """

    def __init__(self) -> None:
        self.attempts: dict[CheckpointId, Attempt] = {}
        """Only I add and forget them."""
        #: Those that had not ended when I looked last; an ended one never opens again.
        self._open: dict[CheckpointId, Attempt] = {}
        #: All, by what they write.
        self._of_step: dict[tuple[RunName, Step], dict[CheckpointId, Attempt]] = {}
        #: Whose stagers are here: the payloads of attempts that have not ended, by session.
        self._of_session: dict[Session, dict[PayloadId, Payload]] = {}

    def add(self, attempt: Attempt) -> None:
        """Note one that begins, or was found at a start."""
        id = attempt.checkpoint
        self.attempts[id] = self._open[id] = attempt
        self._of_step.setdefault((id.run, id.step), {})[id] = attempt

    def of_step(self, run: RunName, step: Step) -> Iterable[Attempt]:
        """Those that write it, or have ended, oldest first."""
        return self._of_step.get((run, step), {}).values()

    def speaks(self, attempt: Attempt, payload: Payload, session: Session) -> bool:
        """A payload's stager is here, in this session. False where it has a newer one: what it said
        over an older one before it dialed again comes late, and it hears no answer there.
        """
        if payload.session is not None and session < payload.session:
            return False
        self.let_go(payload)
        payload.session = session
        if attempt.state not in ENDED:
            self._of_session.setdefault(session, {})[payload.id] = payload
        return True

    def let_go(self, payload: Payload) -> None:
        """Its attempt has ended, or goes on without it: nobody is waited for."""
        session = payload.session
        if session is None or self._of_session.get(session, {}).get(payload.id) is not payload:
            return
        of_session = self._of_session[session]
        del of_session[payload.id]
        if not of_session:
            del self._of_session[session]

    def gone(self, session: Session) -> list[Payload]:
        """It ended: payloads of attempts that go on, whose stager that was."""
        payloads = self._of_session.pop(session, {}).values()
        found = []
        for payload in payloads:
            attempt = self.attempts.get(payload.id.checkpoint)
            if attempt is not None and attempt.state not in ENDED and attempt.has(payload):
                attempt.left[payload.id.rank] = payload
                found.append(payload)
        return found

    def of_run(self, run: RunName) -> list[Attempt]:
        """Attempts of a run that have not ended, oldest first."""
        return [a for a in self.open() if a.checkpoint.run == run]

    def open(self) -> list[Attempt]:
        """All attempts that have not ended."""
        ended = [id for id, attempt in self._open.items() if attempt.state in ENDED]
        for id in ended:
            del self._open[id]
        return list(self._open.values())

    @property
    def owes(self) -> bool:
        """Whether one that was decided before this coordinator began is still to be rolled forward:
        the process that decided it may have announced it.
        """
        rolled = (AttemptState.RECORDING, AttemptState.CLOSING)
        return any(a.recovered and a.state in rolled for a in self._open.values())

    def find(self, id: PayloadId) -> tuple[Attempt, Payload] | None:
        """A payload that was handed over, with its attempt."""
        attempt = self.attempts.get(id.checkpoint)
        payload = attempt.payloads.get(id.rank) if attempt is not None else None
        return (attempt, payload) if attempt is not None and payload is not None else None

    def trim(self, kept: int, payloads_kept: int) -> None:
        """Forget the oldest ended attempts: beyond `kept`, and until those that stay, or the newest
        one alone, have no more than `payloads_kept` payloads.
        """
        ended = [a for a in self.attempts.values() if a.state in ENDED]
        count, payloads = len(ended), sum(len(a.payloads) for a in ended)
        for attempt in ended:
            if count <= kept and (payloads <= payloads_kept or count == 1):
                return
            count -= 1
            payloads -= len(attempt.payloads)
            self._forget(attempt.checkpoint)

    def _forget(self, id: CheckpointId) -> None:
        del self.attempts[id]
        self._open.pop(id, None)
        of_step = self._of_step[id.run, id.step]
        del of_step[id]
        if not of_step:
            del self._of_step[id.run, id.step]


def count_columns(payload: Payload, members: Membership, rule: SpreadRule) -> list[ColumnNumber]:
    """The columns of a payload that count at this moment, ascending (the second count).

    A column counts when its target is live and has proved it under its current boot; each target
    counts once; in a domain at most the allowed number counts (P13).
    """
    counted: list[ColumnNumber] = []
    targets: set[TargetId] = set()
    in_domain: dict[DomainKey, int] = {}
    for number, proof in sorted(payload.proofs.items()):
        held = members.holds(proof.target, payload.column(number), proof.manifest_digest)
        if proof.target in targets or not held:
            continue
        domain = domain_key(proof.target, members.targets[proof.target].domain, rule.level)
        if in_domain.get(domain, 0) >= rule.max_per_domain:
            continue
        targets.add(proof.target)
        in_domain[domain] = in_domain.get(domain, 0) + 1
        counted.append(number)
    return counted
