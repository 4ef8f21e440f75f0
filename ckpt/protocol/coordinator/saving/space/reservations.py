"""Space before bytes: every column of a plan, and each spare, is a preallocated file on its target.

    request --Reserve to n + spares targets--> all held --> Allotment
       ^             | refused or late: next candidate, at last the column is absent
       |             |   (one whose device fails only where the floor is not reached otherwise)
       |             +-- fewer than the floor: everything is released, NoSpace or Unavailable
       +--- enough live, but late: with twice the patience

A committed save's allotment is renewed at once for the next save of the same shape (`stand`), which
then asks nothing (standing.py, claiming.py). Invariants: a reservation belongs to one allotment or
is released; the sum of what an open allotment plans is on its targets' `load_bytes`, so that a
burst stays balanced. The last of each target is for what is made again: a plan does without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import ColumnNumber, ReservationId, TargetId
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Place, SpaceStands
from ckpt.format.messages.targets import ReleaseReservation, Reserve, Reserved
from ckpt.format.messages.writing import ColumnProof
from ckpt.plan.placement import Holder, Placement, pick_replacement, place_in
from ckpt.plan.seating import Candidate, Seating
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import NO_ANSWER, Desk
from ckpt.protocol.coordinator.facts import TargetLeft
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.saving.space.allotment import PATIENCE_US, Allotment
from ckpt.protocol.coordinator.saving.space.claiming import SpaceClaims, space_of
from ckpt.protocol.coordinator.saving.space.kept_space import SeatView, candidates
from ckpt.protocol.coordinator.saving.space.orphans import Orphans
from ckpt.protocol.coordinator.saving.space.shortage import Shortage
from ckpt.protocol.coordinator.saving.space.spare_search import Homeless, SpareSearch
from ckpt.protocol.coordinator.saving.space.standing import StandingKey, StandingSpace
from ckpt.protocol.events import Buffer, Session

PATIENCE_LAST_US = 8_000_000
"""When too few are in time, a busy cluster is likelier than a dead one: all are asked again with
twice the patience, up to this."""


Done = Callable[[Allotment | CkptError], None]


class Reserver:
    """I ask targets for space and keep what stands. My owner says when an allotment is used up."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        rule: SpreadRule,
        evictor: Evictor,
        orphans: Orphans,
    ) -> None:
        self._desk = desk
        self._members = members
        self._rule = rule
        self._shortage = Shortage(members, evictor, rule)
        self._orphans = orphans
        self._view = SeatView(members, rule.repair_share)
        #: The number of the last reservation that was asked for, within this term.
        self._counter = 0
        #: Counts placements: each turn seats the targets in another order.
        self._turn = 0
        #: Asked for by me and not given back. What else of this term a target holds is released.
        self._known: set[ReservationId] = set()
        self.standing = StandingSpace(desk, members, self.release)
        self.claims = SpaceClaims(desk, members, orphans, self.standing, self._adopt)
        #: Searches for columns without a place; all try again on every tick.
        self._waiting: list[SpareSearch] = []

    # ----------------------------------------------------------------------- for a save

    @staticmethod
    def empty_allotment(layout: Layout) -> Allotment:
        """An allotment without places, for a payload that a restarted coordinator hears of."""
        return Allotment(layout, file_bytes(layout, manifest_bytes_bound(layout)))

    def allot(self, key: StandingKey, session: Session | None, layout: Layout, done: Done) -> None:
        """Call `done` with an Allotment of at least the floor of columns, or with why not. The
        session is its stager's."""
        if self.claims.is_waiting(key):
            done(Unavailable("the targets of the space that stands for it are about to come"))
            return
        standing = self.standing.take(key, session, layout)
        if standing is not None:
            done(standing)
        else:
            self._request(layout, done)

    def stand(
        self, key: StandingKey, session: Session | None, layout: Layout,
        say: Callable[[SpaceStands], Session | None],
    ) -> None:  # fmt: skip
        """Reserve for the next save of this shape, which nobody waits for: failing is no error.
        `say` brings to its stager what stands, and answers in which session."""
        if self.standing.has(key, session, layout):
            return

        def done(result: Allotment | CkptError) -> None:
            if not isinstance(result, Allotment):
                return
            if result.absent:
                self.release(result)
                return
            result.heard_by, result.idle_since_us = say(space_of(key, result)), self._desk.now_us
            self.standing.put(key, result)

        self._request(layout, done)

    def more_spares(
        self, allotment: Allotment, column: ColumnNumber, done: Callable[[tuple[Place, ...]], None],
        homeless: Homeless | None = None,
    ) -> None:  # fmt: skip
        """One more place for a column, outside the domains of the others; or none. No save that was
        let in fails for what is kept (P6)."""
        allotment.is_admitted = True
        SpareSearch(self, self._desk, self._members, allotment, column, homeless, done).begin()

    def wait(self, search: SpareSearch) -> None:
        """Ask again on the next tick."""
        self._waiting.append(search)

    def leave(self, allotment: Allotment, column: ColumnNumber, target: TargetId) -> None:
        """The column's place there goes back, and it may be asked again."""
        held = allotment.columns.get(column)
        if held is not None and held.target == target:
            self._give_back(allotment.columns.pop(column), allotment.file_bytes)
        for spare in [spare for spare in allotment.spares if spare.target == target]:
            allotment.spares.remove(spare)
            self._give_back(spare, allotment.file_bytes)
        allotment.refused.pop(target, None)
        allotment.asked_spares.discard(target)

    def reopen(self, allotment: Allotment, kept: Mapping[ColumnNumber, TargetId]) -> None:
        """Only these columns stay; every other place goes back and may be given out again."""
        for column in [column for column in allotment.columns if column not in kept]:
            self._give_back(allotment.columns.pop(column), allotment.file_bytes)
        used = set(kept.values())
        for spare in [spare for spare in allotment.spares if spare.target not in used]:
            allotment.spares.remove(spare)
            self._give_back(spare, allotment.file_bytes)
        allotment.asked_spares.clear()
        allotment.refused.clear()
        allotment.intended = dict(kept)

    def release(self, allotment: Allotment) -> None:
        """Give back what is left of an allotment; used columns are the target's business by now."""
        allotment.released = True
        for held in allotment.places:
            self._give_back(held, allotment.file_bytes)
        allotment.columns.clear()
        allotment.spares.clear()

    def used(self, allotment: Allotment, proofs: Iterable[ColumnProof]) -> None:
        """Note that the save ended: files that became columns stay, everything else goes back."""
        sealed = {(proof.target, proof.boot) for proof in proofs}
        places = Counter((place.target, place.boot) for place in allotment.places)
        for column, held in list(allotment.columns.items()):
            here = held.target, held.boot
            if here in sealed and places[here] == 1:
                self._forget(allotment.columns.pop(column), allotment.file_bytes)
        self.release(allotment)

    # ----------------------------------------------------------------------- time and targets

    def tick(self) -> None:
        """Standing space that nobody came for, and space of an earlier term, goes back. Columns
        that wait for a place try again.
        """
        self._orphans.tick()
        waiting, self._waiting = self._waiting, []
        for search in waiting:
            search.again()
        self.standing.tick()
        self.claims.tick()

    def reconcile(self, target: Target, held: tuple[ReservationId, ...]) -> None:
        """A target came with reservations: what nobody knows any more goes back; of an earlier
        term later.
        """
        assert target.session is not None
        self._orphans.found(target, [each for each in held if each not in self._known])
        self.claims.target_came(target.id)
        for reservation in held:
            if reservation >> 32 == self._members.term and reservation not in self._known:
                self._desk.send(
                    target.session, 0, ReleaseReservation(self._members.term, reservation)
                )

    def answered_late(self, session: Session, reservation: ReservationId) -> None:
        """Handle a target's reservation that came after its answer was given up."""
        if reservation not in self._known:
            self._desk.send(session, 0, ReleaseReservation(self._members.term, reservation))

    def target_left(self, fact: TargetLeft) -> None:
        """Note that a target's reservations died with it; what stands on it is planned again."""
        self.standing.target_left(fact.target)
        self._members.targets[fact.target].load_bytes = 0
        self._view.load_changed(fact.target)

    # ----------------------------------------------------------------------- inside

    def _request(self, layout: Layout, done: Done, patience_us: int = PATIENCE_US) -> None:
        allotment = self.empty_allotment(layout)
        allotment.patience_us = patience_us
        size = allotment.file_bytes
        self._turn += 1
        live = {target.id for target in self._members.live()}
        seating = self._view.seating(layout.code, self._desk.now_us)
        placement = self._placed(seating, size)
        given = sum(target is not None for target in placement.columns)
        if given < layout.code.floor and self._members.failing():
            last = self._candidates(allotment, last_resort=True)
            placement = self._placed(Seating(layout.code, last), size)

        def answered(column: ColumnNumber | None, held: Place | None) -> None:
            allotment.open_questions -= 1
            if held is not None and column is not None:
                allotment.columns[column] = held
            elif held is not None:
                allotment.spares.append(held)
            if allotment.open_questions == 0:
                self._conclude(allotment, live, done)

        asked = [(ColumnNumber(j), t) for j, t in enumerate(placement.columns) if t is not None]
        allotment.open_questions = len(asked) + len(placement.spares) + 1
        allotment.intended.update(asked)
        allotment.asked_spares.update(placement.spares)
        for column, target in asked:
            then = partial(answered, column)
            self.reserve_column(allotment, column, target, then)
        for target in placement.spares:
            self._reserve(allotment, target, lambda h: answered(None, h))
        answered(None, None)

    def _placed(self, seating: Seating, size: int) -> Placement:
        rule = self._rule
        return place_in(
            seating, size, rule.level, rule.max_per_domain, rule.spare_count, self._turn
        )

    def reserve_column(
        self,
        allotment: Allotment,
        column: ColumnNumber,
        target: TargetId,
        then: Callable[[Place | None], None],
    ) -> None:
        def answered(held: Place | None) -> None:
            if held is not None:
                then(held)
            else:
                self.replace(allotment, column, then)

        allotment.intended[column] = target
        self._reserve(allotment, target, answered)

    def reserve_there(
        self, allotment: Allotment, column: ColumnNumber, target: TargetId,
        then: Callable[[Place | None], None],
    ) -> None:  # fmt: skip
        """On this target or nowhere."""
        allotment.intended[column] = target
        self._reserve(allotment, target, then)

    def replace(
        self, allotment: Allotment, column: ColumnNumber, then: Callable[[Place | None], None]
    ) -> None:
        if allotment.released:
            then(None)
            return
        taken = {place.target for place in allotment.places} | allotment.asked_spares
        taken |= set(allotment.intended.values())
        targets = self._members.targets
        others = [
            Holder(id, targets[id].domain)
            for j, id in allotment.intended.items()
            if j != column and id in targets
        ]
        left = sum(holder.target not in allotment.refused for holder in others)
        spares = sum(place.target not in allotment.refused for place in allotment.spares)
        is_last = left + spares < allotment.layout.code.floor
        home = self._view.home(allotment.layout.code, (holder.target for holder in others))
        # Outside of its group only where that has no place: few sets of targets shall be deadly.
        for among in (home, None) if home else (None,):
            chosen = pick_replacement(
                allotment.file_bytes,
                self._candidates(allotment, last_resort=is_last and among is None, among=among),
                others,
                self._rule.level,
                self._rule.max_per_domain,
                excluded=taken | set(allotment.refused),
                turn=self._turn,
            )
            if chosen:
                self.reserve_column(allotment, column, chosen[0], then)
                return
        then(None)

    def _candidates(
        self, allotment: Allotment, *, last_resort: bool, among: Iterable[Target] | None = None
    ) -> list[Candidate]:
        share = self._kept_share(allotment)
        return candidates(self._members, share, last_resort=last_resort, among=among)

    def _kept_share(self, allotment: Allotment) -> float:
        return 0.0 if allotment.is_admitted else self._rule.repair_share

    def _reserve(
        self, allotment: Allotment, id: TargetId, then: Callable[[Place | None], None]
    ) -> None:
        target = self._members.targets[id]
        if target.session is None:
            then(None)
            return
        self._counter += 1
        reservation = ReservationId(self._members.term << 32 | self._counter)
        target.load_bytes += allotment.file_bytes
        self._view.load_changed(target.id)
        self._known.add(reservation)
        place = Place(target.id, target.boot, target.address, reservation, target.unix)

        def answered(message: Message, _bulk: Buffer) -> None:
            if message is not NO_ANSWER:
                reserving.answered(self._desk.now_us, reservation)
            elif self._waits_on(target, place, allotment):
                ask()
                return
            else:
                reserving.given_up(reservation)
            if isinstance(message, Reserved) and allotment.released:
                self._give_back(place, allotment.file_bytes)
                then(None)
                return
            if isinstance(message, Reserved):
                then(place)
                return
            self._known.discard(reservation)
            self._unload(place, allotment.file_bytes)
            failure = (
                message if isinstance(message, Failed) else Failed("peer", "unexpected answer")
            )
            allotment.refused[id] = failure
            then(None)

        def ask() -> None:
            assert target.session is not None
            question = Reserve(self._members.term, reservation, allotment.file_bytes)
            self._desk.ask(target.session, question, answered, patience_us=allotment.patience_us)

        reserving = target.reserving
        reserving.asked(self._desk.now_us, reservation)
        ask()

    def _waits_on(self, target: Target, place: Place, allotment: Allotment) -> bool:
        """Whether its silence is a queue's: it is there, and as fast as the others."""
        here = target.session is not None and target.boot == place.boot
        return here and not allotment.released and self._members.is_busy(target)

    def _conclude(self, allotment: Allotment, known: set[TargetId], done: Done) -> None:
        """All that were asked have answered; known: who was live when places were chosen."""
        code = allotment.layout.code
        for column in allotment.absent:
            if allotment.spares:
                # Any spare may take any column without breaking the domain rule.
                spare = allotment.spares.pop(0)
                allotment.columns[column] = spare
                allotment.intended[column] = spare.target
        if len(allotment.columns) >= code.floor:
            done(allotment)
            return
        needed, given = code.floor, len(allotment.columns)
        self.release(allotment)
        share = self._kept_share(allotment)
        full = self._shortage.full(allotment, share)
        if full:
            if self.standing.drop_all():
                self._view.look_again()
                self._request(allotment.layout, done)
                return
            done(self._shortage.no_space(allotment, share, full))
            return
        live = len(self._members.live())
        if live >= needed and any(target.id not in known for target in self._members.live()):
            self._request(allotment.layout, done, allotment.patience_us)
            return
        silent = any(failed.code == Unavailable.code for failed in allotment.refused.values())
        if silent and live >= needed and allotment.patience_us < PATIENCE_LAST_US:
            self._request(allotment.layout, done, 2 * allotment.patience_us)
            return
        done(self._shortage.too_few(live, given, code))

    def _adopt(self, place: Place, size: int) -> None:
        """It was reserved by a coordinator before this one."""
        self._known.add(place.reservation)
        self._members.targets[place.target].load_bytes += size
        self._view.load_changed(place.target)

    def _forget(self, place: Place, size: int) -> None:
        self._known.discard(place.reservation)
        self._unload(place, size)

    def _give_back(self, place: Place, size: int) -> None:
        self._forget(place, size)
        target = self._members.targets.get(place.target)
        if target is not None and target.boot == place.boot and target.session is not None:
            message = ReleaseReservation(self._members.term, place.reservation)
            self._desk.send(target.session, 0, message)

    def _unload(self, place: Place, size: int) -> None:
        target = self._members.targets.get(place.target)
        if target is not None and target.boot == place.boot:
            target.load_bytes = max(0, target.load_bytes - size)
            self._view.load_changed(target.id)
