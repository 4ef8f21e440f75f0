"""Is every byte of a checkpoint still what was written? Each target reads its own columns and
compares, also those of earlier generations that hold bytes of it, and the documents beside them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.threads import thread_found
from ckpt.base.errors import CkptError
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    Home,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.base.system_errors import Scarce
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import DamageJudged, TargetAddress
from ckpt.format.messages.reading import ByteRange, ColumnVerified, Damage, VerifyColumn
from ckpt.protocol.coordinator.keeping.judging import most_bad
from ckpt.protocol.handshake import Caller
from ckpt.transfer.payload_finder import FoundPayload
from ckpt.transfer.read_job import PayloadDamaged
from ckpt.transfer.target_links import nearest_address
from ckpt_client.load.pin import Pinned
from ckpt_client.load.reader_context import ReaderContext

COLUMN_TIMEOUT_S: Final = 600.0
"""Patience with a target that reads one column whole, after all others that it was asked for."""
AT_ONCE_MAX: Final = 32
"""Columns under way; each target reads its own one after another."""
REPORTED_MAX: Final = 4
"""Lost payloads that the coordinator is asked about, one after another, until one is proved: each
has it read all columns of that payload."""
OnProgress = Callable[[int, int], None]
_EVERYWHERE: Final = (ByteRange(0, PAYLOAD_BYTES_MAX),)


@dataclass(frozen=True, slots=True)
class ColumnHealth:
    """One column as its target found it."""

    rank: int
    column: int
    target: str | None
    """None: there was none at the commit."""
    state: str
    """`whole`, `damaged`, `missing`, or `away` when its target did not answer."""
    damaged: tuple[ByteRange, ...] = ()
    """Ranges of the column, in bytes, that do not match their checksums."""
    home: str = ""
    """`STEP#GENERATION` of the earlier checkpoint whose column it is; empty for this one's own."""
    beside: tuple[Damage, ...] = ()
    """What else of its file is damaged: a copy of its header, its block table, its manifest."""


@dataclass(frozen=True, slots=True)
class DocumentHealth:
    """An index, a commit record or labels that are damaged on one target."""

    kind: str
    target: str
    damaged: tuple[Damage, ...]
    home: str = ""
    """As of columns."""


@dataclass(frozen=True, slots=True)
class PayloadHealth:
    """One rank's payload: `healthy`, `degraded`, `lost` or `unknown`."""

    rank: int
    state: str
    home: str = ""
    """As of its columns."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a full read found; `state` is the worst of its payloads."""

    checkpoint: CheckpointId
    state: str
    """`healthy`: all whole. `degraded`: readable from the others, or from other copies. `lost`:
    proved not to be readable. `unknown`: not readable from what was reached, and nothing is proved.
    """
    payloads: tuple[PayloadHealth, ...]
    columns: tuple[ColumnHealth, ...]
    """All of them, by rank and column; those of homes after its own."""
    bytes_read: int
    """Fragment bytes that targets compared."""
    seconds: float
    documents_read: int = 0
    """Indexes, commit records and labels that targets compared, all copies of each."""
    documents: tuple[DocumentHealth, ...] = ()
    """Those that are damaged."""
    judged: DamageJudged | None = None
    """What the coordinator found, where targets said that payloads are lost. Proved: the checkpoint
    is lost for everybody from now on. Otherwise `state` is `unknown`, and this says why."""


@dataclass(frozen=True, slots=True)
class _Question:
    """One column, on one target."""

    id: ColumnId
    target: TargetId | None
    home: str
    documents: bool
    """Those of its checkpoint as well, which each target is asked for once."""
    column: bool = True
    """False: these alone."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of a question."""

    asked: _Question
    state: str
    answer: ColumnVerified | None = None

    @property
    def column(self) -> ColumnHealth:
        id, answer = self.asked.id, self.answer
        damaged = answer.damaged if answer is not None else ()
        return ColumnHealth(
            int(id.payload.rank), int(id.column), self.asked.target, self.state, damaged,
            self.asked.home, self._beside(column=True),
        )  # fmt: skip

    def documents(self) -> Iterator[DocumentHealth]:
        damages: defaultdict[str, list[Damage]] = defaultdict(list)
        for one in self._beside(column=False):
            damages[one.kind].append(one)
        for kind, found in damages.items():
            assert self.asked.target is not None, "it answered"
            yield DocumentHealth(kind, self.asked.target, tuple(found), self.asked.home)

    def _beside(self, *, column: bool) -> tuple[Damage, ...]:
        beside = self.answer.beside if self.answer is not None else ()
        return tuple(one for one in beside if (one.kind == "column") is column)


_ORDER: Final = ("healthy", "degraded", "unknown", "lost")


def verify(
    context: ReaderContext,
    run: RunName,
    step: Step,
    *,
    timeout_s: float = 10.0,
    only: Generation | None = None,
    on_progress: OnProgress = lambda _done, _count: None,
) -> VerifyReport:
    """Verify a generation of a step, the newest or `only` that one, and the payloads of its homes
    that it refers to, all targets at once. What cannot be mended is reported, as a reader does: the
    coordinator looks as well, and what it proves is lost from then on. Raises NotFound,
    Unavailable, Lost.

    on_progress: hears how many columns of how many were read.
    """
    with closing(Pinned.of_step(context, run, step, only, timeout_s)) as pinned:
        with pinned.judging_index():
            payloads = pinned.finder.payloads()
        report = _read(pinned, payloads, on_progress)
        return _judged(pinned, payloads, report) if report.state == "lost" else report


def verify_unreported(
    context: ReaderContext,
    run: RunName,
    step: Step,
    *,
    timeout_s: float,
    only: Generation | None,
) -> VerifyReport:
    """The same, without reporting what is found: `lost` is what the targets say."""
    with closing(Pinned.of_step(context, run, step, only, timeout_s)) as pinned:
        return _read(pinned, pinned.finder.payloads(), lambda _done, _count: None)


def _read(
    pinned: Pinned, payloads: Sequence[FoundPayload], on_progress: OnProgress
) -> VerifyReport:
    begun_s = time.monotonic()
    checkpoint = pinned.record.info.checkpoint
    addresses = {where.target: where for where in pinned.resolved.targets}
    questions = _questions(checkpoint, payloads, addresses)
    found = _ask_all(pinned.context, questions, addresses, on_progress)
    columns = tuple(each.column for each in found if each.asked.column)
    documents = tuple(one for each in found for one in each.documents())
    of_payload: defaultdict[tuple[str, int], list[ColumnHealth]] = defaultdict(list)
    for column in columns:
        of_payload[column.home, column.rank].append(column)
    parity = [payload.entry.code.m for payload in payloads]
    healths = tuple(
        PayloadHealth(rank, _judge(m, of_payload[home, rank]), home)
        for m, (home, rank) in zip(parity, of_payload, strict=True)
    )
    worst = max((_ORDER.index(health.state) for health in healths), default=0)
    answers = [each.answer for each in found if each.answer is not None]
    return VerifyReport(
        checkpoint,
        _ORDER[max(worst, _ORDER.index("degraded") if documents else 0)],
        healths,
        columns,
        sum(answer.column_bytes for answer in answers),
        time.monotonic() - begun_s,
        sum(answer.documents for answer in answers),
        documents,
    )


def _judged(pinned: Pinned, payloads: Sequence[FoundPayload], report: VerifyReport) -> VerifyReport:
    """Lost is what the coordinator proves: it knows of copies that were made meanwhile."""
    states = (health.state for health in report.payloads)
    lost = [one.id for one, state in zip(payloads, states, strict=True) if state == "lost"]
    judged: DamageJudged | None = None
    for payload in lost[:REPORTED_MAX]:
        judged = pinned.judge(PayloadDamaged(payload, f"{payload} does not verify"))
        if judged.proved:
            return replace(report, judged=judged)
    return replace(report, state="unknown", judged=judged)


def _home(payload: FoundPayload, checkpoint: CheckpointId) -> str:
    return "" if payload.id.checkpoint == checkpoint else str(Home.of(payload.id.checkpoint))


def _questions(
    checkpoint: CheckpointId,
    payloads: Sequence[FoundPayload],
    addresses: Mapping[TargetId, TargetAddress],
) -> list[_Question]:
    """All columns, and the documents of each checkpoint once of each target that may have them."""
    asked: set[tuple[TargetId, CheckpointId]] = set()
    questions = []
    for payload in payloads:
        home = _home(payload, checkpoint)
        for j, target in enumerate(payload.columns):
            first = target is not None and (target, payload.id.checkpoint) not in asked
            questions.append(_Question(ColumnId(payload.id, ColumnNumber(j)), target, home, first))
            if target is not None:
                asked.add((target, payload.id.checkpoint))
    nobody = ColumnId(PayloadId(checkpoint, Rank(0)), ColumnNumber(0))
    rest = [target for target in addresses if (target, checkpoint) not in asked]
    return questions + [_Question(nobody, target, "", True, column=False) for target in rest]


def _ask_all(
    context: ReaderContext,
    questions: Sequence[_Question],
    addresses: Mapping[TargetId, TargetAddress],
    on_progress: Callable[[int, int], None],
) -> list[_Found]:
    found: list[_Found] = []
    with ExitStack() as stack:
        peers = {
            target: stack.enter_context(_dial(context, where))
            for target, where in addresses.items()
        }
        with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="ckpt-verify") as pool:
            with thread_found("ckpt-verify"):
                answers = pool.map(lambda question: _ask(question, peers), questions)
            for each in answers:
                found.append(each)
                on_progress(len(found), len(questions))
    return found


def _ask(asked: _Question, peers: Mapping[TargetId, RpcClient]) -> _Found:
    if asked.target is None:
        return _Found(asked, "missing")
    peer = peers.get(asked.target)
    if peer is None:
        return _Found(asked, "away")
    try:
        question = VerifyColumn(asked.id, asked.documents)
        answer, _ = peer.ask(question, ColumnVerified, timeout_s=COLUMN_TIMEOUT_S)
    except Scarce:
        raise  # Ours: its target may be there.
    except CkptError:
        return _Found(asked, "away")
    if answer.missing:
        return _Found(asked, "missing", answer)
    harmed = answer.damaged or any(one.kind == "column" for one in answer.beside)
    return _Found(asked, "damaged" if harmed else "whole", answer)


def _judge(m: int, columns: Sequence[ColumnHealth]) -> str:
    """Lost is only what is proved: a column out of reach may be whole."""
    proved = [_EVERYWHERE if c.state == "missing" else c.damaged for c in columns]
    away = [_EVERYWHERE for c in columns if c.state == "away"]
    if most_bad(proved) > m:
        return "lost"
    if most_bad([*proved, *away]) > m:
        return "unknown"
    return "healthy" if all(c.state == "whole" for c in columns) else "degraded"


def _dial(context: ReaderContext, where: TargetAddress) -> RpcClient:
    caller = Caller.of_target(context.secret, Role.READER, context.name, where.target)
    return RpcClient(nearest_address(where), caller)
