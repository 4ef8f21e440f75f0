"""From "every rank certified" to one atomic fact.

    agree    tables, merged a slice at a time, cover every planned byte; replicas and overlapping
             shards are equal
    count    again, now: live targets, current boots, domains; below the floor -> stream again
    index    on m + 1 targets, durable
    decide   count once more, then the catalog row with the record: the point of no return
    record   on m + 1 targets, durable; and enough targets obey still: nobody else is in force
    close    the catalog says committed, durable; only then does anybody hear of it

Each step only begins when the one before it is on stable storage (DESIGN 3.6). A failure left of
`decide` leads back to OPEN or to an abort; right of it only to another try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ckpt.base.errors import Aborted, Refused, Unavailable
from ckpt.base.ids import CheckpointId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.base.limits import LEASE_US
from ckpt.base.units import counted
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.record import CommitRecord, encode_record, fitting
from ckpt.format.index.document import index_document
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import (
    AgedAt,
    BoxesCompared,
    BoxQuery,
    ColumnsLost,
    CommitInfo,
    CompareBoxes,
    Place,
)
from ckpt.plan.placement import survivable
from ckpt.plan.tensor_merger import Overlap
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.desk import Then
from ckpt.protocol.coordinator.facts import AttemptDropped, AttemptRecorded, TargetVouched
from ckpt.protocol.coordinator.keeping.documents import (
    Copies,
    copies_of_record,
    spread_of,
    store_document,
)
from ckpt.protocol.coordinator.keeping.placements import PlacedPayload, Placement
from ckpt.protocol.coordinator.saving.attempts import Attempt, AttemptState, Payload, count_columns
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.ending import Ending
from ckpt.protocol.coordinator.saving.merging import (
    MergedTables,
    TableMerges,
    code_of,
    homes_used,
    index_payload,
    metrics_of,
    referenced_bytes,
    warnings,
)
from ckpt.protocol.coordinator.saving.space.reservations import Reserver

RECOUNT_GRACE_US = 3 * LEASE_US
"""How long a payload may stay below the floor with no place that takes a column; then it aborts."""


class Confirmation(Protocol):
    """Whether this coordinator is still the one whom targets obey."""

    def confirm(self, then: Then) -> None:
        """`then` runs once enough targets have obeyed after this call; that may be never."""

    def is_in_force(self) -> bool:
        """Whether so many targets are here that they could say so."""


class Committer:
    """I lead certified attempts to their commit."""

    def __init__(
        self,
        context: SavingContext,
        ending: Ending,
        confirmation: Confirmation,
        wall_s: Callable[[], float],
        aged_at_s: Callable[[], AgedAt],
    ) -> None:
        self._desk = context.desk
        self._book = context.book
        self._members = context.members
        self._reservations = context.reservations
        self._homes = context.homes
        self._placing = context.placing
        self._policy = context.policy
        self._rule = context.policy.spread
        self._ending = ending
        self._confirmation = confirmation
        self._wall_s = wall_s
        self._aged_at_s = aged_at_s
        #: Since when an attempt lacks targets: a payload or a home is below its floor, or too few
        #: targets could say that this coordinator is in force. It aborts after RECOUNT_GRACE_US.
        self._short_since: dict[CheckpointId, int] = {}
        #: Which columns counted when a payload below the floor was last given places. While no
        #: others count, only a tick gives it places again.
        self._reopened: dict[PayloadId, list[ColumnNumber]] = {}
        #: Payloads below the floor for which places are being asked.
        self._reopening: set[PayloadId] = set()
        #: Decided attempts whose record could not be put on enough targets; the next tick tries.
        self._stalled: set[CheckpointId] = set()
        #: The comparison that each COMPARING attempt waits for; it stays until that has ended.
        self._overlaps: dict[CheckpointId, list[Overlap]] = {}
        self._merges = TableMerges(context.desk)

    # ----------------------------------------------------------------------- agree

    def proceed(self, attempt: Attempt) -> None:
        """Something about an attempt changed: go on as far as it now goes."""
        if attempt.state is not AttemptState.OPEN or not attempt.certified:
            return
        merged = self._merges.find(attempt, lambda: self.proceed(attempt))
        if merged is None:
            return
        if merged.problems:
            self._ending.abort(attempt, Refused("; ".join(merged.problems[:8])))
            return
        if merged.overlaps and attempt.checkpoint not in self._overlaps:
            self._compare(attempt, list(merged.overlaps))
            return
        self._overlaps.pop(attempt.checkpoint, None)
        attempt.homes = homes_used(attempt)
        if self._count(attempt) and self._homes_count(attempt) and self._is_in_force(attempt):
            self._index(attempt, merged)
            self._merges.drop(attempt.checkpoint)

    def _compare(self, attempt: Attempt, overlaps: list[Overlap]) -> None:
        attempt.state = AttemptState.COMPARING
        self._overlaps[attempt.checkpoint] = overlaps
        for payload in attempt.payloads.values():
            payload.fingerprints = None
            self.ask_to_compare(attempt, payload)

    def ask_to_compare(self, attempt: Attempt, payload: Payload) -> None:
        """Ask one rank, also again when its stager came back."""
        boxes = self._boxes_of(attempt, payload)
        if boxes and payload.session is not None:
            self._desk.send(payload.session, 0, CompareBoxes(payload.id, boxes))
        elif not boxes:
            payload.fingerprints = ()

    def ask_again(self, attempt: Attempt, payload: Payload) -> None:
        """A stager came back: repeat the question that it may have missed."""
        if attempt.state is AttemptState.COMPARING and payload.fingerprints is None:
            self.ask_to_compare(attempt, payload)

    def compared(self, attempt: Attempt, payload: Payload, message: BoxesCompared) -> None:
        """A rank's fingerprints; when all are here, equal ones let the commit go on."""
        if attempt.state is not AttemptState.COMPARING:
            return
        if len(message.fingerprints) != len(self._boxes_of(attempt, payload)):
            self._ending.abort(
                attempt, Aborted(f"{payload.id} answered a comparison with the wrong count")
            )
            return
        payload.fingerprints = message.fingerprints
        if any(p.fingerprints is None for p in attempt.payloads.values()):
            return
        differing = self._differing(attempt)
        if differing is not None:
            ranks = " and ".join(str(rank) for rank in differing.ranks)
            self._ending.abort(
                attempt,
                Refused(f"shards of {differing.name!r} on ranks {ranks} overlap and differ"),
            )
            return
        attempt.state = AttemptState.OPEN
        self.proceed(attempt)

    def _boxes_of(self, attempt: Attempt, payload: Payload) -> tuple[BoxQuery, ...]:
        mine = [o for o in self._overlaps.get(attempt.checkpoint, ()) if payload.id.rank in o.ranks]
        return tuple(BoxQuery(o.name, o.offset, o.shape) for o in mine)

    def _differing(self, attempt: Attempt) -> Overlap | None:
        answers: dict[Rank, list[bytes]] = {
            rank: list(p.fingerprints or ()) for rank, p in attempt.payloads.items()
        }
        for overlap in self._overlaps[attempt.checkpoint]:
            if len({answers[Rank(rank)].pop(0) for rank in overlap.ranks}) > 1:
                return overlap
        return None

    # ----------------------------------------------------------------------- count

    def _count(self, attempt: Attempt) -> bool:
        """The second count; True when every payload has its floor. Others go back to streaming."""
        enough = True
        for payload in attempt.payloads.values():
            counted = count_columns(payload, self._members, self._rule)
            if len(counted) >= payload.layout.code.floor:
                continue
            enough = False
            # The writer of a member let go of its bytes when it was certified. What was streamed
            # again in vain is tried once more with the next tick, while there is time.
            if payload.member or self._reopened.get(payload.id) == counted:
                self._wait_for_targets(attempt, payload, len(counted))
                continue
            if payload.id in self._reopened:
                self._short_since.pop(attempt.checkpoint, None)
            self._reopen(attempt, payload, counted)
        return enough

    def _homes_count(self, attempt: Attempt) -> bool:
        """What it refers to has its floor as well; while it has not, targets may come back."""
        spare = code_of(attempt).floor - code_of(attempt).k
        run = attempt.checkpoint.run
        for home, now in zip(
            attempt.homes, self._homes.redundancy(run, attempt.homes), strict=True
        ):
            if now.targets < spare:
                lose = counted(now.targets, "target")
                self._wait(attempt, f"{home.id(run)}, which it refers to, can lose {lose}")
                return False
        return True

    def _is_in_force(self, attempt: Attempt) -> bool:
        """Enough targets are live to say, after the record, that this coordinator is the one; while
        they are not, they may come back.
        """
        if self._confirmation.is_in_force():
            return True
        live = self._members.live()
        away = [t.id for t in self._members.all() if t not in live]
        self._wait(
            attempt,
            f"{attempt.checkpoint}: {', '.join(away)} are away, and may obey another coordinator",
        )
        return False

    def _reopen(self, attempt: Attempt, payload: Payload, counted: list[ColumnNumber]) -> None:
        """Stream the columns that do not count again; the arena half is still held for this."""
        if payload.id in self._reopening:
            return
        self._reopening.add(payload.id)
        code = payload.layout.code
        lost = [ColumnNumber(j) for j in range(code.n) if j not in counted]
        allotment = payload.allotment or Reserver.empty_allotment(payload.layout)
        payload.allotment = allotment
        self._reservations.reopen(allotment, {j: payload.proofs[j].target for j in counted})
        found: list[tuple[ColumnNumber, Place]] = []

        def answered(column: ColumnNumber, places: tuple[Place, ...]) -> None:
            nonlocal lost
            lost = [j for j in lost if j != column]
            found.extend((column, place) for place in places)
            if not lost:
                self._restream(attempt, payload, counted, found)

        for column in list(lost):
            self._reservations.more_spares(
                allotment,
                column,
                lambda places, j=column: answered(j, places),  # type: ignore[misc]
            )

    def _restream(
        self,
        attempt: Attempt,
        payload: Payload,
        counted: list[ColumnNumber],
        found: list[tuple[ColumnNumber, Place]],
    ) -> None:
        code = payload.layout.code
        self._reopening.discard(payload.id)
        if attempt.state is not AttemptState.OPEN:
            return
        if len(counted) + len(found) < code.floor:
            self._wait_for_targets(attempt, payload, len(counted) + len(found))
            return
        self._short_since.setdefault(attempt.checkpoint, self._desk.now_us)
        self._reopened[payload.id] = counted
        payload.certify, payload.table = None, None
        payload.table_bytes.clear()
        for column, _ in found:
            payload.proofs.pop(column, None)
        if payload.session is not None:
            columns = tuple(column for column, _ in found)
            places = tuple(place for _, place in found)
            self._desk.send(payload.session, 0, ColumnsLost(payload.id, columns, places))

    def _wait_for_targets(self, attempt: Attempt, payload: Payload, possible: int) -> None:
        code, columns = payload.layout.code, counted(possible, "column")
        needed = f"{code.floor} are needed for {code}"
        self._wait(attempt, f"{payload.id}: {columns} can count, {needed}")

    def _wait(self, attempt: Attempt, lack: str) -> None:
        """For targets to come back, within bounds."""
        since = self._short_since.setdefault(attempt.checkpoint, self._desk.now_us)
        if self._desk.now_us - since < RECOUNT_GRACE_US:
            return
        live = counted(len(self._members.live()), "target", "is", "are")
        text = f"{lack}; {live} live{self._members.failing_text()}"
        hint = "start the missing targets (ckpt status shows them) and save again"
        self._ending.abort(attempt, Unavailable(text, hint=hint))

    def attempt_dropped(self, fact: AttemptDropped) -> None:
        """Forget an attempt that has ended without a commit."""
        attempt = self._book.attempts[fact.checkpoint]
        self._overlaps.pop(attempt.checkpoint, None)
        self._merges.drop(attempt.checkpoint)
        self._enough(attempt)

    def _enough(self, attempt: Attempt) -> None:
        self._short_since.pop(attempt.checkpoint, None)
        for payload in attempt.payloads.values():
            self._reopened.pop(payload.id, None)

    def tick(self) -> None:
        """Try again what waits for targets."""
        for attempt in self._book.open():
            self._try_again(attempt)

    def target_vouched(self, _fact: TargetVouched) -> None:
        """Look at a target that may hold what an attempt waits for."""
        self.tick()

    def _try_again(self, attempt: Attempt) -> None:
        if attempt.state is AttemptState.OPEN and attempt.checkpoint in self._short_since:
            if attempt.certified:
                for payload in attempt.payloads.values():
                    self._reopened.pop(payload.id, None)
            self.proceed(attempt)
        elif attempt.checkpoint in self._stalled:
            self._stalled.discard(attempt.checkpoint)
            self.record(attempt)

    # ----------------------------------------------------------------------- index

    def _index(self, attempt: Attempt, merged: MergedTables) -> None:
        attempt.state = AttemptState.INDEXING
        attempt.placement = {
            rank: self._placed(payload) for rank, payload in sorted(attempt.payloads.items())
        }
        attempt.warnings = warnings(attempt, merged)
        payloads = [
            index_payload(p, attempt.placement[r].columns) for r, p in attempt.payloads.items()
        ]
        try:
            attempt.index = index_document(
                attempt.checkpoint, attempt.launch, attempt.world_size, payloads, merged.pages
            )
        except Refused as error:
            self._ending.abort(attempt, error)
            return
        store_document(
            self._desk, self._members, attempt.checkpoint, DocumentKind.INDEX, attempt.index,
            Copies(code_of(attempt).m + 1), lambda on: self._decide(attempt, on),
        )  # fmt: skip

    def _placed(self, payload: Payload) -> PlacedPayload:
        """On the accepted targets."""
        assert payload.certify is not None
        counted = set(count_columns(payload, self._members, self._rule))
        accepted = tuple(
            payload.proofs[ColumnNumber(j)].target if j in counted else None
            for j in range(payload.layout.code.n)
        )
        return PlacedPayload(accepted, payload.certify.manifest_digest, payload.layout)

    # ----------------------------------------------------------------------- decide

    def _decide(self, attempt: Attempt, index_on: tuple[TargetId, ...]) -> None:
        if attempt.state is not AttemptState.INDEXING:
            return
        if not self._homes_count(attempt):
            attempt.state = AttemptState.OPEN
            return
        if not index_on or not self._still_counts(attempt):
            attempt.state = AttemptState.OPEN
            self._wait_for_targets(attempt, next(iter(attempt.payloads.values())), len(index_on))
            return
        self._enough(attempt)
        attempt.state = AttemptState.DECIDING
        attempt.record = fitting(
            CommitRecord(
                cluster=self._policy.cluster,
                info=self._info(attempt, index_on),
                index_digest=xxh3_128(attempt.index),
                index_bytes=len(attempt.index),
                index_targets=index_on,
                term=self._members.term,
            )
        )
        attempt.info = attempt.record.info
        attempt.record_bytes = encode_record(attempt.record)
        decided = catalog.AttemptDecided(attempt.checkpoint, attempt.record_bytes)
        self._desk.persist((decided,), lambda: self.record(attempt))

    def _still_counts(self, attempt: Attempt) -> bool:
        """The index names these targets: enough of them must count at this very moment."""
        for rank, placed in attempt.placement.items():
            payload = attempt.payloads[rank]
            counted = set(count_columns(payload, self._members, self._rule))
            proofs = payload.proofs
            named = [
                j
                for j, target in enumerate(placed.columns)
                if j in counted and proofs[ColumnNumber(j)].target == target
            ]
            if len(named) < payload.layout.code.floor:
                return False
        return True

    def _info(self, attempt: Attempt, index_on: Sequence[TargetId]) -> CommitInfo:
        payloads = list(attempt.payloads.values())
        certs = [p.certify for p in payloads if p.certify is not None]
        chances = [
            survivable(
                p.layout.code,
                [
                    self._members.targets[t].domain if t is not None else None
                    for t in attempt.placement[p.id.rank].columns
                ],
                self._policy.report_level,
            )
            for p in payloads
        ]
        level = self._policy.report_level
        chances.append(spread_of(self._members, index_on, level))
        slow = max(certs, key=lambda c: c.slowest_us)
        homes = self._homes.redundancy(attempt.checkpoint.run, attempt.homes)
        return CommitInfo(
            checkpoint=attempt.checkpoint,
            launch=attempt.launch,
            world_size=attempt.world_size,
            code=str(payloads[0].layout.code),
            payload_bytes=sum(p.layout.payload_bytes for p in payloads),
            targets_survivable=min([c.targets for c in chances] + [h.targets for h in homes]),
            domains_survivable=min([c.domains for c in chances] + [h.domains for h in homes]),
            domain_level=level,
            committed_at_s=self._wall_s(),
            commit_us=self._desk.now_us - attempt.opened_us,
            stall_us=max(c.stall_us for c in certs),
            slowest_rank=max(payloads, key=lambda p: p.certified_us).id.rank,
            slowest_target=slow.slowest_target,
            fault_in_us=max(c.fault_in_us for c in certs),
            columns_missing=sum(p.columns.count(None) for p in attempt.placement.values()),
            warnings=attempt.warnings,
            homes=attempt.homes,
            referenced_bytes=referenced_bytes(attempt),
            metrics=metrics_of(attempt),
            aged_at_s=self._aged_at_s(),
        )

    # ----------------------------------------------------------------------- record, close

    def record(self, attempt: Attempt) -> None:
        """Decided and durable: put the record on m + 1 targets, as often as it takes."""
        attempt.state = AttemptState.RECORDING

        def stored(on: tuple[TargetId, ...]) -> None:
            if on:
                self._confirmation.confirm(lambda: self._place(attempt))
            else:
                self.stall(attempt)

        assert attempt.record is not None
        store_document(
            self._desk, self._members, attempt.checkpoint, DocumentKind.RECORD,
            attempt.record_bytes, copies_of_record(attempt.record), stored,
        )  # fmt: skip

    def stall(self, attempt: Attempt) -> None:
        """Let the next tick go on with a decided attempt that was found at a restart, or had no
        targets.
        """
        self._stalled.add(attempt.checkpoint)

    def _place(self, attempt: Attempt) -> None:
        """What one that was found at a start survives follows from its index."""

        def found(placement: Placement | None) -> None:
            attempt.placement = placement or {}
            self._close(attempt)

        assert attempt.record is not None
        if attempt.placement:
            self._close(attempt)
        else:
            self._placing.look(attempt.record, found)

    def _close(self, attempt: Attempt) -> None:
        attempt.state = AttemptState.CLOSING

        def durable() -> None:
            attempt.state = AttemptState.COMMITTED
            self._desk.tell(AttemptRecorded(attempt.checkpoint))

        self._desk.persist((catalog.RowCommitted(attempt.checkpoint),), durable)
