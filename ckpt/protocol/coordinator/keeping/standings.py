"""How targets stand, and which directory each is: what people say of them, once it may be done.

    in --drain--> draining --> (holds nothing more) --end its process, remove--> removed, for good
     ^--undrain------+            out: the same for one that may not come back

What speaks against it is said before anything changes: columns of a save that would find no place,
bytes that would find no room, checkpoints that could be read no more, also by another directory in
the place of a target's. `force` overrules that; one whose process runs is removed by nobody. What
somebody else has said and is not durable yet counts as done.

Invariant: nobody acts on a standing that is not durable, but that no process of a removed target is
taken in any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ckpt.base.errors import Busy, NotFound, Refused, Unavailable
from ckpt.base.ids import Rank
from ckpt.base.units import counted, format_bytes
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.messages.asking import (
    ChangeTarget,
    ReplaceTarget,
    TargetChanged,
    TargetReplaced,
)
from ckpt.plan.placement import place
from ckpt.protocol.coordinator.catalog import TargetStanding
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.cluster.claims import removed
from ckpt.protocol.coordinator.cluster.map_keeping import MapKeeper
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import TargetRemoved
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.events import Session

StandingRequest = ReplaceTarget | ChangeTarget
_SAID: Final = {one.value: one for one in TargetStanding if one is not TargetStanding.ABSENT}
NAMED_MAX: Final = 3
"""Most checkpoints that one objection names."""


class Standings:
    """I change them, and answer who asked."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        map_keeper: MapKeeper,
        policy: CoordinatorPolicy,
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._map_keeper = map_keeper
        #: Of the saves that come.
        self._code = policy.code
        self._rule = policy.spread
        self._repairs = policy.rebuild_after_us is not None

    def handle(self, session: Session, request: int, message: StandingRequest) -> None:
        """Raises NotFound, Refused, Busy, Unavailable."""
        match message:
            case ReplaceTarget():
                self._replace(session, request, message)
            case ChangeTarget():
                self._change(session, request, message)

    # ----------------------------------------------------------------------- which directory

    def _replace(self, session: Session, request: int, message: ReplaceTarget) -> None:
        """Another directory is this target; said to be asked again, the same is answered."""
        seats, now = self._members.seats, self._desk.now_us
        target = self._members.targets.get(message.target)
        seen = None
        if message.repeated:
            seated = target is not None and target.session is not None
            seen = seats.answered(message.target, message.incarnation, now, seated=seated)
        if seen is None:
            if target is not None:
                self._check_member(target)
                self._check_asked_for(target)
                _check_ended(target)
                self._check_spared(target, message)
            seen = seats.replaced(message.target, message.incarnation, now)
            self._desk.report(
                "warning", "target is replaced", target=seen.target, directory=seen.directory
            )
        done = TargetReplaced(seen.target, seen.incarnation, seen.directory, seen.domain)
        self._desk.persist((seen,), lambda: self._desk.send(session, request, done))

    def _check_asked_for(self, target: Target) -> None:
        """To end a process that serves helps nobody who meant another one, or has said it before.
        Raises Busy.
        """
        if target.session is None or self._members.replacing(target.id):
            return
        ids = sorted({one.target for one in self._members.claims() if one.replaces})
        hint = "it has no need of that: no other directory asks for its place"
        if ids:
            hint = f"{hint}, one asks for that of {', '.join(ids[:NAMED_MAX])}"
        raise Busy(_is_live(target), hint=hint)

    def _check_spared(self, target: Target, message: ReplaceTarget) -> None:
        """Without what it had all can be read. Where something lies whose index no target could
        give nothing is known, and it speaks against nothing. Raises Refused; Unavailable while an
        index is still to be read, as before the catalog is vouched for.
        """
        if message.force or not self._members.replacing(target.id):
            return
        had = f"what {target.id} had in its own directory"
        hint = f"bring back {target.directory} as it was, or what else is away; where that is gone"
        unknown = (one for one in self._checkpoints.all() if one.is_needed and not one.unread)
        for one in unknown:
            if one.placement is None:
                raise Unavailable(
                    f"whether {had} is needed cannot be said: where {one.id} lies is not known yet",
                    hint=f"try again in some seconds; or {hint} for good use --force",
                    retry_after_s=1.0,
                )
        if loss := self._loss(target):
            text = f"{had} would not count any more: {loss}"
            raise Refused(text, hint=f"{hint} for good use --force")

    # ----------------------------------------------------------------------- how it stands

    def _change(self, session: Session, request: int, message: ChangeTarget) -> None:
        target, standing = self._checked(message)
        if standing is not TargetStanding.IN and self._desk.no_moves is not None:
            raise self._desk.no_moves
        columns, size = self._named_on(target)
        documents = sum(self._documents_on(target))
        doubts = tuple(self._doubts(target, standing, size))
        was = self._members.seats.standing_of(target.id)
        answer = TargetChanged(
            target.id, standing.value, was.value, columns, size, documents, doubts
        )
        if message.dry_run or standing is was is target.standing:
            self._desk.send(session, request, answer)
            return
        if doubts and not message.force:
            raise Refused("; ".join(doubts), hint="mend that first, or use --force")
        if standing is TargetStanding.REMOVED:
            _check_ended(target)

        def tell() -> None:
            self._desk.send(session, request, answer)

        def durable() -> None:
            self._stand(target, standing)
            if standing is TargetStanding.REMOVED:
                # Also when the catalog is lost at once: one that is made again goes by the map.
                self._map_keeper.when_kept(self._code.m + 1, tell)
            else:
                tell()

        # From here on no process of a removed one is taken in.
        seen = self._members.seats.stand(target.id, standing)
        self._desk.persist((seen,), durable)

    def _checked(self, message: ChangeTarget) -> tuple[Target, TargetStanding]:
        target = self._members.targets.get(message.target)
        if target is None:
            known = ", ".join(target.id for target in self._members.all()) or "none"
            raise NotFound(f"there is no target {message.target}", hint=f"there are {known}")
        standing = _SAID.get(message.standing)
        if standing is None:
            raise Refused(f"a target cannot be made {message.standing!r}")
        if standing is not TargetStanding.REMOVED:
            self._check_member(target)
        return target, standing

    def _check_member(self, target: Target) -> None:
        """It was not removed, and is not about to be."""
        if self._members.seats.standing_of(target.id) is TargetStanding.REMOVED:
            raise removed(target.id)

    def _stand(self, target: Target, standing: TargetStanding) -> None:
        self._members.stand(target.id, standing)
        self._desk.report(
            "warning", "target stands otherwise", target=target.id, standing=standing.value
        )
        if standing is TargetStanding.REMOVED:
            self._desk.tell(TargetRemoved(target.id))

    # ----------------------------------------------------------------------- what follows from it

    def _named_on(self, target: Target) -> tuple[int, int]:
        """Columns of what is kept that are named there, and the bytes of their files."""
        count = size = 0
        for checkpoint in self._kept():
            assert checkpoint.placement is not None
            for placed in checkpoint.placement.values():
                if target.id in placed.columns:
                    layout = placed.layout
                    count += 1
                    size += file_bytes(layout, manifest_bytes_bound(layout))
        return count, size

    def _documents_on(self, target: Target) -> Iterator[int]:
        """How many copies of each kept checkpoint would be missing without it."""
        others = sum(one.stays and one is not target for one in self._members.live())
        for checkpoint in self._kept():
            wanted = min(checkpoint.document_copies, others)
            for copies in (
                self._checkpoints.index_copies(checkpoint),
                self._checkpoints.record_copies(checkpoint),
            ):
                if target in copies:
                    staying = sum(one.stays and one is not target for one in copies)
                    yield min(1, max(0, wanted - staying))

    def _kept(self) -> Iterator[KeptCheckpoint]:
        """What is read, or referred to by what is; where it lies is known."""
        for checkpoint in self._checkpoints.all():
            if checkpoint.placement is not None and checkpoint.is_needed:
                yield checkpoint

    def _doubts(self, target: Target, standing: TargetStanding, size: int) -> Iterator[str]:
        """Why that should not be done."""
        if target.stays and standing is not TargetStanding.IN:
            yield from self._doubts_of_saves(target)
        if target.stays and standing in (TargetStanding.DRAINING, TargetStanding.OUT):
            yield from self._doubts_of_room(target, size)
            if not self._repairs and size:
                yield f"nothing is made again here (repair = false): all stays on {target.id}"
        if standing is TargetStanding.REMOVED and target.state is not TargetState.REMOVED:
            yield from self._losses(target)

    def _doubts_of_saves(self, target: Target) -> Iterator[str]:
        """Columns of a save that would have no place any more, were all here that stay."""
        said = self._members.seats.standing_of
        staying = {
            one.id
            for one in self._members.all()
            if one is target or (one.stays and said(one.id) is TargetStanding.IN)
        }
        seats = candidates_of(self._members)
        with_it, without = (
            place(
                self._code, 0, [replace(c, live=c.target in ids, bytes_free=0) for c in seats],
                self._rule.level, self._rule.max_per_domain, 0, 0,
            ).columns
            for ids in (staying, staying - {target.id})
        )  # fmt: skip
        placed = len(without) - without.count(None)
        if without.count(None) > with_it.count(None):
            yield (
                f"without {target.id} {counted(len(staying) - 1, 'target', 'is', 'are')} left in, "
                f"on which {placed} of the {self._code.n} columns of a save find a place"
            )

    def _doubts_of_room(self, target: Target, size: int) -> Iterator[str]:
        others = [one for one in self._members.live() if one.stays and one is not target]
        devices = {str(one.domain): one.device_bytes_free for one in others}
        room = sum(devices.values())
        if size > room:
            yield (
                f"{format_bytes(size)} of kept columns are to leave {target.id},"
                f" and the others have room for {format_bytes(room)}"
            )

    def _losses(self, target: Target) -> Iterator[str]:
        """What could be read no more without it, here or away."""
        needed = [one for one in self._checkpoints.all() if one.is_needed]
        unknown = [one for one in needed if one.placement is None]
        if unknown:
            yield f"where {unknown[0].id} lies is not known: its index was not read yet"
        if loss := self._loss(target):
            yield loss

    def _loss(self, target: Target) -> str:
        """Of what is known where it lies; empty for nothing."""
        lost = [one for one in self._kept() if self._needs(one, target)]
        if not lost:
            return ""
        named = ", ".join(str(one.id) for one in lost[:NAMED_MAX])
        more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
        away = [one.id for one in self._members.all() if one.state is not TargetState.LIVE]
        others = ", ".join(id for id in away if id != target.id)
        meanwhile = f" while {others} are away" if others else ""
        return f"without {target.id} too little is left of {named}{more}{meanwhile}"

    def _needs(self, checkpoint: KeptCheckpoint, target: Target) -> bool:
        """It may have some of it, and fewer columns of a payload than k are elsewhere, or no index.
        What it had when it was here last is what it may have.
        """
        assert checkpoint.placement is not None
        copies = self._checkpoints.index_copies(checkpoint)
        alone = all(one is target for one in copies)
        has_index = target.documents.holds_any(checkpoint.index)
        if alone and (target.id in checkpoint.index_targets or has_index):
            return True
        return any(
            target.id in placed.columns and self._left(checkpoint, rank, target) < checkpoint.code.k
            for rank, placed in checkpoint.placement.items()
        )

    def _left(self, checkpoint: KeptCheckpoint, rank: Rank, target: Target) -> int:
        assert checkpoint.placement is not None
        columns = checkpoint.placement[rank].columns
        now = self._checkpoints.columns_now(checkpoint, rank)
        return sum(columns[j] != target.id for j in now)


def _check_ended(target: Target) -> None:
    if target.session is not None:
        raise Busy(_is_live(target), hint=f"end it first, for good: kill {target.pid}")


def _is_live(target: Target) -> str:
    return f"target {target.id} is live, from {target.directory} on {target.domain.host}"
