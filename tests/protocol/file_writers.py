"""Processes that write files of a step, and what they hear."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, LaunchNumber, Rank, Step
from ckpt.format.checksum import xxh3_128
from ckpt.format.members import (
    Member,
    encode_members,
    member_table,
    plan_member,
)
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import (
    AttemptCommitted,
    Certify,
    CommitInfo,
    CommitMembers,
    OpenPayload,
    PayloadPlanned,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.format.table import encode_table
from ckpt.protocol.events import Session
from tests.protocol.coordinated_target import DIGEST
from tests.protocol.coordinating import RUN, Bench


class Writer:
    """One process that writes files."""

    def __init__(self, bench: Bench, process: str = "host/1/a") -> None:
        self.bench = bench
        self.process = process
        self.saves = 0
        self.session = bench.session(Role.STAGER)

    def write(self, name: str, content: bytes = b"x", step: int = 1) -> File:
        """Open, seal and certify."""
        file = self.open(name, content, step)
        file.seal_and_certify()
        return file

    def open(self, name: str, content: bytes = b"x", step: int = 1) -> File:
        self.saves += 1
        file = File(self, f"{step}/{name}", content, step, self.saves)
        file.take_plan(self.bench.tell(self.session, file.question()))
        return file

    def commit(
        self, checkpoint: CheckpointId, *files: File | Member, session: Session | None = None
    ) -> list[Message]:
        members = [one.member if isinstance(one, File) else one for one in files]
        session = session or self.bench.session()
        return self.bench.tell(session, CommitMembers(checkpoint), encode_members(members))

    def reconnect(self) -> None:
        self.session = self.bench.session(Role.STAGER)


class File:
    """One written file."""

    def __init__(self, writer: Writer, name: str, content: bytes, step: int, save: int) -> None:
        self.writer = writer
        self.member = Member(name, len(content), xxh3_128(content))
        self.layout = plan_member(name, len(content))
        self.step = Step(step)
        self.save = save
        self.plan: PayloadPlanned | None = None
        self.proofs: list[ColumnProof] = []

    def question(self) -> OpenPayload:
        return OpenPayload(
            RUN, self.step, LaunchNumber(0), Rank(0), 0, self.writer.process,
            self.layout.payload_bytes, save=self.save, member=self.member.name,
        )  # fmt: skip

    def resume(self) -> list[Message]:
        question = replace(self.question(), resume=self.checkpoint, rank=self.number)
        return self.writer.bench.tell(self.writer.session, question)

    def take_plan(self, answers: list[Message]) -> None:
        plans = [one for one in answers if isinstance(one, PayloadPlanned)]
        self.plan = plans[0] if plans else None

    @property
    def number(self) -> Rank:
        assert self.plan is not None
        return self.plan.payload.rank

    @property
    def checkpoint(self) -> CheckpointId:
        assert self.plan is not None
        return self.plan.payload.checkpoint

    def seal(self) -> None:
        assert self.plan is not None
        for j, place in enumerate(self.plan.places):
            id = ColumnId(self.plan.payload, ColumnNumber(j))
            target = self.writer.bench.targets[place.target]
            target.seal(id, place, self.plan, self.layout.payload_bytes)
            self.proofs.append(target.columns[id])

    def certify(self, member: Member | None = None) -> list[Message]:
        assert self.plan is not None
        table = encode_table(member_table(self.number, member or self.member))
        certificate = Certify(
            self.plan.payload, LaunchNumber(0), 0, tuple(self.proofs), self.plan.code,
            self.layout.payload_bytes, self.plan.cell_bytes, DIGEST, self.layout.document_offset,
            len(self.layout.document), 0, table_bytes=len(table),
        )  # fmt: skip
        return self.writer.bench.tell(self.writer.session, certificate, table)

    def seal_and_certify(self) -> list[Message]:
        self.seal()
        return self.certify()


def committed(answers: list[Message]) -> CommitInfo:
    (answer,) = [one for one in answers if isinstance(one, AttemptCommitted)]
    return answer.info


def refused(answers: list[Message]) -> str:
    (answer,) = answers
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    return answer.message


def resolved_ranks(bench: Bench, checkpoint: CheckpointId) -> list[int]:
    """The numbers in the committed placement."""
    held = bench.machine.checkpoints.get(checkpoint)
    assert held is not None
    return sorted(held.placement)
