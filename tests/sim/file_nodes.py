"""Writers of files, who commits them, and what must be true of steps of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import numpy as np

from ckpt.base.ids import CheckpointId, Generation, PayloadId, RunName, Step, TargetId
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.members import Member, encode_members, member_table, plan_member
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    CommitInfo,
    CommitMembers,
    ReplicaPolicy,
)
from ckpt.format.table import encode_table
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.reading.answers import MembersView
from ckpt.protocol.events import Send, Session
from ckpt.protocol.stager import events as se
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from tests.sim.clockwork import Clockwork
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles, Placement, Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.world import World

FILES_MAX = 16
HALF_BYTES = 1 << 17
RETRY_US = 700_000
WRITERS = 3
SHARED = "shared"
"""Each writes one of this name: the newest stays."""
LEFT_OUT = "w0-1"
"""Nobody commits it."""
END_US = 90_000_000
"""Within this, after healing, every commit has an answer, and then every attempt its end."""


class FileOracles(Oracles):
    """Of a step of files: it is what some commit named, under numbers that were given once."""

    written: dict[PayloadId, tuple[str, int, Member, bytes]]
    """(writer, its save, what it is, all its bytes) of each number that a writer was told."""
    asked: dict[CheckpointId, list[frozenset[Member]]]
    """What commits named."""

    def _opened(self, entry: catalog.AttemptOpened) -> None:
        known = self.opened.get(entry.checkpoint)
        if known is None:
            super()._opened(entry)
            return
        if entry.world_size <= known.world_size or entry.checkpoint in self.decided:
            raise Violation(f"P10: {entry.checkpoint} holds numbers up to {entry.world_size} again")
        self.opened[entry.checkpoint] = entry

    def planned(
        self, payload: PayloadId, writer: str, save: int, member: Member, data: bytes
    ) -> None:
        """A writer learned the number of a file."""
        known = self.written.setdefault(payload, (writer, save, member, data))
        if known[:2] != (writer, save):
            raise Violation(f"P2: {payload} is the number of {known[:2]} and of {(writer, save)}")
        if payload.rank >= self.opened[payload.checkpoint].world_size:
            raise Violation(f"P10: {payload} was told before its number was durable")

    def _check_ranks(self, info: CommitInfo, placement: Placement) -> None:
        id = info.checkpoint
        published = frozenset(self.written[PayloadId(id, rank)][2] for rank in placement)
        if len(published) != len(placement) or published not in self.asked.get(id, []):
            raise Violation(f"P2: {id} holds {sorted(published)}, which no commit named")


@dataclass
class FileWorld(World):
    """A world whose ranks are writers of files."""

    oracles_type: ClassVar[type[Oracles]] = FileOracles

    writers: list[WriterNode] = field(default_factory=list)
    committers: list[CommitterNode] = field(default_factory=list)

    def content_of(self, payload: PayloadId) -> bytes:
        return self.file_oracles.written[payload][3]

    @property
    def file_oracles(self) -> FileOracles:
        assert isinstance(self.oracles, FileOracles)
        return self.oracles

    @property
    def files_ended(self) -> bool:
        """Every commit is answered."""
        return all(committer.outcome for committer in self.committers)

    def write_files(self, run: RunName, steps: tuple[int, ...], size: int) -> None:
        """Some processes write files of these steps, others commit what those have brought."""
        self.file_oracles.written, self.file_oracles.asked = {}, {}
        rng = self.clock.rng
        gaps_us = [rng.choice([100, 30_000]) for _ in range(WRITERS)]
        self.writers = [
            self._writer(Job(run, None, f"W{number}", 1, steps, gap_us, size), number)
            for number, gap_us in enumerate(gaps_us)
        ]
        self.ranks.extend(self.writers)
        self.committers = [self._committer(run, step) for step in steps]
        for node in (*self.writers, *self.committers):
            self.clock.after(rng.randint(0, 3000), node.start)

    def _writer(self, job: Job, number: int) -> WriterNode:
        files = [
            (step, f"{step}/{name}")
            for step in job.steps
            for name in (f"w{number}-0", SHARED, f"w{number}-1")
        ]
        return WriterNode(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], job, self.seed, files,
        )  # fmt: skip

    def _committer(self, run: RunName, step: int) -> CommitterNode:
        def wanted() -> set[str] | None:
            """What the writers that are left have brought; one is left out on purpose."""
            if any(writer.writing for writer in self.writers):
                return None
            alive = [writer for writer in self.writers if writer.up]
            brought = [name for writer in alive for name in writer.brought]
            mine = {name for name in brought if name.startswith(f"{step}/")}
            return mine - {f"{step}/{LEFT_OUT}"}

        return CommitterNode(
            self.clock, self.network, self.file_oracles, self.coordinator, run, step, wanted,
            name=f"committer{step}",
        )  # fmt: skip

    def end_files(self) -> None:
        """All has healed: every commit is answered. Then the writers are gone, and what they left
        with them.
        """
        if not self.clock.run(lambda: self.files_ended, END_US):
            raise Violation(f"P4: commits have no end: {[c.outcome for c in self.committers]}")
        for node in self.writers:
            node.crash()
        runs = {committer.run for committer in self.committers}

        def left() -> list[str]:
            mine = (a for a in self.attempts if a.checkpoint.run in runs)
            return [f"{a.checkpoint} {a.state.value}" for a in mine]

        gone = sum(target.lost or target.ended for target in self.targets.values())
        here = len(self.targets) - max(1, gone)
        if not self.clock.run(lambda: not left() and self.live_targets >= here, END_US):
            raise Violation(
                f"P6: attempts outlive their writers: {left()}; {self.live_targets} of {here} live"
            )


class WriterNode(RankNode):
    """A process that writes files one after the other and commits none."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], job: Job, seed: int, files: list[tuple[int, str]],
    ) -> None:  # fmt: skip
        super().__init__(clock, network, oracles, coordinator, target_of, job, 0, seed)
        identity = SaverIdentity(None, self.machine.identity.rank, 1, self.process)
        self.machine = StagerMachine(identity, StagerConfig(half_count=FILES_MAX))
        self._halves = [bytearray(HALF_BYTES) for _ in range(FILES_MAX)]
        self._files = list(files)
        self._members: dict[int, Member] = {}
        self.certified: dict[int, Member] = {}
        """Save number -> the file that is on its targets."""
        self._passed: set[int] = set()

    @property
    def brought(self) -> list[str]:
        """The files that are on their targets, and not given up since."""
        lost = {n for n, s in self.machine.saves.items() if isinstance(s.outcome, se.SaveFailed)}
        return [one.name for number, one in self.certified.items() if number not in lost]

    @property
    def writing(self) -> bool:
        """It has files to bring to their targets yet."""
        alive = self.up and self.trainer_alive
        return alive and (bool(self._files) or len(self._passed) < len(self._saves))

    def _next_save(self) -> None:
        if self.up and self.trainer_alive and self._files:
            step, name = self._files.pop(0)
            number = len(self._saves) + 1
            self._saves[number] = step
            self._members[number] = Member(name, 0, b"")
            asked = se.HalfAsked(
                self._clock.now_us, number, self.job.run, Step(step), se.FullPolicy.ERROR, name
            )
            self._handle(asked)

    def _stage(self, number: int, half: int) -> None:
        name = self._members[number].name
        rng = np.random.default_rng([self._seed, crc32(self.name.encode()), number])
        data = rng.bytes(self.job.payload_bytes)
        plan = plan_member(name, len(data))
        self._members[number] = Member(name, len(data), xxh3_128(data))
        memory = self._halves[half]
        memory[: len(data)] = data
        memory[plan.document_offset : plan.payload_bytes] = plan.document
        handed = se.PayloadHandedOver(
            self._clock.now_us, number, plan.payload_bytes, plan.document_offset,
            len(plan.document), ReplicaPolicy.ABORT, 0,
        )  # fmt: skip
        self._clock.after(100, lambda: self.up and self._handle(handed))

    def _perform(self, action: se.StagerAction) -> None:
        match action:
            case se.TellCertified(number):
                self.certified[number] = self._members[number]
                payload = self.machine.saves[number].payload
                if payload in self._sending:
                    self._stop(payload)
                self._pass(number)
            case se.RefuseSave():
                raise Violation(f"{self.name}: {action.message}")
            case _:
                super()._perform(action)

    def _start(self, action: se.StartPayload) -> None:
        payload, member = action.plan.payload, self._members[action.save]
        data = bytes(self._halves[action.half][: action.payload_bytes])
        assert isinstance(self._oracles, FileOracles)
        self._oracles.planned(payload, self.name, action.save, member, data)
        super()._start(action)
        table = encode_table(member_table(payload.rank, member))
        self._clock.after(300, lambda: self._tell_table(action.save, table))

    def _tell(self, number: int, outcome: se.Outcome) -> None:
        super()._tell(number, outcome)
        if isinstance(outcome, se.SaveFailed):
            self._check_may_go(number, outcome)
            self.certified.pop(number, None)
        self._pass(number)

    def _check_may_go(self, number: int, outcome: se.SaveFailed) -> None:
        """I live, and whoever commits waits for what I bring. What a target has lost for good I am
        asked to write again.
        """
        name, oracles = self._members[number].name, self._oracles
        kept = not name.endswith((SHARED, LEFT_OUT)) and not any(
            map(oracles.is_harmed, oracles.targets)
        )
        if outcome.code == "aborted" and kept:
            raise Violation(f"{self.name} lives, its file {name} is given up: {outcome.message}")

    def _pass(self, number: int) -> None:
        if number not in self._passed:
            self._passed.add(number)
            self._clock.after(self.job.gap_us, self._next_save)


@dataclass
class CommitterNode:
    """I commit one step as soon as the files that I want are listed; asked again until it ends."""

    clock: Clockwork
    network: Network
    oracles: FileOracles
    coordinator: Node
    run: RunName
    step: int
    wanted: Callable[[], set[str] | None]
    """Names; None while they are still being written."""
    name: str = "committer"
    up: bool = True
    stopped: bool = False
    outcome: str = ""
    _session: Session | None = None
    _request: int = 0
    _checkpoint: CheckpointId | None = None
    #: Requests that were commits.
    _commits: set[int] = field(default_factory=set)

    def start(self) -> None:
        self.network.dial(
            self, self.coordinator, Role.READER, Role.COORDINATOR,
            failed=lambda: self.clock.after(RETRY_US, self.start), opened=self._open,
        )  # fmt: skip

    def _open(self, session: Session) -> None:
        self._session = session

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._ask()

    def session_closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None
            self.start()

    def _ask(self) -> None:
        if self.outcome or self._session is None:
            return
        if self.wanted() is not None:
            self._send(Ask("members", self.run, Step(self.step)))
        session = self._session
        self.clock.after(RETRY_US, lambda: self._session == session and self._ask())

    def _send(self, message: Message, bulk: bytes = b"") -> int:
        assert self._session is not None
        self._request += 1
        self.network.send(Send(self._session, self._request, message, bulk))
        return self._request

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if session != self._session or self.outcome:
            return
        match message:
            case Answer():
                self._listed(msgspec.json.decode(bulk, type=MembersView))
            case AttemptCommitted() if request in self._commits:
                self._end("committed")
            case AttemptAborted() if request in self._commits:
                self._end("aborted")

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.clock.changed = True

    def _listed(self, view: MembersView) -> None:
        wanted = self.wanted()
        listed = {one.name: one for one in view.members}
        if wanted is None or (view.generation and not wanted <= listed.keys()):
            return
        if view.generation and wanted:
            generation = Generation.parse(view.generation)
            self._checkpoint = CheckpointId(self.run, Step(self.step), generation)
            self._members = [
                Member(one.name, one.length, bytes.fromhex(one.fingerprint))
                for name, one in listed.items()
                if name in wanted
            ]
            self.oracles.asked.setdefault(self._checkpoint, []).append(frozenset(self._members))
        if self._checkpoint is None:
            self._end("nothing")
            return
        # Also when the list is gone: it may have been committed, and the answer lost.
        message = CommitMembers(self._checkpoint)
        self._commits.add(self._send(message, encode_members(self._members)))
