"""Copies of columns where nobody has named them: adopted where they are needed, else dropped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank, Step, TargetId
from ckpt.base.limits import LEASE_US
from ckpt.format.documents.moves import decode_moves
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import (
    AskMoves,
    DamageJudged,
    MovesFound,
    ReleasePin,
    ReportDamage,
    Resolve,
    Resolved,
)
from ckpt.format.messages.targets import DropColumn
from ckpt.protocol.coordinator.catalog import ColumnsMoved, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.room import RoomSeen
from ckpt.protocol.events import Send, Session
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinated_target import DIGEST, FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench, ready

LEASE_S = LEASE_US / SECOND_US
OTHER = b"o" * 16
"""A digest of other bytes."""
WHILE_S = 3 * LEASE_S
"""After so long nobody expects a target that left without a word."""


class Scene:
    """One committed checkpoint of rank 0, and a target that holds nothing of it."""

    def __init__(self, count: int = 4, code: str = "2+1", **options: int) -> None:
        self.bench = Bench(count, code, **options)  # type: ignore[arg-type]
        self.id = self.bench.save(1)
        self.spare = next(t for t in self.bench.targets.values() if not t.columns)

    @property
    def kept(self) -> KeptCheckpoint:
        found = self.bench.machine.checkpoints.get(self.id)
        assert found is not None
        return found

    @property
    def named(self) -> tuple[TargetId | None, ...]:
        assert self.kept.placement is not None
        return self.kept.placement[Rank(0)].columns

    @property
    def missing(self) -> int:
        return self.bench.machine.checkpoints.redundancy(self.kept).columns_missing

    def column(self, number: int) -> ColumnId:
        return ColumnId(PayloadId(self.id, Rank(0)), ColumnNumber(number))

    def holder(self, number: int) -> FakeTarget:
        id = self.named[number]
        assert id is not None
        return self.bench.targets[id]

    def copy(self, number: int, target: FakeTarget, digest: bytes = DIGEST) -> None:
        """It has that column as well, and says so when it comes: it was late, or was moved."""
        column = self.column(number)
        target.columns[column] = target.proof(column, "2+1", 10_000, digest)

    def come_back(self, target: FakeTarget) -> None:
        """As another process of it."""
        if target.session is not None:
            self.bench.stop(target.id)
        target.reboot()
        self.bench.start(target)

    def leave(self, target: FakeTarget) -> None:
        """For longer than anybody waits."""
        self.bench.stop(target.id)
        self.bench.tick(WHILE_S)

    def resolved(self, reader: Session) -> Resolved:
        (answer,) = self.bench.tell(reader, Resolve(RUN, None, timeout_us=60 * SECOND_US))
        assert isinstance(answer, Resolved)
        return answer

    def moves(self) -> dict[tuple[Rank, ColumnNumber], TargetId]:
        """As a reader learns them."""
        reader = self.bench.session()
        if not self.resolved(reader).moved:
            return {}
        mark = self.bench.mark()
        self.bench.tell(reader, AskMoves(self.id, 0))
        (send,) = [a for a in self.bench.log[mark:] if isinstance(a, Send)]
        assert isinstance(send.message, MovesFound)
        return decode_moves(0, send.bulk)


@pytest.mark.parametrize("how", ["away", "emptied", "another's bytes"])
def test_a_copy_takes_the_place_of_one_that_does_not_count(how: str) -> None:
    scene = Scene()
    lost = scene.holder(1)
    match how:
        case "away":
            scene.leave(lost)
        case "emptied":
            lost.columns.clear()
            scene.come_back(lost)
        case "another's bytes":
            scene.copy(1, lost, OTHER)
            scene.come_back(lost)
    assert scene.missing == 1
    scene.copy(1, scene.spare)
    mark = scene.bench.mark()
    scene.come_back(scene.spare)
    assert scene.missing == 0
    assert scene.named[1] == scene.spare.id
    assert scene.moves() == {(Rank(0), ColumnNumber(1)): scene.spare.id}
    (moved,) = scene.bench.story(mark, ColumnsMoved)
    assert isinstance(moved, ColumnsMoved)
    scene.bench.restart(*scene.bench.targets)
    assert scene.named[1] == scene.spare.id, "a start finds it so"


def test_a_column_that_was_missing_at_the_commit_is_found() -> None:
    scene = Scene()
    # Its target has sealed it and nobody has heard of that.
    bench = Bench(5, "2+2")
    (rank,) = ready(bench)
    late = rank.places()[ColumnNumber(3)].target
    bench.stop(late)
    del rank.proofs[ColumnNumber(3)]
    rank.certify()
    bench.tick(WHILE_S)
    scene.bench, scene.id = bench, rank.commits()[-1].info.checkpoint
    assert scene.named[3] is None
    bench.start(late)
    assert (scene.named[3], scene.missing) == (late, 0)


def test_nothing_is_named_before_that_is_durable() -> None:
    scene = Scene()
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.bench.persist_at_once = False
    scene.come_back(scene.spare)
    scene.bench.tick()
    assert (scene.missing, scene.moves()) == (1, {})
    assert len([t for t in scene.bench.tickets if isinstance(t.entries[0], ColumnsMoved)]) == 1
    while scene.bench.tickets:
        scene.bench.sync()
    assert scene.missing == 0


def test_who_is_named_and_about_to_come_is_waited_for() -> None:
    scene = Scene()
    scene.bench.stop(scene.holder(1).id)
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    scene.bench.tick()
    assert scene.missing == 1, "within its lease"
    scene.bench.tick(WHILE_S)
    assert scene.missing == 0


def test_a_copy_goes_when_all_is_there() -> None:
    scene = Scene()
    first = scene.holder(1)
    scene.leave(first)
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    assert scene.named[1] == scene.spare.id
    mark = scene.bench.mark()
    scene.come_back(first)
    assert scene.bench.asked(first.id, DropColumn, mark) == [DropColumn(1, scene.column(1))]
    assert (first.columns, scene.missing) == ({}, 0)


def test_a_copy_stays_while_another_column_of_its_payload_is_missing() -> None:
    """Two may be lost: a copy of a column that counts is worth keeping until all count."""
    scene = Scene(5, "2+2")
    away, kept = scene.holder(2), scene.holder(0)
    scene.leave(away)
    scene.copy(0, scene.spare)
    scene.come_back(scene.spare)
    scene.bench.tick(WHILE_S)
    assert scene.column(0) in scene.spare.columns
    scene.leave(kept)
    assert scene.named[0] == scene.spare.id, "it takes the place of one that was lost since"
    scene.come_back(away)
    scene.come_back(kept)
    assert scene.column(0) not in kept.columns


def test_who_comes_while_its_place_is_given_away_keeps_nothing_in_vain() -> None:
    scene = Scene()
    first = scene.holder(1)
    scene.leave(first)
    scene.copy(1, scene.spare)
    scene.bench.persist_at_once = False
    scene.come_back(scene.spare)
    scene.come_back(first)
    while scene.bench.tickets:
        scene.bench.sync()
    assert scene.named[1] == scene.spare.id
    assert first.columns == {}


def test_a_copy_with_another_manifest_is_no_copy() -> None:
    scene = Scene()
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare, OTHER)
    scene.come_back(scene.spare)
    assert (scene.missing, scene.spare.columns) == (1, {})


def test_a_copy_where_the_domain_rule_would_break_is_kept_and_not_named() -> None:
    """Four targets on three hosts: the spare is beside a holder."""
    scene = Scene(4, "2+1", hosts=3)
    beside = next(j for j in range(3) if host(scene.holder(j)) == host(scene.spare))
    lost, other = (j for j in range(3) if j != beside)
    scene.leave(scene.holder(lost))
    scene.copy(lost, scene.spare)
    scene.come_back(scene.spare)
    scene.bench.tick(WHILE_S)
    assert scene.missing == 1
    assert scene.column(lost) in scene.spare.columns
    scene.leave(scene.holder(other))
    assert scene.missing == 1, "without it the payload could not be read"
    assert scene.named[lost] == scene.spare.id


def test_a_proof_of_other_bytes_does_not_count() -> None:
    scene = Scene()
    holder, holds = scene.holder(1).id, scene.bench.machine.members.holds
    assert [holds(holder, scene.column(1), digest) for digest in (DIGEST, OTHER)] == [True, False]


@pytest.mark.parametrize("columns", [1, 2])
def test_a_target_counts_once_for_a_payload(columns: int) -> None:
    """Also where its domain may take more."""
    scene = Scene(max_per_domain=columns)
    scene.leave(scene.holder(1))
    beside = scene.holder(0)
    scene.copy(1, beside)
    scene.come_back(beside)
    scene.bench.tick(WHILE_S)
    assert scene.missing == 1
    assert scene.column(1) in beside.columns, "it is a right copy all the same"


def test_no_copy_goes_while_somebody_reads_who_may_know_it_as_the_place() -> None:
    scene = Scene()
    first, reader = scene.holder(1), scene.bench.session()
    pin = scene.resolved(reader).pin
    scene.leave(first)
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    scene.come_back(first)
    assert scene.column(1) in first.columns
    scene.bench.tell(reader, ReleasePin(pin))
    assert first.columns == {}


def test_readers_learn_what_has_moved() -> None:
    scene = Scene()
    reader = scene.bench.session()
    assert scene.resolved(reader).moved == ()
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    answer = scene.resolved(reader)
    (moved,) = answer.moved
    assert (moved.generation, moved.pages) == (scene.id.generation, (0,))
    assert scene.spare.id in {where.target for where in answer.targets}
    elsewhere = replace(scene.id, step=Step(2))
    (refused,) = scene.bench.tell(reader, AskMoves(elsewhere, 0))
    assert isinstance(refused, Failed)
    assert refused.code == "not_found"


def test_what_is_deleted_moves_no_more_and_leaves_nothing_in_the_catalog() -> None:
    scene = Scene()
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    scene.bench.tell(scene.bench.session(Role.ADMIN), DeleteStep(RUN, scene.id.step))
    image = apply_all(CatalogImage(1), scene.bench.durable)  # type: ignore[arg-type]
    assert image.rows[scene.id].state is RowState.DELETED, "who lost its column is not waited for"
    assert image.moves == {}


def test_a_full_catalog_takes_no_moves() -> None:
    scene = Scene()
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.bench.feed(RoomSeen(scene.bench.now_us, "etcd says so", "make room"))
    scene.come_back(scene.spare)
    assert scene.missing == 1
    scene.bench.feed(RoomSeen(scene.bench.now_us))
    scene.bench.tick()
    assert scene.missing == 0


# --------------------------------------------------------------------------- loss


def judged(scene: Scene) -> DamageJudged:
    payload = PayloadId(scene.id, Rank(0))
    report = ReportDamage(payload, "two columns do not decode")
    (answer,) = scene.bench.tell(scene.bench.session(), report)
    assert isinstance(answer, DamageJudged)
    return answer


def test_once_a_column_has_moved_no_loss_is_proved_while_any_target_is_away() -> None:
    """A catalog that was made again knows a new place only when its target lists."""
    scene = Scene(5)
    scene.leave(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.come_back(scene.spare)
    away = next(t for t in scene.bench.targets.values() if t.session and not t.columns)
    scene.bench.stop(away.id)
    for number in (0, 1):
        scene.holder(number).columns.clear()
    answer = judged(scene)
    assert (answer.proved, answer.reason) == (
        False, "a target that may have a column of it is away",
    )  # fmt: skip
    for target in scene.bench.targets.values():
        if target.session is None:
            target.columns.clear()
            scene.bench.start(target)
    assert judged(scene).proved


def test_no_loss_is_proved_while_a_copy_may_be_named() -> None:
    scene = Scene()
    for number in (0, 1):
        scene.holder(number).columns.clear()
    scene.come_back(scene.holder(1))
    scene.copy(1, scene.spare)
    scene.bench.persist_at_once = False
    scene.come_back(scene.spare)
    answer = judged(scene)
    assert not answer.proved
    assert "about to be named" in answer.reason
    while scene.bench.tickets:
        scene.bench.sync()
    assert (scene.named[1], judged(scene).proved) == (scene.spare.id, False)


def host(target: FakeTarget) -> str:
    return target.domain.split("/")[2]
