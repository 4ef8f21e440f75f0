"""A drain worker of the world: the store's real code (plan, items, marker, what is left over), and
the queue's messages as `ckptd drain` says them.

    OpenStore -> tidy, TellStored -> LeaseDrain -> (pin) BeginParts -> TakePart ... -> EndDrain

Each stretch of work on the store is one step of the clock; a strike in it lets others go first, or
kills the process there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ckpt.base.errors import CkptError, Unavailable, error_from_wire
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.drains import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    LeaseDrain,
    OpenStore,
    PartTaken,
    RenewDrain,
    TakePart,
    TellStored,
    Turn,
    encode_parts,
    encode_stored,
)
from ckpt.format.messages.hello import Failed, Role
from ckpt.objects.leftovers import (
    Leftovers,
    delete_unfinished,
    expired_in,
    may_leave_over,
    tidy_committed,
)
from ckpt.objects.planning import WriteOptions
from ckpt.objects.source import Source
from ckpt.objects.stored_steps import is_committed, remains, stored_by
from ckpt.objects.writer import WriteJob, WriteLimits
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt.protocol.events import Send, Session
from ckptd.drain.worker import delete_stored
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CLUSTER
from tests.sim.drain_reader import TierReader
from tests.sim.drain_store import AskedAgain, Bucket, FakeSink, Killed
from tests.sim.network import Network, Node
from tests.sim.world import RUN

SLOTS = 2
POLL_US = 200_000
RENEW_US = 3 * US_PER_S
STOPPED_US = 100_000
QUIET_S = 5.0
OPTIONS = WriteOptions(compression="none")
LIMITS = WriteLimits(threads=SLOTS)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How often an operation of a store goes wrong."""

    fail: float = 0.0
    kill: float = 0.0
    yields: float = 0.0
    lost: float = 0.0
    """It has its effect, and no answer."""
    conflict: float = 0.0
    """The same, and the client asks again by itself: what it creates is there (409, 412)."""
    of: str = ""
    """What the answers are about that are lost: keys that end so."""


class DrainNode:
    """One process that serves one store, until it is killed."""

    def __init__(
        self,
        clock: Clockwork,
        network: Network,
        coordinator: Node,
        bucket: Bucket,
        policy: StorePolicy,
        name: str,
        open_reader: Callable[[DrainNode, CheckpointId], TierReader],
        open_source: Callable[[TierReader], Source],
        trouble: Callable[[], Trouble],
        others: Callable[[], None],
        run: RunName = RUN,
    ) -> None:
        self.name = name
        self._run = run
        self.up, self.stopped = False, False
        self.policy = policy
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._open_reader, self._open_source = open_reader, open_source
        self._trouble, self._others = trouble, others
        self._sink = FakeSink(bucket, self._strike)
        self._leftovers = Leftovers(self._sink, QUIET_S, lambda: clock.now_us / US_PER_S)
        self._bulk = b""
        self._session: Session | None = None
        self._reader: TierReader | None = None
        self._requests = 0
        #: Requests without an answer, repeated on every new session, and what to do with it.
        self._asked: dict[int, tuple[Message, bytes, Callable[[Message], None]]] = {}
        self._is_nested = False
        self._lease: CheckpointId | None = None
        self._job: WriteJob | None = None
        self._told = False
        self.lost: list[str] = []
        """Keys of the store's answers that this process never got."""

    def start(self) -> None:
        self.up = True
        self._dial()
        self._ask(self._opening(), lambda _: self._tell())
        self._beat()

    def crash(self) -> None:
        """SIGKILL."""
        if self.up:
            self.up, self._clock.changed = False, True
            self._network.died(self)
            self._let_go()

    def stop(self) -> None:
        """SIGSTOP."""
        self._stop(True)

    def go_on(self) -> None:
        """SIGCONT."""
        self._stop(False)

    def _stop(self, stopped: bool) -> None:
        self.stopped = stopped
        if self._reader is not None:
            self._reader.stopped = stopped

    @property
    def session(self) -> Session | None:
        """Its connection to the coordinator."""
        return self._session

    @property
    def under_way(self) -> TierReader | None:
        """What it reads while it drains, from the first part to the marker."""
        return self._reader if self._job is not None else None

    # ----------------------------------------------------------------------- what strikes

    def _strike(self, key: str, is_done: bool) -> None:
        if not self.up:
            raise Killed
        if is_done:
            self._lose_answer(key)
        trouble, roll = self._trouble(), self._clock.rng.random()
        if roll < trouble.kill:
            self.crash()
            raise Killed
        if roll < trouble.kill + trouble.fail:
            raise Unavailable("the store does not answer")
        if roll < trouble.kill + trouble.fail + trouble.yields and not self._is_nested:
            self._is_nested = True
            self._others()
            self._is_nested = False
            if not self.up:
                raise Killed

    def _lose_answer(self, key: str) -> None:
        trouble = self._trouble()
        if not (trouble.lost or trouble.conflict) or not key.endswith(trouble.of):
            return
        roll = self._clock.rng.random()
        if roll < trouble.lost + trouble.conflict:
            self.lost.append(key)
            raise Unavailable("no answer") if roll < trouble.lost else AskedAgain("it is there")

    def _work(self, step: Callable[[], None]) -> None:
        """A stretch of work, a moment from now; what fails ends the lease."""
        self._clock.after(self._clock.between(500, 20_000), self._do, step, self._reader)

    def _do(self, step: Callable[[], None], reader: TierReader | None) -> None:
        if not self.up or reader is not self._reader:
            return  # Of a lease that has ended.
        if self.stopped:
            self._clock.after(STOPPED_US, self._do, step, reader)
            return
        try:
            step()
        except Killed:
            return
        except CkptError as error:
            self._failed(error)
        self._clock.changed = True

    def _failed(self, error: CkptError) -> None:
        lease, url = self._lease, self.policy.url
        if lease is None:
            self._again()
            return
        self._let_go()
        end = EndDrain(url, self.name, lease, error.message)
        self._ask(end, lambda _: self._again())

    def _let_go(self) -> None:
        self._lease = self._job = None
        pin, self._reader = self._reader, None
        if pin is not None:
            pin.close()

    # ----------------------------------------------------------------------- the queue

    def _opening(self) -> OpenStore:
        policy = self.policy
        return OpenStore(
            policy.url, self.name, policy.every, policy.keep, policy.runs, self._sink.conditional
        )

    def _tell(self) -> None:
        def look() -> None:
            tidy_committed(self._sink, self._run)
            self._tell_stored(self._ask_lease)

        self._work(look)

    def _tell_stored(self, then: Callable[[], None]) -> None:
        """What is there and stays; then what is surplus goes (the store's own retention)."""

        def asked(answer: Message) -> None:
            assert isinstance(answer, DrainNoted)
            self._work(lambda: self._look(answer.version, then))

        self._ask(RenewDrain(self.policy.url, self.name, None), asked)

    def _look(self, version: int, then: Callable[[], None]) -> None:
        doomed = expired_in(self._sink, self.policy, self._run, CLUSTER)
        mine = stored_by(self._sink, self._run, CLUSTER)
        stays = encode_stored(one for one in mine if one not in doomed)

        def expire() -> None:
            for step, generation in (*doomed, *remains(self._sink, self._run)):
                delete_stored(self._sink, self._run, step, generation)
            then()

        told = TellStored(self.policy.url, self.name, self._run, version)
        self._ask(told, lambda _: self._work(expire), stays)

    def _again(self) -> None:
        """What failed is tried again; what the store holds may be another thing by now."""
        self._clock.after(POLL_US, lambda: self.up and self._tell())

    def _ask_lease(self) -> None:
        if not self.up:
            return
        self._ask(LeaseDrain(self.policy.url, self.name), self._leased)

    def _leased(self, answer: Message) -> None:
        assert isinstance(answer, DrainLeased)
        if self._lease is not None:
            return  # Several things failed at once, and each began anew.
        if answer.checkpoint is None:
            self._clock.after(POLL_US, self._abandon)
            return
        self._lease = answer.checkpoint
        self._reader = self._open_reader(self, answer.checkpoint)
        self._reader.start()

    def _abandon(self) -> None:
        """Before the next lease: what the tier deleted half drained goes, when it is time."""
        if not self.up or not self._leftovers.is_due(self._run):
            self._ask_lease()
            return
        # The answer is of the moment before the store is looked at.
        self._ask(Ask("steps", self._run), self._clear)

    def _clear(self, answer: Message) -> None:
        views = msgspec.json.decode(self._bulk, type=list[StepView])
        tier = {(Step(view.step), Generation.parse(view.generation)) for view in views}

        def clear() -> None:
            for step, generation in self._leftovers.found(self._run, CLUSTER, tier):
                delete_unfinished(self._sink, self._run, step, generation)
            self._ask_lease()

        self._work(clear)

    def pinned(self, id: CheckpointId) -> None:
        """It is held against deletion."""
        reader = self._reader
        assert reader is not None

        def begin() -> None:
            job = WriteJob.begin(self._sink, self._open_source(reader), OPTIONS, LIMITS)
            done = job.receipts() if job is not None else {}
            if self._reader is not reader:
                return  # Others went on meanwhile, and the lease ended.
            if job is None:
                self._end(id)  # It is committed there.
                return
            self._job = job
            message = BeginParts(self.policy.url, self.name, id, len(job.plan.items))
            self._ask(message, lambda _: self._take_all(id), encode_parts(done))

        self._work(begin)

    def not_pinned(self, error: CkptError) -> None:
        if self._lease is not None:
            self._failed(error)

    def _take_all(self, id: CheckpointId) -> None:
        self._finishing = False
        for slot in range(SLOTS):
            self._take(id, slot, None)

    def _take(self, id: CheckpointId, slot: int, done: int | None) -> None:
        if self.up and self._lease == id:
            message = TakePart(self.policy.url, self.name, id, slot, done)
            self._ask(message, lambda answer: self._taken(id, slot, answer))

    def _taken(self, id: CheckpointId, slot: int, answer: Message) -> None:
        assert isinstance(answer, PartTaken)
        job, reader = self._job, self._reader
        if self._lease != id or job is None or reader is None:
            return

        def write() -> None:
            job.write_item(answer.part)
            self._take(id, slot, answer.part)

        def read() -> None:
            arrays = {array for array, _, _ in job.plan.items[answer.part]}
            reader.fetch(arrays, lambda: self._work(write))

        def finish() -> None:
            job.finish()
            self._end(id)

        match answer.turn:
            case Turn.PART:
                self._work(read)
            case Turn.WAIT:
                self._clock.after(POLL_US, self._take, id, slot, None)
            case Turn.COMMIT if not self._finishing:
                self._finishing = True  # Once, when all its slots have come to the end.
                self._work(finish)

    def _end(self, id: CheckpointId) -> None:
        self._let_go()
        end = EndDrain(self.policy.url, self.name, id)

        def expire() -> None:
            if self._has_surplus(id.step):
                self._tell_stored(self._ask_lease)
            else:
                self._ask_lease()

        self._ask(end, lambda _: self._work(expire))

    def _has_surplus(self, step: Step) -> bool:
        """Now that this one is there."""
        where = self._sink, self.policy, self._run
        return may_leave_over(*where, step) and bool(expired_in(*where, CLUSTER))

    def _beat(self) -> None:
        if not self.up:
            return
        if not self.stopped:
            lease = self._lease
            renew = RenewDrain(self.policy.url, self.name, lease, looks=True)
            self._ask(renew, self._renewed, failed=lambda error: self._lost(lease, error))
        self._clock.after(RENEW_US, self._beat)

    def _renewed(self, answer: Message) -> None:
        """What is about to be evicted is looked for by a thread of its own, at any moment."""
        assert isinstance(answer, DrainNoted)
        if answer.look:
            delay_us = self._clock.between(500, 4 * US_PER_S)
            self._clock.after(delay_us, self._tell_looked, answer.look)

    def _tell_looked(self, asked: tuple[CheckpointId, ...]) -> None:
        if not self.up or self.stopped:
            return
        try:
            there = {id for id in asked if is_committed(self._sink, id.run, id.step, id.generation)}
        except (Killed, CkptError):
            return  # It is asked for again.
        stands, gone = tuple(sorted(there)), tuple(sorted({*asked} - there))
        told = RenewDrain(self.policy.url, self.name, None, looks=True, stands=stands, gone=gone)
        self._ask(told, lambda _: None, failed=lambda _: None)

    def _lost(self, lease: CheckpointId | None, error: CkptError) -> None:
        """The lease is somebody else's: stop at once."""
        if error.code == "fenced" and lease is not None and lease == self._lease:
            self._let_go()
            self._again()

    # ----------------------------------------------------------------------- the session

    def _dial(self) -> None:
        if not self.up or self._session is not None:
            return
        self._network.dial(
            self, self._coordinator, Role.DRAIN, Role.COORDINATOR,
            failed=lambda: self._clock.after(POLL_US, self._dial), opened=self._opened,
        )  # fmt: skip

    def _opened(self, session: Session) -> None:
        self._session = session

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        for request, (message, bulk, _) in list(self._asked.items()):
            self._network.send(Send(session, request, message, bulk))

    def session_closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None
            self._clock.after(POLL_US, self._dial)

    def _ask(
        self,
        message: Message,
        then: Callable[[Message], None],
        bulk: bytes = b"",
        failed: Callable[[CkptError], None] | None = None,
    ) -> None:
        self._requests += 1

        def heard(answer: Message) -> None:
            if isinstance(answer, Failed):
                self._refused(answer, failed)
            else:
                then(answer)

        self._asked[self._requests] = message, bulk, heard
        if self._session is not None:
            self._network.send(Send(self._session, self._requests, message, bulk))

    def _refused(self, answer: Failed, failed: Callable[[CkptError], None] | None) -> None:
        error = error_from_wire(answer.code, answer.message)
        if failed is not None:
            failed(error)
        elif answer.code == "not_found":  # The coordinator began anew.
            self._let_go()
            self._ask(self._opening(), lambda _: self._tell())
        else:
            self._failed(error)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if self.stopped:
            self._clock.after(STOPPED_US, self.received, session, request, message, bulk)
            return
        asked = self._asked.pop(request, None)
        if asked is not None and self.up:
            self._bulk = bulk
            asked[2](message)
            self._clock.changed = True
