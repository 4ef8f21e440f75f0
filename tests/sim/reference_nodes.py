"""Ranks half of whose state seldom changes and is referred to, and readers that find it again.

payload   | what changes | what is frozen |     the first time, and when the frozen half thaws
          | what changes |                      and a piece in the payload of its home
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import ClassVar, cast

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    Home,
    PayloadId,
    Rank,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.documents.record import decode_record
from ckpt.format.index.pages import IndexPayload
from ckpt.format.index.reader import decode_index
from ckpt.format.messages import Message
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.saving import CommitInfo, ReplicaPolicy
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry, encode_table
from ckpt.protocol.events import Session
from ckpt.protocol.stager import events as se
from ckpt.protocol.target.core import column_name
from tests.sim.oracles import Oracles, Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import ReaderNode
from tests.sim.world import RUN, World

THAW_CHANCE = 0.2


@lru_cache(maxsize=256)
def state(job: Job, step: int, rank: int, seed: int) -> tuple[bytes, bytes]:
    """(what changes with every step, what is frozen since it thawed last)."""
    half = job.payload_bytes // 2
    who = f"{seed}/{job.launch_name}/{rank}"
    thawed = [0, *(s for s in range(step + 1) if Random(f"{who}/{s}").random() < THAW_CHANCE / 10)]
    changing = Random(f"{who}/step {step}").randbytes(half)
    return changing, Random(f"{who}/frozen {thawed[-1]}").randbytes(half)


def table_of(job: Job, rank: int, frozen: Piece) -> bytes:
    """Two private arrays; `frozen` says where the second one lies."""
    half = job.payload_bytes // 2
    entries = tuple(
        TensorEntry(name, Meaning.OWN, "|u1", (half,), (0,), (half,), (piece,))
        for name, piece in (("changes", Piece(0, 0, half)), ("frozen", frozen))
    )
    return encode_table(RankTable(Rank(rank), job.world_size, entries))


class ReferenceOracles(Oracles):
    """What is promised of a checkpoint holds for what it refers to, too."""

    def _announce(self, info: CommitInfo) -> None:
        first = info.checkpoint not in self.announced
        super()._announce(info)
        if not first or info.checkpoint in self.deleted:
            return
        for home in info.homes:
            id = home.id(info.checkpoint.run)
            for rank, columns in self.placement_of(id).items():
                payload = PayloadId(id, rank)
                held = sum(
                    self._lies_on(t, ColumnId(payload, ColumnNumber(j)))
                    for j, t in enumerate(columns)
                    if t is not None
                )
                unknown = sum(self.is_unknown_loss(t) for t in columns if t is not None)
                spare = held + unknown - Code.parse(info.code).k
                if spare < info.targets_survivable:
                    raise Violation(f"P1: {info.checkpoint} promises more than its home {payload}")

    def _lies_on(self, target: TargetId, column: ColumnId) -> bool:
        """Harm at rest is known to nobody before it is read: the file counts while it is there."""
        if self.is_lost(target):
            return False
        return self.disk_of(target).durable_ends(f"columns/{column_name(column)}") is not None


class ReferringRank(RankNode):
    """My stager compares what I stage with what it committed last, as a real one does."""

    world: ReferenceWorld
    #: The home of the frozen half, and the step at which it was staged.
    _base: tuple[Home, int] | None = None
    #: Of saves that refer.
    _found: dict[int, Home]

    def _content(self, step: int) -> bytes:
        return b"".join(state(self.job, step, self.rank, self._seed))

    def _hand_over(self, number: int, payload_bytes: int) -> None:
        now_us, comparing = self._clock.now_us, self._base is not None
        self._handle(
            se.PayloadHandedOver(
                now_us, number, payload_bytes, 0, 0, ReplicaPolicy.ABORT, 100, 0, comparing
            )
        )
        half = payload_bytes // 2
        whole = table_of(self.job, self.rank, Piece(0, half, half))
        self._clock.after(self._clock.between(50, 3000), self._tell_table, number, whole)
        if comparing:
            self._clock.after(self._clock.between(50, 3000), self._compared, number, half)

    def _compared(self, number: int, half: int) -> None:
        if not self.up:
            return
        now_us, step = self._clock.now_us, self._saves[number]
        assert self._base is not None
        home, then = self._base
        if self._frozen(then) != self._frozen(step):
            self._handle(se.ReferencesFound(now_us, number))
            return
        table = table_of(self.job, self.rank, Piece(0, half, half).at(home.generation))
        self._handle(se.ReferencesFound(now_us, number, (home,), half, table))

    def _frozen(self, step: int) -> bytes:
        return state(self.job, step, self.rank, self._seed)[1]

    def _start(self, action: se.StartPayload) -> None:
        if action.refers:
            self.world.referring.add(action.plan.payload)
        super()._start(action)

    def _tell(self, number: int, outcome: se.Outcome) -> None:
        if isinstance(outcome, se.SaveCommitted):
            id = outcome.info.checkpoint
            if PayloadId(id, Rank(self.rank)) not in self.world.referring:
                self._base = Home.of(id), self._saves[number]
        super()._tell(number, outcome)


@dataclass(slots=True)
class _Part:
    """A generation of which something is read: what was asked for, or a home of it."""

    record: bytes
    ranks: set[Rank]


class FollowingReader(ReaderNode):
    """I read a step, follow its references, and compare the whole state of every rank."""

    _parts: list[_Part]
    _info: CommitInfo
    _index_document: bytes
    _pieces: dict[PayloadId, bytes]

    def start(self) -> None:
        self._parts, self._pieces, self._index_document = [], {}, b""
        super().start()

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if isinstance(message, Resolved) and self._record is None:
            self._info = message.info
            self._parts = [_Part(record, set()) for record in message.homes]
        super().received(session, request, message, bulk)

    def _wanted(self, payloads: tuple[IndexPayload, ...]) -> tuple[IndexPayload, ...]:
        assert self._record is not None
        if self._record.info.checkpoint == self._info.checkpoint:
            return payloads
        return tuple(payload for payload in payloads if payload.rank in self._ranks_of_home())

    def _ranks_of_home(self) -> set[Rank]:
        """Whose bytes lie in the home that is read now."""
        assert self._record is not None
        home = self._record.info.checkpoint.generation
        index = decode_index(self._index_document)
        locations = (place for t in index.tensors for box in t.boxes for place in box.locations)
        return {place.rank for place in locations if place.generation == home}

    def _conclude(self) -> None:
        if not self._readings or not all(r.machine.done for r in self._readings.values()):
            return
        self._index_document = self._index_document or bytes(self._index)
        self._pieces.update({id: bytes(r.memory) for id, r in self._readings.items()})
        if not self._parts:
            self._compare()
            self._end("read")
            return
        self._readings.clear()
        self._asked.clear()
        self._resolved_home(self._parts.pop(0).record)

    def _resolved_home(self, record: bytes) -> None:
        self._record = decode_record(record)
        self._find_index()

    def _compare(self) -> None:
        """Every rank's state is what it staged, wherever it lies."""
        id = self._info.checkpoint
        for tensor in decode_index(self._index_document).tensors:
            for box in tensor.boxes:
                (place,) = box.locations
                home = id if place.generation is None else self._home_of(place.generation)
                payload = self._pieces.get(PayloadId(home, place.rank))
                if payload is None:
                    raise Violation(f"P1: {id} refers to {home}, of which nobody tells")
                found = payload[place.payload_offset : place.payload_offset + place.length]
                if found != self.world.state_of(PayloadId(id, box.rank))[tensor.name]:
                    raise Violation(f"P3: {tensor.name} of rank {box.rank} of {id} is another's")

    def _home_of(self, generation: Generation) -> CheckpointId:
        (found,) = [h for h in self._info.homes if h.generation == generation]
        return found.id(self._info.checkpoint.run)

    world: ReferenceWorld


@dataclass
class ReferenceWorld(World):
    """The world with such ranks and readers."""

    oracles_type: ClassVar[type[Oracles]] = ReferenceOracles

    referring: set[PayloadId] = field(default_factory=set)
    """Payloads without their frozen half."""

    def _rank(self, job: Job, rank: int, starts: int = 0) -> RankNode:
        node = ReferringRank(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], job, rank, self.seed, starts,
        )  # fmt: skip
        node.world = self
        return node

    def _reader(self, number: int) -> ReaderNode:
        node = FollowingReader(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], RUN, number,
        )  # fmt: skip
        node.world = self
        return node

    def state_of(self, payload: PayloadId) -> dict[str, bytes]:
        """What the rank staged, by tensor."""
        job = self.job_of_launch(self.oracles.opened[payload.checkpoint].launch)
        changing, frozen = state(job, payload.checkpoint.step, payload.rank, self.seed)
        return {"changes": changing, "frozen": frozen}

    def content_of(self, payload: PayloadId) -> bytes:
        """What the rank sent."""
        found = self.state_of(payload)
        return found["changes"] + (b"" if payload in self.referring else found["frozen"])


def built(seed: int) -> ReferenceWorld:
    return cast(ReferenceWorld, ReferenceWorld.build(seed))
