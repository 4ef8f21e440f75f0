"""Copies of index and commit record that are gone, and how they are made again."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId, TargetId
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind, ReadDocument
from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.desk import WorkLeft
from ckpt.protocol.coordinator.repairing.respreading import LOOK_US
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench

LOOK_S = LOOK_US / SECOND_US
AFTER_S = 300
"""As the policy says."""
INDEX, RECORD = DocumentKind.INDEX, DocumentKind.RECORD


def having(bench: Bench, kind: DocumentKind, id: CheckpointId) -> list[FakeTarget]:
    """Live targets that have it."""
    return [t for t in bench.targets.values() if t.session and (kind, id) in t.documents]


def saved(count: int = 6) -> tuple[Bench, CheckpointId]:
    bench = Bench(count)
    bench.tick(GATHERING_US / SECOND_US)
    return bench, bench.save(1)


def wipe(bench: Bench, target: FakeTarget) -> None:
    if target.session is not None:
        bench.stop(target.id)
    target.columns.clear()
    target.documents.clear()
    target.reboot()
    bench.start(target)


@pytest.mark.parametrize("kind", [INDEX, RECORD])
def test_what_a_target_has_lost_is_copied_from_the_others(kind: DocumentKind) -> None:
    bench, id = saved()
    lost = having(bench, kind, id)[0]
    wipe(bench, lost)
    bench.tick(LOOK_S)
    copies = having(bench, kind, id)
    assert len(copies) == 2, "m + 1"
    assert len({target.documents[kind, id] for target in copies}) == 1
    assert bench.machine.repairs.documents.copied >= 1


def test_who_is_away_is_waited_for_unless_one_copy_is_left() -> None:
    bench = Bench(8, "2+2")
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    first, second, third = having(bench, INDEX, id)
    bench.stop(first.id)
    bench.tick(60)
    assert len(having(bench, INDEX, id)) == 2
    bench.stop(second.id)
    bench.tick(60)
    assert len(having(bench, INDEX, id)) == 3
    assert third in having(bench, INDEX, id)


def test_who_is_away_for_long_is_not_waited_for() -> None:
    bench = Bench(8, "2+2")
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    bench.stop(having(bench, INDEX, id)[0].id)
    bench.tick(AFTER_S + LOOK_S)
    assert len(having(bench, INDEX, id)) == 3


def test_all_that_had_the_index_may_go_one_after_the_other() -> None:
    """Then none of those that the record names has it; a start finds it all the same."""
    bench, id = saved()
    first = {target.id for target in having(bench, INDEX, id)}
    for target in sorted(first):
        wipe(bench, bench.targets[target])
        # Those that are empty are the first that it goes to.
        bench.targets[target].refuses[PutDocument] = Failed("no_space", "the device is full")
        bench.tick(LOOK_S)
    assert not first & {target.id for target in having(bench, INDEX, id)}
    bench.restart(*bench.targets)
    bench.tick(LOOK_S)
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    assert checkpoint.placement is not None
    reader = bench.session()
    (answer,) = bench.tell(reader, Resolve(RUN, None, timeout_us=60 * SECOND_US))
    assert isinstance(answer, Resolved)
    (moved,) = answer.moved
    assert set(moved.indexes) == {target.id for target in having(bench, INDEX, id)}
    assert set(moved.indexes) <= {where.target for where in answer.targets}


def test_a_copy_that_is_damaged_is_not_what_is_copied() -> None:
    bench, id = saved()
    first, second = having(bench, INDEX, id)
    first.documents[INDEX, id] = bytes(len(first.documents[INDEX, id]))
    wipe(bench, second)
    bench.tick(LOOK_S)
    assert having(bench, INDEX, id) == [first], "no whole copy is left"


@pytest.mark.parametrize("how", ["silent", "refuses"])
def test_who_does_not_give_it_is_passed_over(how: str) -> None:
    bench = Bench(8, "2+2")
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    first, _, third = having(bench, INDEX, id)
    if how == "silent":
        first.silent.add(ReadDocument)
    else:
        first.refuses[ReadDocument] = Failed("unavailable", "the disk is busy")
    wipe(bench, third)
    bench.tick(2 * LOOK_S)
    copies = having(bench, INDEX, id)
    assert len(copies) >= 3
    assert len({target.documents[INDEX, id] for target in copies}) == 1


def test_who_has_it_is_not_asked_to_store_it_once_more() -> None:
    """No target is left that could have another copy of the record; of the index none is."""
    bench, id = saved(3)
    holders = [target.id for target in having(bench, RECORD, id)]
    bench.stop(*(one for one in bench.targets if one != holders[0]))
    left = bench.targets[TargetId(holders[0])]
    left.documents.pop((INDEX, id), None)
    bench.stop(left.id)
    left.reboot()
    bench.start(left)
    mark = bench.mark()
    bench.tick(AFTER_S + 3 * LOOK_S)
    assert bench.asked(left.id, PutDocument, mark) == []


def test_with_too_few_targets_it_waits() -> None:
    bench = Bench(3)
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    gone = [target.id for target in having(bench, RECORD, id)]
    bench.stop(gone[0])
    bench.tick(AFTER_S + LOOK_S)
    live: list[TargetId] = [t.id for t in bench.targets.values() if t.session]
    assert [target.id for target in having(bench, RECORD, id)] == live


@pytest.mark.parametrize("kind", [INDEX, RECORD])
def test_copies_in_one_domain_get_one_in_another(kind: DocumentKind) -> None:
    """The commit promised that a host may be lost; where nobody else took a copy, none may."""
    bench = Bench(6, hosts=3)
    bench.tick(GATHERING_US / SECOND_US)
    id = bench.save(1)
    first, second = having(bench, kind, id)
    others = [one for one in bench.targets.values() if host_of(one) != host_of(first)]
    for one in others:
        one.refuses[PutDocument] = Failed("no_space", "the device is full")
    wipe(bench, second)
    bench.tick(LOOK_S)
    assert [host_of(one) for one in having(bench, kind, id)] == [host_of(first)] * 2
    for one in others:
        one.refuses.clear()
    bench.tick(LOOK_S)
    copies = having(bench, kind, id)
    assert len({host_of(one) for one in copies}) == 2
    mark = bench.mark()
    bench.tick(3 * LOOK_S)
    assert not any(bench.asked(one, PutDocument, mark) for one in bench.targets), "it is whole"


def host_of(target: FakeTarget) -> str:
    return target.domain.split("/")[2]


def test_a_look_at_many_goes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.protocol.coordinator.repairing.respreading.LOOKED_AT_ONCE", 2)
    bench, first = saved()
    ids = [first, *(bench.save(step) for step in range(2, 6))]
    wipe(bench, having(bench, INDEX, first)[0])
    mark = bench.mark()
    bench.tick(LOOK_S)
    slices = sum(isinstance(action, WorkLeft) for action in bench.log[mark:])
    assert slices == 2, "five in three slices, of which the first is the tick's own"
    assert [len(having(bench, INDEX, id)) for id in ids] == [2] * 5


def test_who_has_just_begun_looks_later() -> None:
    bench, id = saved()
    wipe(bench, having(bench, RECORD, id)[0])
    bench.restart(*bench.targets)
    mark = bench.mark()
    bench.tick(LOOK_S - 1)
    assert bench.sent(PutDocument, mark) == []
    bench.tick(2)
    assert len(having(bench, RECORD, id)) == 2
