"""What must be true, checked from outside the machines; the promises are P1 to P14 of
docs/failure_model.md.

Each method is told something that happened and raises Violation when a promise is broken. The
oracles look at the fake disks' durable bytes and at their own history, never at a machine's opinion
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from ckpt.base.errors import Corrupt
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Domain,
    LaunchNumber,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader, decode_header
from ckpt.format.documents.moves import decode_moves
from ckpt.format.documents.record import decode_record
from ckpt.format.index.reader import decode_index
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    ColumnsLost,
    CommitInfo,
    PayloadPlanned,
    SparesNamed,
)
from ckpt.plan.placement import Level, domain_key
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.stager.events import Outcome, SaveCommitted
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import FakeDisk

if TYPE_CHECKING:
    from tests.sim.payloads import Job


CATALOG_FULL = "the catalog of cluster "
"""So begins what is said of one without room."""
Columns = tuple[TargetId | None, ...]
Placement = dict[Rank, Columns]
WATCHED = frozenset(
    {
        AttemptCommitted,
        Resolved,
        PayloadPlanned,
        AttemptAborted,
        Failed,
    }
)
"""What the coordinator says that an oracle looks at."""
HALVES = (0, 1)
"""Of an arena."""


class Violation(AssertionError):
    """A promise is broken. The message names it."""


@lru_cache(maxsize=256)
def _header(first: bytes, last: bytes) -> ColumnHeader:
    """Either copy: the scenario may have harmed one."""
    try:
        return decode_header(first)
    except Corrupt:
        return decode_header(last)


@dataclass(frozen=True, slots=True)
class Spread:
    """The cluster's rule: so many columns of a payload at most in one domain of the level."""

    level: Level
    max_per_domain: int


ALONE = Spread("target", 1)


@dataclass(slots=True)
class Announced:
    """A checkpoint that somebody outside heard of."""

    info: CommitInfo
    placement: Placement


class WatchedRank(Protocol):
    """What an oracle must know of a rank_node.RankNode."""

    name: str
    rank: int

    @property
    def launch_number(self) -> int | None: ...

    def step_of(self, save: int) -> int: ...


@dataclass(slots=True)
class Oracles:
    """I watch one world."""

    disk_of: Callable[[TargetId], FakeDisk]
    content_of: Callable[[PayloadId], bytes]
    is_lost: Callable[[TargetId], bool]
    is_unknown_loss: Callable[[TargetId], bool]
    """Harmed so lately that the coordinator cannot know it yet: a loss after the answer."""
    is_harmed: Callable[[TargetId], bool]
    """Lost or wiped at any time."""
    targets: Collection[TargetId] = ()
    """All that there are."""
    domain_of: Callable[[TargetId], Domain] | None = None
    """Where a target stands; None when nobody asks."""
    spread: Spread = ALONE
    announced: dict[CheckpointId, Announced] = field(default_factory=dict)
    """Every committed checkpoint that anybody was told of."""
    aborted: set[CheckpointId] = field(default_factory=set)
    opened: dict[CheckpointId, catalog.AttemptOpened] = field(default_factory=dict)
    """Durable openings, in order."""
    decided: dict[CheckpointId, catalog.AttemptDecided] = field(default_factory=dict)
    placements: dict[bytes, Placement] = field(default_factory=dict)
    """What each index says, by its digest, which the record has, and what has moved since."""
    index_places: dict[bytes, Placement] = field(default_factory=dict)
    """The same without what has moved."""
    harm_counted: dict[CheckpointId, set[TargetId]] = field(default_factory=dict)
    """Targets that were lost or wiped when it was decided, as the second count could know."""
    harmed_before: dict[CheckpointId, set[TargetId]] = field(default_factory=dict)
    """The same of all targets: what holds its record is named nowhere."""
    deleted: set[CheckpointId] = field(default_factory=set)
    begun: dict[str, LaunchNumber] = field(default_factory=dict)
    """Run -> the newest launch with a durable opening."""
    jobs: dict[LaunchNumber, Job] = field(default_factory=dict)
    """Launch -> the job whose ranks were given its number, now or before its catalog was lost."""
    handed: set[tuple[str, int, int]] = field(default_factory=set)
    """(launch name, step, rank) that was staged whole."""
    failed: dict[tuple[LaunchNumber, int], str] = field(default_factory=dict)
    """(launch, step) whose save ended for some rank with an error, and for which one."""
    given: dict[tuple[TargetId, BootId, ReservationId], PayloadId] = field(default_factory=dict)
    """Reserved space -> the payload that may use it."""
    halves: dict[tuple[str, int], int] = field(default_factory=dict)
    """(rank node, half) -> the save that holds it."""
    overwritten: dict[tuple[CheckpointId, int], str] = field(default_factory=dict)
    """Payloads whose arena half was given on while their attempt was open."""
    refusals: list[str] = field(default_factory=list)
    on_moved: Callable[[ColumnId, TargetId | None, TargetId], None] = lambda *_: None
    """Hears of each column that is named elsewhere from now on: which, who was named and who is."""

    def announced_columns(self) -> set[str]:
        """Files of all columns of checkpoints that anybody was told of."""
        payloads = (PayloadId(id, r) for id, a in self.announced.items() for r in a.placement)
        return set().union(*map(self.files_of, payloads))

    def files_of(self, payload: PayloadId) -> set[str]:
        """Its columns, each on its own target."""
        columns = self.announced[payload.checkpoint].placement[payload.rank]
        return {
            f"columns/{column_name(ColumnId(payload, ColumnNumber(j)))}"
            for j in range(len(columns))
        }

    def kept(self, run: RunName) -> list[CheckpointId]:
        """Checkpoints of a run that were announced and not deleted, ascending."""
        return sorted(id for id in self.announced if id.run == run and id not in self.deleted)

    # ----------------------------------------------------------------------- catalog

    def coordinator_started(self, image: CatalogImage) -> None:
        """A restart may not have forgotten what was announced (P1, P2)."""
        for id in self.announced:
            row = image.rows.get(id)
            fine = (RowState.COMMITTED, RowState.DAMAGED, RowState.TOMBSTONED, RowState.DELETED)
            if row is None or row.state not in fine:
                raise Violation(f"P1: {id} was announced, a restart finds {row and row.state}")

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        """Entries that became durable."""
        for entry in entries:
            match entry:
                case catalog.AttemptOpened():
                    self._opened(entry)
                case catalog.AttemptDecided():
                    earlier = self.decided.get(entry.checkpoint)
                    if earlier is not None and earlier != entry:
                        raise Violation(f"P2: {entry.checkpoint} was decided twice, differently")
                    self.decided[entry.checkpoint] = entry
                case catalog.RowAborted():
                    if entry.checkpoint in self.decided:
                        raise Violation(f"P2: {entry.checkpoint} was decided and then aborted")
                    self.aborted.add(entry.checkpoint)
                case catalog.ColumnsMoved():
                    self._moved(entry)
                case catalog.CheckpointTombstoned():
                    self.deleted.add(entry.checkpoint)

    def _opened(self, entry: catalog.AttemptOpened) -> None:
        run = entry.checkpoint.run
        generations = [id.generation for id in self.opened if id.run == run]
        if generations and entry.checkpoint.generation <= max(generations):
            raise Violation(f"P10: generation {entry.checkpoint} does not grow")
        if entry.launch < self.begun.get(run, LaunchNumber(0)):
            raise Violation(f"P10: fenced launch {entry.launch} opened {entry.checkpoint}")
        self.begun[run] = entry.launch
        self.opened[entry.checkpoint] = entry

    def _moved(self, entry: catalog.ColumnsMoved) -> None:
        """Nobody is named who does not have it (P1)."""
        id, placement = entry.checkpoint, self.placement_of(entry.checkpoint)
        launch = decode_record(self.decided[id].record).info.launch
        for (rank, number), target in decode_moves(entry.page, entry.moves).items():
            columns = placement[rank]
            if columns[number] == target:
                continue
            column = ColumnId(PayloadId(id, rank), number)
            if not self._is_durable(target, column, launch) and not self.is_harmed(target):
                raise Violation(f"P1: {column} is said to be on {target}, which does not have it")
            placement[rank] = (*columns[:number], target, *columns[number + 1 :])
            self.on_moved(column, columns[number], target)

    def moves_are_forgotten(self) -> None:
        """The catalog was made again: what had moved, targets have to list."""
        for digest, placement in self.placements.items():
            placement.update(self.index_places[digest])

    def placement_of(self, id: CheckpointId) -> Placement:
        """Of a decided one."""
        return self.placements[decode_record(self.decided[id].record).index_digest]

    def coordinator_decides(self, entry: catalog.AttemptDecided, index: bytes) -> None:
        """The second count, at its own moment: from here on the attempt is only rolled forward.
        `index` is the document that targets have stored for it.
        """
        record = decode_record(entry.record)
        if xxh3_128(index) != record.index_digest:
            raise Violation(f"P2: the record of {entry.checkpoint} names another index")
        info = record.info
        placement = {one.rank: one.columns for one in decode_index(index).payloads}
        self.placements[record.index_digest] = placement
        self.index_places[record.index_digest] = dict(placement)
        self._check_ranks(info, placement)
        named = {t for columns in placement.values() for t in columns if t is not None}
        known = {t for t in self.targets if self.is_harmed(t) and not self.is_unknown_loss(t)}
        self.harmed_before[entry.checkpoint] = known
        self.harm_counted[entry.checkpoint] = known & named
        for rank, columns in placement.items():
            payload = PayloadId(entry.checkpoint, rank)
            self._check_floor(info, payload, columns, self._durable(info, payload, columns))

    # ----------------------------------------------------------------------- what is said

    def coordinator_says(self, message: Message) -> None:
        """Every message of the coordinator, before it leaves."""
        if type(message) not in WATCHED:
            return
        match message:
            case AttemptCommitted(info):
                self._announce(info)
            case Resolved(info):
                self._announce(info)
            case PayloadPlanned(payload):
                if payload.checkpoint not in self.opened:
                    raise Violation(
                        f"P10: plan of {payload} left before its generation was durable"
                    )
            case AttemptAborted(checkpoint):
                if checkpoint in self.announced:
                    raise Violation(f"P2: {checkpoint} was announced, now it is said to be aborted")
            # When somebody makes room for the catalog, nobody knows.
            case Failed("no_space", text, retry_after_us=None) if not text.startswith(CATALOG_FULL):
                raise Violation(f"P5: what does not fit is not told when to come again: {message}")

    def _announce(self, info: CommitInfo) -> None:
        id = info.checkpoint
        if id in self.announced:
            return
        decided = self.decided.get(id)
        if decided is None:
            raise Violation(f"P2: {id} is announced before its record is durable")
        if id in self.aborted:
            raise Violation(f"P2: {id} is announced after it was aborted")
        if (info.launch, id.step) in self.failed:
            told = self.failed[info.launch, id.step]
            raise Violation(f"P2: {id} is announced, {told} was told that it failed")
        placement = self.placement_of(id)
        self._check_ranks(info, placement)
        for rank, columns in placement.items():
            if (id, rank) in self.overwritten:
                raise Violation(f"P2: {id} commits, but rank {rank}'s half was given on before")
            if id not in self.deleted:
                payload = PayloadId(id, rank)
                durable = self._durable(info, payload, columns)
                self._check_floor(info, payload, columns, durable)
                self._check_promise(info, payload, columns, durable)
            elif info.targets_survivable:
                raise Violation(f"P1: {id} is deleted and promised to survive")
        self.announced[id] = Announced(info, placement)

    def _check_ranks(self, info: CommitInfo, placement: Placement) -> None:
        opened = self.opened[info.checkpoint]
        if sorted(placement) != list(range(opened.world_size)):
            raise Violation(f"P2: {info.checkpoint} misses ranks: {sorted(placement)}")

    def _check_floor(
        self, info: CommitInfo, payload: PayloadId, columns: Columns, durable: int
    ) -> None:
        """Enough columns lay on stable storage when it was decided (P1, P13)."""
        named = [target for target in columns if target is not None]
        if len(set(named)) != len(named):
            raise Violation(f"P13: {payload} has two columns on one target: {columns}")
        if self.domain_of is not None:
            held = Counter(domain_key(t, self.domain_of(t), self.spread.level) for t in named)
            if max(held.values(), default=0) > self.spread.max_per_domain:
                raise Violation(f"P13: {payload} breaks the rule of {self.spread}: {columns}")
        counted = self.harm_counted[info.checkpoint]
        later = sum(self.is_harmed(target) and target not in counted for target in named)
        floor = Code.parse(info.code).floor
        if durable + later < floor:
            raise Violation(f"P1: {payload} has {durable} durable columns, floor {floor}")

    def _check_promise(
        self, info: CommitInfo, payload: PayloadId, columns: Columns, durable: int
    ) -> None:
        """What the answer promises lies on stable storage now (P1)."""
        promised = info.targets_survivable
        unknown = sum(self.is_unknown_loss(t) for t in columns if t is not None)
        if durable + unknown - Code.parse(info.code).k < promised:
            raise Violation(f"P1: {payload} promises to survive {promised}, has {durable} columns")

    def _durable(self, info: CommitInfo, payload: PayloadId, columns: Columns) -> int:
        return sum(
            self._is_durable(target, ColumnId(payload, ColumnNumber(j)), info.launch)
            for j, target in enumerate(columns)
            if target is not None
        )

    def _is_durable(self, target: TargetId, column: ColumnId, launch: LaunchNumber) -> bool:
        if self.is_lost(target):
            return False
        pages = self.disk_of(target).durable_ends(f"columns/{column_name(column)}")
        if pages is None:
            return False
        header = _header(*pages)
        if header.launch != launch:
            raise Violation(f"P2: {column} of launch {header.launch} in a checkpoint of {launch}")
        return header.column == column

    # ----------------------------------------------------------------------- ranks

    def half_granted(self, node: WatchedRank, half: int, save: int, read: set[int]) -> None:
        """There are two halves, and nobody writes into one that a sender may read (P5, P2). A half
        may be given on before its save's attempt ended only if that attempt never commits.
        """
        if half not in HALVES:
            raise Violation(f"P5: {node.name} has a half {half}")
        if half in read:
            raise Violation(f"P5: {node.name} gives half {half} on while a sender reads it")
        key = (node.name, half)
        earlier = self.halves.get(key)
        if earlier is not None:
            for id in self._attempts_of(node, earlier):
                if id not in self.announced and id not in self.aborted:
                    self.overwritten[(id, node.rank)] = node.name
        self.halves[key] = save

    def _attempts_of(self, node: WatchedRank, save: int) -> list[CheckpointId]:
        step, launch = node.step_of(save), node.launch_number
        return [id for id, o in self.opened.items() if id.step == step and o.launch == launch]

    def space_given(self, message: Message) -> None:
        """What is reserved once is for one payload, whoever leads (P6)."""
        if isinstance(message, PayloadPlanned):
            places = (*message.places, *message.spares)
        elif isinstance(message, SparesNamed):
            places = message.spares
        elif isinstance(message, ColumnsLost):
            places = message.places
        else:
            return
        payload = message.payload
        for place in places:
            key = place.target, place.boot, place.reservation
            known = self.given.setdefault(key, payload)
            if known != payload:
                raise Violation(f"P6: {payload} is given space of {place.target} that {known} has")

    def launch_given(self, number: LaunchNumber, job: Job) -> None:
        self.jobs.setdefault(number, job)

    def handed_over(self, job: Job, step: int, rank: int) -> None:
        self.handed.add((job.launch_name, step, rank))

    def trainer_told(self, node: WatchedRank, step: int, outcome: Outcome) -> None:
        """A trainer hears of a commit only when it is one, of a failure only when it is none."""
        if isinstance(outcome, SaveCommitted):
            if outcome.info.checkpoint not in self.announced:
                raise Violation(f"P2: {node.name} was told of {outcome.info.checkpoint} too early")
            return
        number = node.launch_number
        if any((id.step, i.info.launch) == (step, number) for id, i in self.announced.items()):
            raise Violation(f"P2: {node.name} was told that step {step} failed, it is committed")
        if number is not None:
            self.failed[number, step] = node.name

    def bytes_were_read(self, payload: PayloadId, data: bytes) -> None:
        """A reader hands out exactly what was saved, of a checkpoint that was announced (P2,
        P3).
        """
        if payload.checkpoint not in self.announced:
            raise Violation(f"P2: {payload} was read before its checkpoint was announced")
        if data != self.content_of(payload):
            raise Violation(f"P3: {payload} was read with other bytes than were saved")

    def column_refused(self, code: str, text: str) -> None:
        """Space was reserved: no write may fail for lack of it (P6)."""
        self.refusals.append(f"{code}: {text}")
        if code == "no_space":
            raise Violation(f"P6: an admitted write was refused for space: {text}")
