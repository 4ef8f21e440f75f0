"""Is this coordinator still the one? Enough of its targets say so, each time it matters.

    asked --Attest to every live target--> WAITING --enough have answered--> confirmed
                     ^ targets that come, or come again, are asked with the next tick

Somebody may take this process for dead and start another coordinator, on a catalog that was copied,
restored or made of the targets. That one serves when enough targets have its higher term on stable
storage, and a target obeys nobody below that. So this coordinator asks the targets after a question
has come. When enough of them obey it, it was in force when the question came: no other coordinator
had announced anything. Enough are as many as vouch for a catalog with patience (vouching.py): two
such sets share a target, except where all targets but m are no majority.

It costs a frame for each target and no sync. Questions that come during a round share the next one,
so a crowd of ranks that load costs two rounds. Without a confirmation a request fails and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as replace_field

from msgspec.structs import replace

from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import TargetId
from ckpt.base.limits import LEASE_US
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Ask, ChangeTarget, DeleteStep, LabelStep, RollBack
from ckpt.format.messages.keeping import KeepSteps
from ckpt.format.messages.loading import Resolve
from ckpt.format.messages.repairs import SetRepair
from ckpt.format.messages.targets import Attest, Attested
from ckpt.protocol.coordinator.cluster.membership import (
    GATHERING_US,
    Membership,
    Target,
    TargetState,
)
from ckpt.protocol.coordinator.cluster.vouching import HELD_COUNT_MAX, Allowance, Vouching
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.coordinator.facts import (
    CheckpointCommitted,
    LoadUnconfirmed,
    RequestConfirmed,
    TargetVouched,
)
from ckpt.protocol.coordinator.holding import HeldRequest, HeldRequests
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.events import Buffer, Received, Session

CONFIRMED = (Resolve, DeleteStep, LabelStep, RollBack, KeepSteps, SetRepair, ChangeTarget, Ask)
"""What only a coordinator in force may answer: each says what is the newest, or changes it."""
IN_VAIN_US = 300_000
"""A reader that asks for an object store, since it does not reach the targets, waits no longer."""


@dataclass(slots=True)
class _Round:
    """Everybody who asked before it began, and who has answered."""

    waiting: list[Then]
    asked: dict[TargetId, Session] = field(default_factory=dict)
    obeying: set[TargetId] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class _Held(HeldRequest):
    due_us: int


class Confirming:
    """I ask the targets, and hold requests until they have answered.

    While a commit is still to be made that the coordinator before may have announced, nobody knows
    what is the newest: confirmed requests wait for it.
    """

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        book: AttemptBook,
        vouching: Vouching,
    ) -> None:
        self._desk = desk
        self._members = members
        self._book = book
        #: False once no commit is left to be made that was decided before this process began.
        self._is_owing = True
        self._vouching = vouching

        #: What answers to commits allow to lose (P1): so many may be silent in a round. An earlier
        #: answer that allows more than the last counts as well: nobody took its promise back.
        self._allowed = [Allowance()]
        #: The round under way; None between rounds.
        self._round: _Round | None = None
        #: Who asked while a round was under way, and is served by the next one: what they ask is
        #: newer than its questions.
        self._next: list[Then] = []
        #: Requests without an answer, oldest first: their round is under way or to come, or has
        #: ended and they are in `_confirmed` too.
        self._held: HeldRequests[_Held] = HeldRequests()
        #: Those of `_held` whose round has ended, and which wait until no commit is owed.
        self._confirmed: HeldRequests[_Held] = HeldRequests()

    def confirm(self, then: Then) -> None:
        """`then` runs once enough targets have obeyed after this call; that may be never."""
        self._next.append(then)
        if self._round is None:
            self._begin()

    def is_in_force(self) -> bool:
        """Whether enough targets are here that could confirm it."""
        return self._are_enough({target.id for target in self._members.live()})

    def committed(self, fact: CheckpointCommitted) -> None:
        """Note what a commit's answer allows to lose, which counts from here on (P1)."""
        info = fact.info
        live = {target.id for target in self._members.live()}
        absent = frozenset({target.id for target in self._members.all()} - live)
        self._allow(
            *self._allowed, Allowance(absent, info.targets_survivable, info.domains_survivable)
        )
        self._release_confirmed()

    def hold(self, event: Received) -> None:
        """Keep a request until this coordinator is confirmed; one that waits in vain fails with the
        reason. None of them has a bulk: one that comes with it is not kept.
        """
        if len(self._held) >= HELD_COUNT_MAX:
            self._desk.close(event.session, "too much waits for the targets to confirm it")
            return
        bare = Received(event.now_us, event.session, event.request, event.message)
        held = _Held(bare, self._desk.now_us + _patience_us(event.message))
        self._held.add(held)
        self.confirm(lambda: self._release(held))

    def session_closed(self, session: Session) -> None:
        for held in (self._held, self._confirmed):
            held.session_closed(session)

    def target_vouched(self, _fact: TargetVouched) -> None:
        """Ask this target what the others were asked."""
        self._ask_who_came()

    def _ask_who_came(self) -> None:
        here = {target.id for target in self._members.live()}
        if any(here & allowed.absent for allowed in self._allowed):
            self._allow(*(replace_field(one, absent=one.absent - here) for one in self._allowed))
        if self._round is not None:
            self._ask_all(self._round)

    def tick(self) -> None:
        """Ask targets again that refused; whoever has waited too long hears it."""
        self._ask_who_came()
        self._release_confirmed()
        for held in [held for held in self._held if self._desk.now_us >= held.due_us]:
            self._give_up(held.event)
            self._held.take(held)
            self._confirmed.take(held)

    def refuse_all(self, problem: CkptError) -> None:
        """Refuse all requests that wait: this coordinator will never be confirmed."""
        self._confirmed.take_all()
        for each in self._held.take_all():
            self._desk.fail(each.event.session, each.event.request, problem)

    # ----------------------------------------------------------------------- inside

    def _begin(self) -> None:
        waiting, self._next = self._next, []
        self._round = _Round(waiting)
        self._ask_all(self._round)

    def _ask_all(self, this: _Round) -> None:
        for target in self._members.targets.values():
            session = target.session
            is_live = target.state is TargetState.LIVE and session is not None
            if is_live and session is not None and this.asked.get(target.id) != session:
                this.asked[target.id] = session
                this.obeying.discard(target.id)
                self._ask(this, target, session)

    def _ask(self, this: _Round, target: Target, session: Session) -> None:
        def answered(message: Message, _bulk: Buffer) -> None:
            if this is not self._round:
                return
            if isinstance(message, Attested):
                this.obeying.add(target.id)
                self._count(this)
            elif this.asked.get(target.id) == session:
                del this.asked[target.id]  # Its disk failed, say: the next tick asks it again.

        self._desk.ask(session, Attest(self._members.term, ()), answered)

    def _count(self, this: _Round) -> None:
        if not self._are_enough(this.obeying):
            return
        self._round = None
        if self._next:
            self._begin()
        for then in this.waiting:
            then()

    def _are_enough(self, ids: set[TargetId]) -> bool:
        return any(self._vouching.is_majority(ids, allowed) for allowed in self._allowed)

    def _allow(self, *allowed: Allowance) -> None:
        """All of these, but for what another one covers."""
        kept: list[Allowance] = []
        for one in allowed:
            if not any(other.covers(one) for other in kept):
                kept = [*(other for other in kept if not one.covers(other)), one]
        self._allowed = kept

    def _owes(self) -> bool:
        """Only what was decided before this coordinator began: once it is made, never again."""
        self._is_owing = self._is_owing and self._book.owes
        return self._is_owing

    def _release_confirmed(self) -> None:
        if self._confirmed and not self._owes():
            for held in self._confirmed.take_all():
                self._release(held)

    def _release(self, held: _Held) -> None:
        if held not in self._held:
            return
        if self._owes():
            self._confirmed.add(held)
            return
        self._held.take(held)
        waited_us = self._desk.now_us - held.event.now_us
        message = held.event.message
        if isinstance(message, Resolve):
            left_us = max(0, message.timeout_us - waited_us)
            message = replace(message, timeout_us=left_us)
        event = held.event
        now_us = self._desk.now_us
        event = Received(now_us, event.session, event.request, message, event.bulk)
        self._desk.tell(RequestConfirmed(event))

    def _give_up(self, event: Received) -> None:
        problem = self._problem()
        try:
            if not isinstance(event.message, Resolve):
                raise problem
            self._desk.tell(LoadUnconfirmed(event.session, event.request, event.message, problem))
        except CkptError as error:
            self._desk.fail(event.session, event.request, error)

    def _problem(self) -> CkptError:
        targets = self._members.all()
        if self._confirmed:
            return Unavailable(
                "a save that the coordinator before has decided waits for its targets",
                hint="start them: ckpt status says how",
                retry_after_s=1.0,
            )
        here = len(self._round.obeying) if self._round is not None else 0
        away = [t.id for t in targets if t.state is not TargetState.LIVE]
        named = f"; away: {', '.join(away)}" if away else ""
        return Unavailable(
            f"{here} of {len(targets)} targets obey this coordinator: "
            f"another may have taken its place{named}",
            hint="start the targets, or end this coordinator: ckpt status says how",
            retry_after_s=1.0,
        )


def is_confirmed(message: Message) -> bool:
    """Whether it is answered only after a round; questions about this process need none, nor does
    a worker that makes columns of one generation again: it compares all that it reads.
    """
    if isinstance(message, Ask):
        return message.what not in ("status", "coordinator", "upgrade")
    if isinstance(message, Resolve) and message.for_repair:
        return message.only is None
    return isinstance(message, CONFIRMED)


def _patience_us(message: Message) -> int:
    if isinstance(message, Resolve):
        return max(message.timeout_us, IN_VAIN_US if message.away else LEASE_US)
    return GATHERING_US
