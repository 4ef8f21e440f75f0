"""What becomes of copies of columns where nobody has named them: they are adopted, or they go.

    listed or sealed, not named --another manifest's, or no payload's--> dropped
                          |
                          v                  all n columns count, nobody reads
                       surplus  ------------------------------------------------> dropped
                          |
                          | the named one is damaged, is to leave its target, or does not count and
                          v is not about to
                     ColumnsMoved durable --> named from here on

A column that was replaced, was late, or was moved while its target was away leaves such copies. A
right one is the same bytes as the named one: while that is not there it takes its place, so that
redundancy returns without reading anything. Where the domain rule would be broken by that it is
kept all the same, and named only where the payload could not be read without it (P13).

Invariants: a copy is named only when that is durable, and only one that its target has proved in
its present boot, with the manifest of its payload, on a session on which nothing has asked to drop
it. No right copy goes while a column of its payload is missing, or while a reader may know the
place by an answer of before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.format.documents.moves import encode_moves, page_of
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.catalog import ColumnsMoved, RowState
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.cluster.returning import is_awaited
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.desk import Desk, Then, nothing
from ckpt.protocol.coordinator.facts import (
    CheckpointCommitted,
    CheckpointPlaced,
    CheckpointReleased,
    TargetRemoved,
    TargetVouched,
)
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.policy import CoordinatorPolicy


class Adopter:
    """I settle every copy that is not named, whenever something about it changes."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        deleter: Deleter,
        policy: CoordinatorPolicy,
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._deleter = deleter
        self._rule = policy.spread
        #: Who is away for so long is not waited for any more; None: who is away is.
        self._after_us = policy.rebuild_after_us
        #: Which have surplus; none, most of the time.
        self._unsettled: set[CheckpointId] = set()
        #: Of these a move is on its way to the catalog, of payloads of these ranks.
        self._moving: dict[CheckpointId, set[Rank]] = {}

    # ----------------------------------------------------------------------- what changes

    def reconcile(self, *targets: Target) -> None:
        """Targets have listed what they hold: count their surplus columns again."""
        for checkpoint in self._with_surplus():
            for holders in checkpoint.surplus.values():
                holders.difference_update(target.id for target in targets)
        for target in targets:
            for id in sorted(self._checkpoints.placed & target.proved.checkpoints()):
                self._sort_out(target, id)
        self._settle_all()

    def target_vouched(self, fact: TargetVouched) -> None:
        """Note a target that came while requests are served."""
        self.reconcile(self._members.targets[fact.target])

    def target_removed(self, fact: TargetRemoved) -> None:
        """Forget what a removed target may have."""
        for checkpoint in self._with_surplus():
            for holders in checkpoint.surplus.values():
                holders.discard(fact.target)
        self._settle_all()

    def committed(self, fact: CheckpointCommitted) -> None:
        """Settle copies that the checkpoint's index does not name."""
        self.placed(CheckpointPlaced(fact.checkpoint))

    def placed(self, fact: CheckpointPlaced) -> None:
        """The same for a checkpoint that a start found."""
        for target in self._members.live():
            if target.proved.has(fact.checkpoint):
                self._sort_out(target, fact.checkpoint)
        self._settle_all()

    def found(self, id: CheckpointId, columns: Iterable[tuple[Target, ColumnId]]) -> None:
        """Note that targets have said, when asked, that they hold these columns."""
        self._checkpoints.recount(id)
        checkpoint = self._checkpoints.get(id)
        for target, column in columns:
            digest = target.proved.digest(column)
            if checkpoint is not None and digest is not None:
                self._sort_out_column(target, checkpoint, column, digest)
        self._settle_all()

    def is_moving(self, payload: PayloadId) -> bool:
        """Whether copies of its columns are about to be named, or wait until others are."""
        moving = self._moving.get(payload.checkpoint)
        checkpoint = self._checkpoints.get(payload.checkpoint)
        if moving is None or checkpoint is None:
            return False
        waits = any(column.payload == payload for column in checkpoint.surplus)
        return payload.rank in moving or waits

    def released(self, fact: CheckpointReleased) -> None:
        """Settle its copies: no reader knows its places from an earlier answer."""
        self._settle_all()

    def tick(self) -> None:
        """Look again at targets that were about to count."""
        self._settle_all()

    # ----------------------------------------------------------------------- sorting

    def _sort_out(self, target: Target, id: CheckpointId) -> None:
        """Its copies of a placed checkpoint that are not named: surplus, or nothing of worth."""
        checkpoint = self._checkpoints.get(id)
        if checkpoint is None or checkpoint.placement is None:
            return
        for column, digest in sorted(target.proved.of(id).items()):
            self._sort_out_column(target, checkpoint, column, digest)

    def _known_to_have(self, checkpoint: KeptCheckpoint, rank: Rank) -> set[TargetId]:
        """Who has or had a column of this payload: those that are named, and those with copies."""
        assert checkpoint.placement is not None
        columns = checkpoint.placement[rank].columns
        found = {id for id in columns if id is not None}
        for column in _columns_of(checkpoint, rank):
            found |= checkpoint.surplus.get(column, set())
        return found

    def _sort_out_rank(self, checkpoint: KeptCheckpoint, rank: Rank, before: set[TargetId]) -> None:
        """Its columns have other holders now; nobody but these can have one of them."""
        holders = sorted(before | self._known_to_have(checkpoint, rank))
        columns = _columns_of(checkpoint, rank)
        for column in columns:
            checkpoint.surplus.pop(column, None)
        for target in map(self._members.targets.get, holders):
            if target is not None and target.state is TargetState.LIVE:
                for column in columns:
                    digest = target.proved.digest(column)
                    if digest is not None:
                        self._sort_out_column(target, checkpoint, column, digest)

    def _sort_out_column(
        self, target: Target, checkpoint: KeptCheckpoint, column: ColumnId, digest: bytes
    ) -> None:
        if checkpoint.placement is None:
            return
        placed = checkpoint.placement.get(column.payload.rank)
        if placed is None or digest != placed.manifest_digest:
            self._deleter.drop_column(target, column)
        elif placed.columns[column.column] != target.id:
            checkpoint.surplus.setdefault(column, set()).add(target.id)
            self._unsettled.add(checkpoint.id)

    def _with_surplus(self) -> list[KeptCheckpoint]:
        """What is gone or goes as a whole needs nothing."""
        known = [self._checkpoints.get(id) for id in sorted(self._unsettled)]
        left = [one for one in known if one is not None and not self._goes(one)]
        self._unsettled = {one.id for one in left if one.surplus}
        return left

    @staticmethod
    def _goes(checkpoint: KeptCheckpoint) -> bool:
        return checkpoint.state is RowState.TOMBSTONED and not checkpoint.is_needed

    def _settle_all(self) -> None:
        for checkpoint in self._with_surplus():
            self._settle(checkpoint)

    def _settle(self, checkpoint: KeptCheckpoint) -> None:
        if checkpoint.id in self._moving:
            return
        moves = self._adoptable(checkpoint)
        if moves and self._desk.full is None and self._desk.no_moves is None:
            self._adopt(checkpoint, moves)
        elif not moves and not self._is_read(checkpoint):
            self._drop_surplus(checkpoint)

    # ----------------------------------------------------------------------- adopting

    def _adoptable(self, checkpoint: KeptCheckpoint) -> dict[tuple[Rank, ColumnNumber], TargetId]:
        """A holder for each column whose named one does not count."""
        moves: dict[tuple[Rank, ColumnNumber], TargetId] = {}
        left: dict[Rank, dict[ColumnNumber, list[TargetId]]] = {}
        for column, holders in sorted(checkpoint.surplus.items()):
            rank = column.payload.rank
            if self._is_well(checkpoint, column) or self._is_coming(checkpoint, column):
                continue
            here = sorted(id for id in holders if self._may_take(checkpoint, column, id))
            taken = {number: id for (of, number), id in moves.items() if of == rank}
            fits = [id for id in here if self._fits(checkpoint, column, id, taken)]
            if fits:
                moves[rank, column.column] = fits[0]
            elif here:
                left.setdefault(rank, {})[column.column] = here
        for rank, waiting in left.items():
            # Where some have moved, others may fit then.
            if not any(of == rank for of, _ in moves):
                together = self._fit_together(checkpoint, rank, waiting)
                moves |= {(rank, number): id for number, id in together.items()}
        return moves

    def _fit_together(
        self, checkpoint: KeptCheckpoint, rank: Rank, waiting: dict[ColumnNumber, list[TargetId]]
    ) -> dict[ColumnNumber, TargetId]:
        """Columns that change places with each other: each would break the rule alone. Of two that
        leave two hosts, either copy may lie on the host that the other one leaves.
        """
        chosen: dict[ColumnNumber, TargetId] = {}
        for number, here in waiting.items():
            free = [id for id in here if id not in chosen.values()]
            if free:
                chosen[number] = free[0]
        known = self._awaited(checkpoint, rank) | self._holders_now(checkpoint, rank)
        after = known | chosen
        spread = Counter(map(self._domain, after.values()))
        is_apart = len(set(after.values())) == len(after)
        return chosen if is_apart and max(spread.values()) <= self._rule.max_per_domain else {}

    def _fits(
        self,
        checkpoint: KeptCheckpoint,
        column: ColumnId,
        target: TargetId,
        taken: dict[ColumnNumber, TargetId],
    ) -> bool:
        """One target counts once. The domain rule holds, or is worth less than the payload."""
        now = self._holders_now(checkpoint, column.payload.rank) | taken
        now.pop(column.column, None)
        if target in now.values():
            return False
        others = self._awaited(checkpoint, column.payload.rank) | now
        others.pop(column.column, None)
        spread = Counter(map(self._domain, others.values()))
        allowed = spread[self._domain(target)] < self._rule.max_per_domain
        return allowed or len(now) < checkpoint.code.k

    def _adopt(
        self, checkpoint: KeptCheckpoint, moves: dict[tuple[Rank, ColumnNumber], TargetId]
    ) -> None:
        """Named when it is durable: of each page that has one, all that has moved. A page is a
        ticket of its own, since a catalog takes no ticket of any size.
        """
        self._moving[checkpoint.id] = {rank for rank, _ in moves}
        known = checkpoint.moved | moves
        *earlier, last = sorted({page_of(rank) for rank, _ in moves})

        def write(page: int, then: Then) -> None:
            of_page = {at: id for at, id in known.items() if page_of(at[0]) == page}
            entry = ColumnsMoved(checkpoint.id, page, encode_moves(page, of_page))
            self._desk.persist((entry,), then)

        ranks = self._moving[checkpoint.id]
        before = {rank: self._known_to_have(checkpoint, rank) for rank in ranks}

        def durable() -> None:
            del self._moving[checkpoint.id]
            self._checkpoints.move(checkpoint, moves)
            self._desk.report(
                "info", "columns are found again", checkpoint=str(checkpoint.id), columns=len(moves)
            )
            # Who was named may have come meanwhile, and the new holder is no surplus any more.
            for rank in sorted(ranks):
                self._sort_out_rank(checkpoint, rank, before[rank])
            self._settle_all()

        for page in earlier:
            write(page, nothing)
        write(last, durable)

    # ----------------------------------------------------------------------- dropping

    def _drop_surplus(self, checkpoint: KeptCheckpoint) -> None:
        """Of payloads that lack nothing. What is away is asked when it comes."""
        for column, holders in sorted(checkpoint.surplus.items()):
            if len(self._holders_now(checkpoint, column.payload.rank)) < checkpoint.code.n:
                continue
            for id in sorted(holders):
                target = self._members.targets[id]
                if self._holds(checkpoint, column, id):
                    self._deleter.drop_column(target, column)
            del checkpoint.surplus[column]

    def _is_read(self, checkpoint: KeptCheckpoint) -> bool:
        """By somebody who may know a place of it that has moved."""
        users = (self._checkpoints.get(user) for user in checkpoint.users)
        readers = (checkpoint, *(user for user in users if user is not None))
        return any(reader.pins for reader in readers)

    # ----------------------------------------------------------------------- questions

    def _holds(self, checkpoint: KeptCheckpoint, column: ColumnId, target: TargetId) -> bool:
        assert checkpoint.placement is not None
        digest = checkpoint.placement[column.payload.rank].manifest_digest
        return self._members.holds(target, column, digest)

    def _is_sound(self, checkpoint: KeptCheckpoint, column: ColumnId, target: TargetId) -> bool:
        """It has a copy, and has found no damage in it."""
        rotten = rotten_columns(self._members.targets[target])
        return self._holds(checkpoint, column, target) and column not in rotten

    def _is_well(self, checkpoint: KeptCheckpoint, column: ColumnId) -> bool:
        """The named copy counts and stays where it is, and nobody has found damage in it."""
        holders = self._holders_now(checkpoint, column.payload.rank)
        named = holders.get(column.column)
        if named is None or not self._members.targets[named].stays:
            return False
        is_whole = len(holders) == checkpoint.code.n
        if is_whole and self._checkpoints.moving.leaves(column, named):
            return False
        return self._is_sound(checkpoint, column, named)

    def _may_take(self, checkpoint: KeptCheckpoint, column: ColumnId, target: TargetId) -> bool:
        """It has a sound copy; where it is to be emptied itself, that is better than none."""
        named = self._holders_now(checkpoint, column.payload.rank).get(column.column)
        sound = self._is_sound(checkpoint, column, target)
        return sound and (self._members.targets[target].stays or named is None)

    def _is_coming(self, checkpoint: KeptCheckpoint, column: ColumnId) -> bool:
        """Who is named does not count now, and likely will soon."""
        assert checkpoint.placement is not None
        named = checkpoint.placement[column.payload.rank].columns[column.column]
        target = self._members.targets.get(named) if named is not None else None
        return target is not None and self._members.is_coming(target)

    def _holders_now(self, checkpoint: KeptCheckpoint, rank: Rank) -> dict[ColumnNumber, TargetId]:
        """Of the columns that count."""
        assert checkpoint.placement is not None
        columns = checkpoint.placement[rank].columns
        now = ((j, columns[j]) for j in self._checkpoints.columns_now(checkpoint, rank))
        return {j: id for j, id in now if id is not None}

    def _awaited(self, checkpoint: KeptCheckpoint, rank: Rank) -> dict[ColumnNumber, TargetId]:
        """Of the columns that may count again where they are."""
        assert checkpoint.placement is not None
        now_us, targets = self._desk.now_us, self._members.targets
        return {
            ColumnNumber(j): id
            for j, id in enumerate(checkpoint.placement[rank].columns)
            if id in targets and is_awaited(self._members, targets[id], now_us, self._after_us)
        }

    def _domain(self, target: TargetId) -> tuple[str, ...]:
        return domain_key(target, self._members.targets[target].domain, self._rule.level)


def _columns_of(checkpoint: KeptCheckpoint, rank: Rank) -> list[ColumnId]:
    payload = PayloadId(checkpoint.id, rank)
    return [ColumnId(payload, ColumnNumber(j)) for j in range(checkpoint.code.n)]
