"""What tests say of coordinators that begin from another catalog than the newest."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.ids import CheckpointId
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.events import Session
from tests.protocol.coordinating import RUN, SECOND_US, Bench

RECORD, INDEX, TOMBSTONE = DocumentKind.RECORD, DocumentKind.INDEX, DocumentKind.TOMBSTONE
GATHERING_S = GATHERING_US // SECOND_US


@dataclass(frozen=True)
class Copy:
    """Of a catalog, as a backup has it."""

    durable: tuple[object, ...]
    term: int


def copy_of(bench: Bench) -> Copy:
    return Copy(tuple(bench.durable), bench.term)


def begin_from(bench: Bench, copy: Copy, *targets: str) -> None:
    """A coordinator starts on it; these targets come."""
    bench.durable, bench.term = list(copy.durable), copy.term
    bench.restart(*targets)


def newest(bench: Bench, session: Session | None = None) -> list[Message]:
    """What a job is told that asks for the newest step; nothing while it has to wait."""
    session = bench.session() if session is None else session
    return bench.tell(session, Resolve(RUN, None))


def checks(bench: Bench) -> dict[str, str]:
    """Of the status, which is told always: remedy by name."""
    status = bench.ask("status")
    assert isinstance(status, dict)
    return {check["name"]: check["remedy"] for check in status["checks"]}


def assert_old(bench: Bench) -> None:
    (failed,) = newest(bench)
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt"
    assert "older than its targets" in failed.message
    assert "run: ckpt catalog rebuild" in failed.hint
    assert checks(bench)["CATALOG_OLD"].startswith("end this coordinator, ")


def assert_serves(bench: Bench, step: int) -> None:
    """And the newest step is this one."""
    (resolved,) = newest(bench)
    assert isinstance(resolved, Resolved), resolved
    runs = bench.ask("runs")
    assert isinstance(runs, list)
    assert [run["latest"] for run in runs] == [step]
    assert checks(bench).keys().isdisjoint({"CATALOG_OLD", "CATALOG_UNPROVED"})


EMPTY = Copy((), 0)


def newest_id(bench: Bench) -> CheckpointId:
    return max(id for target in bench.targets.values() for _, id in target.documents)
