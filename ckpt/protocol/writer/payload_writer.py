"""The columns of one payload: which stream goes to which place, what may be sent,
when it is enough.

    WAITING ─place─> OPENING ─accepted─> STREAMING ─all sent, manifest─> SEALING ─proof─> SEALED
       ^                │                    │                              │               │
       ├─refused, lost, stalled or slow: the next spare, from stripe 0 ─────┘               │
       │                                                second count lost it: new place ────┘
       └─no spare can be named─> FAILED

Waiting is no fault. A column goes to the next spare when its target is late: silent, or slow by
itself beside its peers (`lateness.py`, `questions.py`). Without a spare it stays where it is and,
after HEDGE_US, is `late`: the payload may then be certified without it, from the floor up.

Invariants (`check`): a stream number is never used again, and what arrives on an abandoned one is
ignored; no two columns have their place on one target; no byte is sent beyond credit; only a column
with a proof for its own id, target and checksum counts; nothing is certified below the floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ckpt.base.ids import ColumnNumber, PayloadId, TargetId
from ckpt.base.limits import HEDGE_US
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages.saving import PayloadPlanned, Place
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.events import Ticked
from ckpt.protocol.writer.column import Column, ColumnState, slowest
from ckpt.protocol.writer.lateness import is_late_to_open, is_silent
from ckpt.protocol.writer.payload_events import (
    AbandonReason,
    AbandonStream,
    AskSpares,
    AskTarget,
    CertifyPayload,
    ColumnsReopened,
    FragmentSent,
    ManifestReady,
    OpenStream,
    SealStream,
    SendBlocked,
    SendMoved,
    SparesGiven,
    StreamAccepted,
    StreamCredited,
    StreamLost,
    StreamRefused,
    StreamSealed,
    WriterAction,
    WriterEvent,
    WriterStopped,
    too_few,
)
from ckpt.protocol.writer.questions import Questions

TICK_GAP_US_MAX: Final = 500_000
"""Shells tick every 100 ms. A longer gap is our own absence and is not charged to targets."""
MOVING: Final = (ColumnState.OPENING, ColumnState.STREAMING, ColumnState.SEALING)
"""States in which a column has a live stream."""


class PayloadWriter:
    """I move the n columns of one payload to n targets. I expect every action to be performed and
    every answer fed back with its stream's number. Afterwards I say CertifyPayload or FailPayload.
    """

    def __init__(
        self, plan: PayloadPlanned, payload_bytes: int, streams: Iterator[int], now_us: int,
        usual_us: int | None = None,
    ) -> None:  # fmt: skip
        """`usual_us`: what a column of this run took lately."""
        code = Code.parse(plan.code)
        self.payload: PayloadId = plan.payload
        self._code = str(code)
        self.layout = Layout(code, payload_bytes, plan.cell_bytes)
        self.columns: tuple[Column, ...] = tuple(Column(ColumnNumber(j)) for j in range(code.n))
        self.done = False
        """Stopped or failed: every further event is ignored."""
        self._plan = plan
        self._numbers = streams
        #: Live streams; an abandoned one leaves at once, so that its late messages find nothing.
        self._streams: dict[int, Column] = {}
        #: Those of sealed columns: answers to questions may come there.
        self._sealed_streams: dict[int, Column] = {}
        #: Places that no column has taken, in the order in which the coordinator wants them used.
        self._spares: list[Place] = list(plan.spares)
        self._stripe_count = self.layout.stripe_count
        #: What a seal needs; None until every stripe is encoded.
        self._manifest: ManifestReady | None = None
        #: The proofs that CertifyPayload said last; empty before, and after columns were reopened.
        self._certified: tuple[ColumnProof, ...] = ()
        #: How often a column went to a spare because it was slow; at most m times.
        self._slow_moves = 0
        self._questions = Questions(self.columns, now_us, usual_us)
        #: Those that were late, in the order in which they were found.
        self._slow_targets: dict[TargetId, None] = {}
        self._begun_us = self._ticked_us = now_us

    def begin(self) -> list[WriterAction]:
        """Open a stream at every planned place; columns without a live target take spares."""
        plan, actions = self._plan, list[WriterAction]()
        present = [c for c in self.columns if c.number not in plan.absent]
        for column, place in zip(present, plan.places, strict=False):
            self._open(column, place, self._begun_us, actions)
        for column in self.columns:
            if column.state is ColumnState.WAITING:
                self._place_or_fail(column, self._begun_us, actions)
        self._conclude(actions)
        return actions

    # ----------------------------------------------------------------------- hot loop

    def next_stripe(self, number: int) -> int | None:
        """The stripe that this column may send now; None without credit,
        acceptance or anything left.
        """
        column = self.columns[number]
        stripe = column.next_stripe
        if column.state is not ColumnState.STREAMING or stripe == self._stripe_count:
            return None
        return stripe if self.layout.cell_bytes_of(stripe) <= column.credit_bytes else None

    def send_order(self) -> list[Column]:
        """The streaming columns, most bytes left first, so that all end together."""
        streaming = [c for c in self.columns if c.state is ColumnState.STREAMING]
        streaming.sort(key=lambda c: c.sent_bytes)
        return streaming

    def slowest(self) -> tuple[TargetId, int]:
        """Whose column was sealed last, and how long that took since the payload began; ("", 0)
        before any.
        """
        return slowest(self.columns, self._begun_us)

    def column_of(self, stream: int) -> Column | None:
        """The column that owns a live stream."""
        return self._streams.get(stream)

    # ----------------------------------------------------------------------- events

    def handle(self, event: WriterEvent) -> list[WriterAction]:
        """What to do now. Events of streams that are not live any more change nothing."""
        actions: list[WriterAction] = []
        if self.done:
            return actions
        match event:
            case FragmentSent():
                self._fragment_sent(event, actions)
                return actions
            case StreamAccepted() | StreamCredited():
                self._credited(event)
            case SendBlocked(now_us, stream):
                if (column := self._streams.get(stream)) is not None:
                    column.blocked(now_us, self.columns)
                return actions
            case SendMoved(now_us, stream):
                column = self._streams.get(stream)
                if column is not None and column.state is not ColumnState.OPENING:
                    column.moved(now_us)
                    self._progress(column, now_us)
                return actions
            case StreamSealed():
                self._sealed(event, actions)
            case StreamRefused(now_us, stream) | StreamLost(now_us, stream):
                self._broken(stream, now_us, actions)
            case ManifestReady():
                assert len(event.column_crcs) == len(self.columns)
                self._manifest = event
            case SparesGiven():
                self._spares_given(event, actions)
            case ColumnsReopened():
                self._reopened(event, actions)
            case Ticked(now_us):
                self._ticked(now_us, actions)
            case WriterStopped():
                self._stop(AbandonReason.STOPPED, actions)
        self._seal_complete(event.now_us, actions)
        self._conclude(actions)
        return actions

    def _fragment_sent(self, event: FragmentSent, actions: list[WriterAction]) -> None:
        column = self._streams.get(event.stream)
        if column is None or event.stripe != column.next_stripe:
            return
        size = self.layout.cell_bytes_of(event.stripe)
        assert size <= column.credit_bytes, "a fragment was sent beyond credit"
        column.credit_bytes -= size
        column.sent_bytes += size
        column.sent_us = event.now_us
        column.next_stripe += 1
        self._await_target(column, event.now_us)
        if column.next_stripe == self._stripe_count:
            self._seal_complete(event.now_us, actions)

    def _credited(self, event: StreamAccepted | StreamCredited) -> None:
        column = self._streams.get(event.stream) or self._sealed_streams.get(event.stream)
        if column is None:
            return
        column.heard(event.now_us, event.pace)
        if isinstance(event, StreamAccepted):
            if column.state is not ColumnState.OPENING:
                return
            column.state = ColumnState.STREAMING
            column.accepted(event.now_us)
            column.answers = event.answers
        elif column.state is not ColumnState.STREAMING or event.credit_bytes <= 0:
            return
        column.credit_bytes += max(0, event.credit_bytes)
        self._progress(column, event.now_us)

    def _sealed(self, event: StreamSealed, actions: list[WriterAction]) -> None:
        """The proof; also the answer to a begin, where an earlier stream's proof was lost on its
        way and the column got its place again.
        """
        column = self._streams.get(event.stream)
        if column is None or column.state is ColumnState.STREAMING:
            return
        if not self.proof_is_valid(column, event.proof):
            self._broken(event.stream, event.now_us, actions)
            return
        self._sealed_streams[column.stream] = self._streams.pop(column.stream)
        column.sealed_stream, column.stream = column.stream, 0
        column.state, column.proof = ColumnState.SEALED, event.proof
        column.heard(event.now_us)
        column.seal_us = event.now_us - column.seal_asked_us
        column.late, column.waiting_since_us, column.progress_us = False, None, event.now_us

    def _broken(self, stream: int, now_us: int, actions: list[WriterAction]) -> None:
        column = self._streams.get(stream)
        if column is not None:
            self._leave(column, AbandonReason.BROKEN, actions)
            self._place_or_fail(column, now_us, actions)

    def _spares_given(self, event: SparesGiven, actions: list[WriterAction]) -> None:
        known = {(place.target, place.reservation) for place in self._spares}
        self._spares += [s for s in event.spares if (s.target, s.reservation) not in known]
        if event.column is not None:
            self.columns[event.column].asked = False
        homeless = (ColumnState.WAITING, ColumnState.FAILED)
        # First the column that asked: the others were given up without this place, or wait for one.
        for column in sorted(self.columns, key=lambda each: each.number != event.column):
            if column.state in homeless and not column.asked:
                spare = self._take_spare(column)
                if spare is None and column.number == event.column:
                    spare = self._take_spare(column, again=True)
                if spare is not None:
                    self._open(column, spare, event.now_us, actions)
                else:
                    column.state = ColumnState.FAILED

    def _reopened(self, event: ColumnsReopened, actions: list[WriterAction]) -> None:
        """Only a column without a stream restarts: one that is on its way does what is asked.

        A place that is named for it is tried also where it failed before: the payload is below its
        floor and nothing better is left. The coordinator bounds how often.
        """
        wanted: dict[ColumnNumber, Place | None] = dict.fromkeys(event.columns)
        wanted |= dict(zip(event.columns, event.places, strict=False))
        moving = [c for c in self.columns if c.number in wanted and c.must_move(wanted[c.number])]
        # All leave before one takes a place: the new places may be each other's.
        for column in moving:
            self._leave(column, AbandonReason.REOPENED, actions)
        for column in moving:
            place = wanted[column.number]
            if place is not None and self.is_free(column, place):
                self._open(column, place, event.now_us, actions)
            else:
                self._place_or_fail(column, event.now_us, actions)
        free = [p for p in wanted.values() if p and not any(c.is_at(p) for c in self.columns)]
        self._spares += free  # For columns on their way, should they need it.
        self._certified = ()  # The coordinator waits to hear it again, changed or not.

    def _ticked(self, now_us: int, actions: list[WriterAction]) -> None:
        self._forgive_absence(now_us)
        asked = self._questions.ticked(now_us)
        actions += [AskTarget(c.number, c.stream or c.sealed_stream) for c in asked]
        for column in self.columns:
            # One without a place waits for a spare, and no target is late by that.
            if column.waiting_since_us is None or column.place is None:
                continue
            if is_silent(column, self.columns, now_us):
                if not self._move(column, AbandonReason.STALLED, now_us, actions):
                    self._be_late(column, actions)
            elif is_late_to_open(column, self.columns, now_us):
                self._move(column, AbandonReason.SLOW, now_us, actions)
            elif self._questions.is_slow(column, now_us):
                self._slow(column, now_us, actions)
            elif column.slow_since_us is not None and self._questions.is_well(column, now_us):
                column.slow_since_us = None

    def _slow(self, column: Column, now_us: int, actions: list[WriterAction]) -> None:
        """To a spare at once; without one, or after m such moves, it is late after HEDGE_US."""
        if column.slow_since_us is None:
            column.slow_since_us = now_us
        may_move = self._slow_moves < self.layout.code.m
        if may_move and self._move(column, AbandonReason.SLOW, now_us, actions):
            self._slow_moves += 1
        elif now_us - column.slow_since_us >= HEDGE_US:
            self._be_late(column, actions)

    def _forgive_absence(self, now_us: int) -> None:
        """A gap between ticks is time in which we did not look: nobody else is late by it."""
        gap, self._ticked_us = now_us - self._ticked_us, now_us
        for column in self.columns if gap > TICK_GAP_US_MAX else ():
            if column.waiting_since_us is not None:
                column.waiting_since_us = min(now_us, column.waiting_since_us + gap)

    # ----------------------------------------------------------------------- rules

    def proof_is_valid(self, column: Column, proof: ColumnProof) -> bool:
        """The proof is of this very column, on the target that was asked, with these bytes."""
        manifest, place = self._manifest, column.place
        return (
            manifest is not None
            and place is not None
            and proof.target == place.target
            and proof.column.column == column.number
            and proof.column.payload == self.payload
            and proof.code == self._code
            and proof.payload_bytes == self.layout.payload_bytes
            and proof.column_crc == manifest.column_crcs[column.number]
            and proof.manifest_digest == manifest.digest
        )

    def may_take(self, column: Column, place: Place) -> bool:
        """One target never holds two columns of a payload; where a column failed it
        is not tried again.
        """
        return (place.target, place.boot) not in column.failed and self.is_free(column, place)

    def is_free(self, column: Column, place: Place) -> bool:
        """No other column of the payload is on its target."""
        return all(
            c.place is None or c.place.target != place.target or c is column for c in self.columns
        )

    def may_certify(self) -> bool:
        """All sealed; or from the floor up, when each other column failed or
        passed its deadline.
        """
        open_columns = [c for c in self.columns if c.proof is None]
        sealed = len(self.columns) - len(open_columns)
        if sealed < self.layout.code.floor:
            return False
        return all(c.state is ColumnState.FAILED or c.late for c in open_columns)

    def places_possible(self) -> int:
        """Columns that are sealed, have a place or may still get one."""
        return len(self.columns) - sum([c.state is ColumnState.FAILED for c in self.columns])

    # ----------------------------------------------------------------------- steps

    def _open(self, column: Column, place: Place, now_us: int, actions: list[WriterAction]) -> None:
        assert self.is_free(column, place)
        assert not column.stream
        column.begins(place, next(self._numbers), now_us)
        self._streams[column.stream] = column
        actions.append(OpenStream(column.number, column.stream, place))

    def _leave(self, column: Column, reason: AbandonReason, actions: list[WriterAction]) -> None:
        """Give the place up; the column waits for another one."""
        if column.stream:
            assert column.place is not None
            del self._streams[column.stream]
            actions.append(AbandonStream(column.number, column.stream, column.place, reason))
        self._sealed_streams.pop(column.sealed_stream, None)
        if column.place is not None:
            column.failed.append((column.place.target, column.place.boot))
        column.state, column.place, column.stream, column.proof = ColumnState.WAITING, None, 0, None

    def _move(
        self, column: Column, reason: AbandonReason, now_us: int, actions: list[WriterAction]
    ) -> bool:
        """Away from a late target, where a spare is at hand; nobody is asked for one."""
        spare = self._take_spare(column)
        if spare is None:
            return False
        self._note_slow(column)
        self._leave(column, reason, actions)
        self._open(column, spare, now_us, actions)
        return True

    def _be_late(self, column: Column, actions: list[WriterAction]) -> None:
        """It stays where it is; the payload need not wait for it."""
        if not column.late:
            column.late = True
            self._note_slow(column)
            self._ask(column, actions)

    def _note_slow(self, column: Column) -> None:
        assert column.place is not None
        self._slow_targets[column.place.target] = None

    def _place_or_fail(self, column: Column, now_us: int, actions: list[WriterAction]) -> None:
        """For a column without a stream: the next spare, else more spares, else it fails."""
        spare = self._take_spare(column)
        if spare is not None:
            self._open(column, spare, now_us, actions)
            return
        column.state, column.waiting_since_us = ColumnState.WAITING, now_us
        self._ask(column, actions)

    def _ask(self, column: Column, actions: list[WriterAction]) -> None:
        if not column.asked:
            column.asked = True
            failed = [target for target, _ in column.failed]
            if column.place is not None:
                failed.append(column.place.target)
            placed = ((c, c.place) for c in self.columns if c.place is not None)
            held = tuple((c.number, at.target) for c, at in placed if c is not column)
            stays = column.place is not None
            actions.append(AskSpares(column.number, tuple(dict.fromkeys(failed)), held, stays))

    def _take_spare(self, column: Column, *, again: bool = False) -> Place | None:
        """With `again` also where it failed before."""
        fits = self.is_free if again else self.may_take
        for index, spare in enumerate(self._spares):
            if fits(column, spare) and not column.is_on(spare):
                return self._spares.pop(index)
        return None

    def _progress(self, column: Column, now_us: int) -> None:
        """The target did something: its deadline begins again, or rests while the
        next step is ours.
        """
        column.progress_us, column.late = now_us, False
        column.waiting_since_us = None
        self._await_target(column, now_us)

    def _await_target(self, column: Column, now_us: int) -> None:
        """Whose turn is it after a change of credit or cursor?"""
        match column.state:
            case ColumnState.STREAMING if column.next_stripe < self._stripe_count:
                blocked = self.next_stripe(column.number) is None
                column.waiting_since_us = now_us if blocked else None
            case ColumnState.STREAMING:
                column.waiting_since_us = None
            case _:
                column.waiting_since_us = now_us

    def _seal_complete(self, now_us: int, actions: list[WriterAction]) -> None:
        if self._manifest is None or self.done:
            return
        for column in self.columns:
            if column.state is ColumnState.STREAMING and column.next_stripe == self._stripe_count:
                column.state, column.waiting_since_us = ColumnState.SEALING, now_us
                column.seal_asked_us, column.slow_since_us = now_us, None
                actions.append(SealStream(column.number, column.stream))

    def _conclude(self, actions: list[WriterAction]) -> None:
        """Certify or fail, if this is the moment."""
        if self.done:
            return
        possible, floor = self.places_possible(), self.layout.code.floor
        if possible < floor:
            self._stop(AbandonReason.STOPPED, actions)
            failed = {target for column in self.columns for target, _ in column.failed}
            actions.append(too_few(self.payload, possible, floor, failed))
            return
        if self.may_certify():
            proofs = tuple(c.proof for c in self.columns if c.proof is not None)
            if proofs != self._certified:
                self._certified = proofs
                actions.append(CertifyPayload(proofs, tuple(self._slow_targets)))

    def _stop(self, reason: AbandonReason, actions: list[WriterAction]) -> None:
        for column in self.columns:
            if column.stream:
                assert column.place is not None
                actions.append(AbandonStream(column.number, column.stream, column.place, reason))
                column.stream = 0
        self._streams.clear()
        self.done = True

    def check(self) -> None:
        """Assert the invariants of the module's head."""
        live = 0
        targets: list[TargetId] = []
        for c in self.columns:
            state, proof = c.state, c.proof
            assert c.credit_bytes >= 0
            assert (state is ColumnState.SEALED) == (proof is not None)
            assert (c.place is None) == (
                state is ColumnState.WAITING or state is ColumnState.FAILED
            )
            assert proof is None or self.proof_is_valid(c, proof)
            assert self.done or bool(c.stream) == (state in MOVING)
            if c.stream:
                live += 1
                assert self._streams.get(c.stream) is c, "a live stream has one column"
            if c.place is not None:
                targets.append(c.place.target)
        assert len(self._streams) == live, "a stream's column is known"
        assert len(targets) == len(set(targets)), "no two columns on one target"
        assert not self._certified or len(self._certified) >= self.layout.code.floor
        assert self.done or self.places_possible() >= self.layout.code.floor
