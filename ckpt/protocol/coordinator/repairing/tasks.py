"""Who makes which payload's columns again, under leases.

    due --space reserved on other targets--> leased --ended, failed, silent for LEASE_US,
                                               |      session gone, nothing lacks any more
                                               v
                   what is not used goes back, then each place is asked what is there
                                               v
                     right copies are adopted; again after a rest what lacks still

A worker that has made a column has made a copy that nobody has named. Its word counts nothing: its
target is asked on its own session, after every command that it was sent, and what it has is adopted
as any other (keeping/adopting.py). So who was missing may come back meanwhile, and a worker may die
at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ckpt.base.errors import Fenced
from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.balancing import BalanceTargets
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    LostColumn,
    RenewRepair,
    RepairLeased,
    RepairNoted,
    RepairPace,
    SetRepair,
)
from ckpt.format.messages.saving import Place
from ckpt.format.messages.targets import Attest, Attested
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.cluster.rot import note_mended
from ckpt.protocol.coordinator.keeping.evicting import RoomWanted
from ckpt.protocol.coordinator.repairing.balancing import Balancer
from ckpt.protocol.coordinator.repairing.clearing import clearing_of
from ckpt.protocol.coordinator.repairing.context import RepairContext
from ckpt.protocol.coordinator.repairing.crowding import Crowding
from ckpt.protocol.coordinator.repairing.doubting import Doubter
from ckpt.protocol.coordinator.repairing.expiring import leave_expiring
from ckpt.protocol.coordinator.repairing.lacking import Lacking, LackingPayload
from ckpt.protocol.coordinator.repairing.measuring import RebuildMeter
from ckpt.protocol.coordinator.repairing.mending import Mender
from ckpt.protocol.coordinator.repairing.pacing import (
    TaskCounts,
    expected_bytes_per_s,
    most_beside_others,
    paced,
)
from ckpt.protocol.coordinator.repairing.places import RepairPlaces
from ckpt.protocol.coordinator.repairing.rate import RepairRate
from ckpt.protocol.coordinator.repairing.respreading import Respreader
from ckpt.protocol.coordinator.repairing.ruling import RepairRuling
from ckpt.protocol.coordinator.repairing.task import PATIENCE_US, RepairCounts, RepairTask
from ckpt.protocol.events import Buffer, Session

RepairRequest = LeaseRepair | RenewRepair | EndRepair | SetRepair | BalanceTargets
LEASE_US: Final = 10 * US_PER_S
"""A worker that is silent for this long loses the payload that it has in hand."""
LOOK_US: Final = 5 * US_PER_S
LOOK_AGAIN_US: Final = US_PER_S
"""Pause between two looks: with 100,000 columns that lack, one takes a second."""
REST_US: Final = 10 * US_PER_S
"""How long a payload rests that could not be made again."""
NO_ROOM_REST_US: Final = 60 * US_PER_S
"""And one that found no place; after many of these, those that come next get their turn."""
TRIES_MAX: Final = 32
"""Payloads for which one question looks for places."""
NOTHING: Final = RepairLeased()


def nobody(_counted: int) -> None:
    """Waits for the end of a task whose worker is gone."""


class Repairs:
    """I hand out what lacks columns, and count what comes of it."""

    def __init__(self, context: RepairContext) -> None:
        self._desk = context.desk
        self._members = context.members
        self._checkpoints = context.checkpoints
        self._adopter = context.adopter
        self._reserver = context.reserver
        self._traffic = context.traffic
        self._retaining = context.retaining
        self.after_us = after_us = context.policy.rebuild_after_us
        """For so long a target that is away is waited for; None: nothing is made again."""
        self._lacking = Lacking(
            context.members, context.checkpoints, context.drains.holding, after_us,
            lambda: context.desk.no_moves is not None,
        )  # fmt: skip
        self._clearing = clearing_of(context)
        self._places = RepairPlaces(
            context.desk, context.members, context.checkpoints, context.reserver, self._lacking,
            self._clearing,
        )  # fmt: skip
        self.mender = Mender(
            context.desk, context.members, context.checkpoints, mends=after_us is not None
        )
        """Documents that rot."""
        self.documents = Respreader(
            context.desk, context.members, context.checkpoints, after_us,
            context.policy.report_level, self._clearing, self.mender,
        )  # fmt: skip
        """Copies of indexes and commit records, which need no worker."""
        self._doubter = Doubter(
            context.desk, context.members, context.checkpoints, context.drains.holding
        )
        self.ruling = RepairRuling(
            context.desk, context.policy.repair, context.said, context.wall_s
        )
        self.rate = RepairRate()
        self._meter = RebuildMeter(context.desk, self.ruling, context.wall_s)
        self._crowding = Crowding(
            context.desk, context.members, context.checkpoints, context.policy.spread,
            mends=after_us is not None,
        )  # fmt: skip
        self.balancer = Balancer(context, self.rate, self.ruling)
        """What is to be moved though nothing is lost."""
        self.tasks: dict[PayloadId, RepairTask] = {}
        """What is leased, or about to be."""
        self._shares = TaskCounts()
        self.counts = RepairCounts()
        self.heard_us: int | None = None
        """When a worker was heard last."""
        #: What was due when that was looked at, the first one last, and when that was, after which
        #: news.
        self._queue: list[LackingPayload] = []
        #: All of it, also what was taken from the queue since.
        self._due: dict[PayloadId, LackingPayload] = {}
        self._looked = (-LOOK_US, -1)
        self.skipped: dict[CheckpointId, str] = {}
        """What was due at the last look and is left alone, and why."""
        #: When what could not be done is tried again.
        self._rests: dict[PayloadId, int] = {}
        #: The version of the map when rests were looked at last.
        self._rested = -1

    # ----------------------------------------------------------------------- what workers say

    def handle(self, session: Session, request: int, message: RepairRequest) -> None:
        """Raises Fenced for a lease that is gone, Refused for what is no limit."""
        if not isinstance(message, SetRepair | BalanceTargets):
            self.heard_us = self._desk.now_us
        match message:
            case SetRepair():
                self.ruling.change(session, request, message, self._end_if_paused)
            case BalanceTargets():
                self.balancer.handle(session, request, message)
            case LeaseRepair() if self.ruling.is_paused:
                self._desk.send(session, request, NOTHING)
            case LeaseRepair():
                self._lease(session, request, message.worker)
            case RenewRepair():
                task = self._task_of(message)
                self._note_progress(task, message.read_bytes)
                self._desk.send(session, request, RepairNoted(pace=self._pace(task)))
            case EndRepair():
                noted = partial(self._noted, session, request)
                self._end(self._task_of(message), message.error, noted)

    def _note_progress(self, task: RepairTask, read_bytes: int) -> None:
        task.heard_us = self._desk.now_us
        read, task.read_bytes = max(0, read_bytes - task.read_bytes), read_bytes
        made = read * len(task.lost) / task.reads
        self.rate.made(made)
        if not task.alone:
            self._meter.made(made)

    def _end_if_paused(self) -> None:
        """What is sealed counts; the rest waits."""
        for task in self.in_hand() if self.ruling.is_paused else ():
            self._end(task, "", nobody)

    def bytes_left(self) -> float:
        """Bytes of columns that are due and not made yet."""
        in_hand = sum(task.bytes_left for task in self.in_hand())
        return in_hand + sum(map(self._bytes_of, self.waiting()))

    def _bytes_of(self, one: LackingPayload) -> int:
        checkpoint = self._checkpoints.get(one.payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return 0
        return len(one.columns) * checkpoint.placement[one.payload.rank].layout.column_bytes

    def in_hand(self) -> list[RepairTask]:
        """What workers make now."""
        return [task for task in self.tasks.values() if task.lost and not task.ending]

    def session_closed(self, session: Session) -> None:
        """Note that a worker's session ended: it is gone, or comes back and asks again."""
        for task in list(self.tasks.values()):
            if task.session == session and not task.ending:
                self._end(task, f"worker {task.worker} has left", nobody)

    def tick(self) -> None:
        """Take back what silent workers hold and nobody needs any more; copy documents."""
        self.documents.tick()
        self.mender.tick()
        self._members.repair_bytes = most_beside_others(self.ruling.limits)
        self._doubter.tick()
        self._crowding.tick()
        self.balancer.tick()
        now = self._desk.now_us
        in_hand = self.in_hand()
        self.rate.passed(now, is_working=bool(in_hand))
        self.rate.allow(in_hand, self.ruling.limits)
        self._meter.passed(is_working=not all(task.alone for task in in_hand))
        self._cut_rests()
        for task in [task for task in self.tasks.values() if not task.ending]:
            if now - task.heard_us >= LEASE_US:
                self._end(task, f"worker {task.worker} is silent", nobody)
            elif not self._still_lacks(task):
                self._end(task, "", nobody)
            elif (gone := self._places.gone(task.places.values())) is not None:
                self._end(task, f"target {gone} has left", nobody)

    def _cut_rests(self) -> None:
        """Where the map is another one, there may be a place now. What has rested is due."""
        now, seen, self._rested = self._desk.now_us, self._rested, self._members.version
        last_us = now + REST_US if self._rested != seen else now + NO_ROOM_REST_US
        rests = {id: min(due_us, last_us) for id, due_us in self._rests.items()}
        self._rests = {id: due_us for id, due_us in rests.items() if due_us > now}
        rested = [id for id in rests if id not in self._rests]
        # After all others, until the next look.
        self._queue[:0] = [self._due[id] for id in rested if id in self._due]

    def _noted(self, session: Session, request: int, counted: int) -> None:
        self._desk.send(session, request, RepairNoted(counted))

    # ----------------------------------------------------------------------- leasing

    def _lease(self, session: Session, request: int, worker: str) -> None:
        for task in self.tasks.values():
            if (task.worker, task.session) == (worker, session) and task.lost and not task.ending:
                task.heard_us = self._desk.now_us
                self._tell(task, request)
                return
        if not self._next(session, request, worker, TRIES_MAX):
            self._desk.send(session, request, NOTHING)

    def _next(self, session: Session, request: int, worker: str, tries: int) -> bool:
        """Whether something was found that the worker hears of, now or when space is reserved.
        Nothing is begun that could not be named: a full catalog takes no moves.
        """
        self._look()
        while self._queue and tries and self._desk.full is None:
            payload = self._queue.pop().payload
            checkpoint = self._checkpoints.get(payload.checkpoint)
            if checkpoint is not None and not self._is_in_hand(payload):
                columns = self._lacking.due(checkpoint, payload.rank, self._desk.now_us)
                tries -= 1
                if columns:
                    now = self._desk.now_us
                    allotment = self._places.allotment(checkpoint, payload)
                    task = RepairTask(
                        payload, worker, session, now, now, tuple(columns), allotment,
                        frozenset(allotment.intended.values()),
                    )  # fmt: skip
                    if self._reserve(task, request, tries):
                        return True
        return False

    def waiting(self) -> list[LackingPayload]:
        """What is due and in nobody's hands, the first one first, as of the last look; also what
        rests, since it found no place or could not be made.
        """
        self._look()
        open_ones = {one.payload for one in self._queue} | self._rests.keys()
        return [one for id, one in self._due.items() if id in open_ones and id not in self.tasks]

    @property
    def is_settled(self) -> bool:
        """Whether `waiting` is as of what targets have and have reported by now."""
        return self.after_us is None or self._looked[1] == self._lacking.news

    def _look(self) -> None:
        """The queue is made again when the map has changed, and now and then."""
        now, seen = self._desk.now_us, self._looked
        age_us = now - seen[0]
        if age_us >= LOOK_US or (age_us >= LOOK_AGAIN_US and seen[1] != self._lacking.news):
            self._looked = now, self._lacking.news
            lacking = self._lacking.all(now)
            queue, self.skipped = leave_expiring(
                lacking, self._bytes_of, self.rate.bytes_per_s, self._retaining.leaves_within
            )
            for id in self.skipped:
                self._checkpoints.moving.forget(id)
            self._due, self._queue = {one.payload: one for one in queue}, queue[::-1]
            problems = self.counts.problems
            self.counts.problems = {id: why for id, why in problems.items() if id in self._due}

    def _is_in_hand(self, payload: PayloadId) -> bool:
        """Or was lately, or what was made is about to be named."""
        known = payload in self.tasks or payload in self._rests
        return known or self._adopter.is_moving(payload)

    def _reserve(self, task: RepairTask, request: int, tries: int) -> bool:
        """A place for each column; what finds none beside those that leave may take the domain of
        one of them, as they change places; what finds none then is left for later. False when it is
        known at once that there is none: then nobody hears of it.
        """
        self.tasks[task.payload] = task
        allotment, left = task.allotment, list(task.columns)
        at_once, found = True, True
        leaving_stay = self._places.hold_leaving(allotment, task.payload)

        def next_column() -> None:
            nonlocal found, leaving_stay
            if not left and leaving_stay:
                leaving_stay = False
                left.extend(j for j in task.columns if j not in allotment.columns)
                for j in left:
                    allotment.intended.pop(j, None)
            if task.ending:
                self._reserver.release(allotment)
            elif left:
                column = left.pop(0)
                self._places.find(allotment, task.payload, column, partial(placed, column))
            elif allotment.columns:
                task.lost = tuple(sorted(allotment.columns))
                task.places = dict(allotment.columns)
                task.alone = self._is_read_alone(task)
                task.load = task.uses
                self._shares.begin(task.load)
                self._tell(task, request)
                # It may have been said meanwhile: the worker hears it when it renews.
                self._end_if_paused()
            else:
                del self.tasks[task.payload]
                self._wait_for_room(task)
                found = not at_once
                if found and not self._next(task.session, request, task.worker, tries):
                    self._desk.send(task.session, request, NOTHING)

        def placed(column: ColumnNumber, place: Place | None) -> None:
            if place is not None:
                allotment.columns[column] = place
            next_column()

        next_column()
        at_once = False
        return found

    def _wait_for_room(self, task: RepairTask) -> None:
        """None of its columns found a place."""
        allotment = task.allotment
        full = self._places.may_take(allotment, task.payload, task.columns)
        k = allotment.layout.code.k
        found = self._clearing.clear(
            task.payload.checkpoint, allotment.file_bytes, full, lambda: self._room_wanted(k)
        )
        self._leave_alone(task.payload, found.reason, NO_ROOM_REST_US)
        if found.comes and task.payload in self._rests:
            self._rests[task.payload] = self._desk.now_us + REST_US

    def _room_wanted(self, k: int) -> RoomWanted:
        """Of what was due at the last look, for what nobody has in hand."""
        waits = [
            one
            for id, one in self._due.items()
            if id not in self.tasks and not self._adopter.is_moving(id)
        ]
        rate = expected_bytes_per_s(
            self.ruling.limits, self.rate.bytes_per_s, self._members.live_count, k
        )
        return self._clearing.wanted(waits, rate)

    def _tell(self, task: RepairTask, request: int) -> None:
        lost = tuple(LostColumn(column, task.places[column], task.alone) for column in task.lost)
        leased = RepairLeased(task.payload, lost, self._pace(task))
        self._desk.send(task.session, request, leased)

    def _pace(self, task: RepairTask) -> RepairPace:
        """From now on."""
        task.pace = paced(
            task.load, self._shares.most(task.load), self.ruling.limits,
            is_busy=self._traffic.is_busy(self._desk.now_us), is_urgent=self._is_urgent(task),
        )  # fmt: skip
        return task.pace

    def _is_read_alone(self, task: RepairTask) -> bool:
        """A data column whose holder has it, and is to be emptied. Parity is no part of what is
        read."""
        (first, *others), k = task.lost, task.allotment.layout.code.k
        return not others and first < k and first in self._checkpoints.moving_now(task.payload)

    def _is_urgent(self, task: RepairTask) -> bool:
        """Its payload can lose no more."""
        checkpoint = self._checkpoints.get(task.payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return False
        now = self._checkpoints.columns_now(checkpoint, task.payload.rank)
        return len(now) == checkpoint.code.k

    # ----------------------------------------------------------------------- ending

    def _task_of(self, message: RenewRepair | EndRepair) -> RepairTask:
        task = self.tasks.get(message.payload)
        if task is None or task.worker != message.worker or task.ending:
            raise Fenced(f"{message.payload} is not leased to {message.worker}")
        return task

    def _end(self, task: RepairTask, why: str, then: Callable[[int], None]) -> None:
        """What is not used of its places goes back; then they are asked what there is: nothing is
        sealed there any more.
        """
        task.ending = True
        self._shares.end(task.load)
        # What has become a column is nothing to give back, and its target knows that.
        self._reserver.release(task.allotment)
        standing: list[ColumnProof] = []
        open_questions = 1

        def answered(message: Message, _bulk: Buffer) -> None:
            nonlocal open_questions
            open_questions -= 1
            if isinstance(message, Attested):
                sound = (one for one in message.proofs if one.column not in message.damaged)
                standing.extend(proof for proof in sound if self._is_of(task, proof))
            if not open_questions:
                then(self._close(task, standing, why))

        for column, place in sorted(task.places.items()):
            target = self._members.targets[place.target]
            if self._members.accepts(place.target, place.boot) and target.session is not None:
                open_questions += 1
                question = Attest(self._members.term, (ColumnId(task.payload, column),))
                self._desk.ask(target.session, question, answered, patience_us=PATIENCE_US)
        answered(Attested(()), b"")

    def _is_of(self, task: RepairTask, proof: ColumnProof) -> bool:
        place = task.places.get(proof.column.column)
        if proof.column.payload != task.payload or place is None:
            return False
        return (place.target, place.boot) == (proof.target, proof.boot)

    def _close(self, task: RepairTask, standing: list[ColumnProof], why: str) -> int:
        """How many of its columns are there. What its target was asked to drop after the question
        goes, whatever the answer says.
        """
        del self.tasks[task.payload]
        found = []
        for proof in standing:
            target = self._members.targets[proof.target]
            is_here = self._members.accepts(proof.target, proof.boot)
            if is_here and proof.column not in target.dropping:
                target.proved.add(proof)
                note_mended(target, proof.column)
                found.append((target, proof.column))
        self.counts.columns += len(found)
        self.counts.bytes += len(found) * task.allotment.file_bytes
        # All at once: one may fit beside another alone.
        self._adopter.found(task.payload.checkpoint, found)
        self.counts.problems.pop(task.payload, None)
        made = {column.column for _, column in found}
        is_meant = self.ruling.is_paused
        if not self._still_lacks(task):
            return len(found)
        if made < set(task.columns) and not is_meant:
            if made.issuperset(task.lost):
                why = self._clearing.no_place(task.payload.checkpoint)
            self._leave_alone(task.payload, why or "not all of them were there at the end")
        elif not self._adopter.is_moving(task.payload):
            # It is due again, and the queue does not have it.
            self._looked = self._looked[0], -1
        return len(found)

    def _leave_alone(self, payload: PayloadId, why: str, rest_us: int = REST_US) -> None:
        """It is tried again after a rest, a longer one where this is nothing new; a move when it is
        planned again, so that what is lost of its payload meanwhile need not wait.
        """
        self.counts.failed += 1
        is_new = self.counts.problems.get(payload) != why
        if not self._checkpoints.moving.forget_payload(payload):
            rest_us = rest_us if is_new else NO_ROOM_REST_US
            self._rests[payload] = self._desk.now_us + rest_us
        if is_new:
            self.counts.problems[payload] = why
            text = "columns could not be made again"
            self._desk.report("warning", text, payload=str(payload), why=why)

    def _still_lacks(self, task: RepairTask) -> bool:
        checkpoint = self._checkpoints.get(task.payload.checkpoint)
        if checkpoint is None or not checkpoint.is_needed:
            return False
        now = self._checkpoints.columns_now(checkpoint, task.payload.rank)
        outgoing = self._checkpoints.outgoing_now(checkpoint, task.payload.rank)
        return any(column not in now or column in outgoing for column in task.columns)
