"""A document that rots on a target is written there once more, as it should be."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ckpt.base.ids import CheckpointId, TargetId
from ckpt.format.messages.asking import ChangeTarget, DeleteStep, LabelStep
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import Damage, DocumentKind, ReadDocument
from ckpt.format.messages.targets import PutDocument, RenewLease, Rot, ScrubReport
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.repairing.mending import REST_US
from ckpt.protocol.events import Send
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench

INDEX, RECORD, LABELS = DocumentKind.INDEX, DocumentKind.RECORD, DocumentKind.LABELS
ROTTEN = b"rotten"


@pytest.fixture
def bench() -> Bench:
    made = Bench(6)
    made.tick(GATHERING_US / SECOND_US)
    return made


def saved(bench: Bench) -> CheckpointId:
    """With a name."""
    id = bench.save(1)
    bench.tell(bench.session(), LabelStep(RUN, id.step, add=("best",)))
    return id


def having(bench: Bench, kind: DocumentKind, id: CheckpointId) -> list[FakeTarget]:
    return [t for t in bench.targets.values() if t.session and (kind, id) in t.documents]


def rots(bench: Bench, target: FakeTarget, kinds: Iterable[DocumentKind], id: CheckpointId) -> None:
    """What it has of these is damaged, and its next renewals say so, until it is right."""
    for kind in kinds:
        whole = target.documents[kind, id]
        target.documents[kind, id] = ROTTEN.ljust(len(whole), b".")
    damage = (Rot(id, Damage(kind.value, "copy 1", 4096, 8192, "digest")) for kind in kinds)
    found = tuple(damage)
    assert target.session is not None
    report = ScrubReport(604_800.0, 10, 20, 15, 0, len(found), found)
    bench.tell(target.session, RenewLease(target.id, target.boot, *target.space, scrub=report))


def is_right(target: FakeTarget, kind: DocumentKind, id: CheckpointId) -> bool:
    return not target.documents[kind, id].startswith(ROTTEN)


def puts(bench: Bench) -> list[PutDocument]:
    sent = (action.message for action in bench.log if isinstance(action, Send))
    return [message for message in sent if isinstance(message, PutDocument) and message.again]


@pytest.mark.parametrize("kind", [INDEX, RECORD, LABELS])
def test_it_is_as_it_was_on_the_same_target(bench: Bench, kind: DocumentKind) -> None:
    id = saved(bench)
    first = having(bench, kind, id)[0]
    before = first.documents[kind, id]
    rots(bench, first, [kind], id)
    bench.tick(1)
    assert first.documents[kind, id] == before
    assert bench.machine.repairs.mender.mended == 1
    (put,) = puts(bench)
    assert (put.kind, put.again) == (kind, True)
    assert len(having(bench, kind, id)) == 2, "nobody else has one more"


def test_all_that_rots_is_mended_one_after_the_other(bench: Bench) -> None:
    id = saved(bench)
    kinds = [INDEX, RECORD, LABELS]
    (one,) = (
        {t.id for t in having(bench, INDEX, id)}
        & {t.id for t in having(bench, RECORD, id)}
        & {t.id for t in having(bench, LABELS, id)[:1]}
    )
    rots(bench, bench.targets[one], kinds, id)
    bench.tick(3)
    assert all(is_right(bench.targets[one], kind, id) for kind in kinds)


def test_an_index_that_nobody_has_right_is_left_as_it_is(bench: Bench) -> None:
    id = saved(bench)
    for target in having(bench, INDEX, id):
        rots(bench, target, [INDEX], id)
    bench.tick(REST_US / SECOND_US * 2)
    assert puts(bench) == []


def test_who_cannot_store_it_is_asked_again_after_a_rest(bench: Bench) -> None:
    id = saved(bench)
    target = having(bench, RECORD, id)[0]
    target.refuses[PutDocument] = Failed("unavailable", "EIO")
    rots(bench, target, [RECORD], id)
    bench.tick(REST_US / SECOND_US / 2)
    assert (len(puts(bench)), is_right(target, RECORD, id)) == (1, False)
    target.refuses.clear()
    bench.tick(REST_US / SECOND_US)
    assert is_right(target, RECORD, id)


def test_one_that_goes_meanwhile_is_not_written(bench: Bench) -> None:
    id = saved(bench)
    holders = having(bench, INDEX, id)
    holders[1].silent.add(ReadDocument)
    rots(bench, holders[0], [INDEX], id)
    bench.tick()
    bench.tell(bench.session(Role.ADMIN), DeleteStep(RUN, id.step))
    bench.let_answer(holders[1].id)
    bench.tick(2)
    assert puts(bench) == []


def test_a_target_that_is_to_be_emptied_is_left_alone(bench: Bench) -> None:
    id = saved(bench)
    target = having(bench, RECORD, id)[0]
    bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId(target.id), "draining"))
    rots(bench, target, [RECORD], id)
    bench.tick(2)
    assert puts(bench) == []


def test_without_repair_nothing_is_written() -> None:
    bench = Bench(6)
    bench.policy = type(bench.policy)(
        bench.policy.cluster, bench.policy.code, rebuild_after_us=None
    )
    bench.restart(*bench.targets)
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    target = having(bench, RECORD, id)[0]
    rots(bench, target, [RECORD], id)
    bench.tick(5)
    assert puts(bench) == []
