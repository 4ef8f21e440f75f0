"""Where the columns of what the catalog names are: read from indexes, which may be away, damaged or
gone, before anything is said of them.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.format.documents.record import decode_record
from ckpt.format.index.pages import HEADER_BYTES
from ckpt.format.index.reader import decode_index
from ckpt.format.messages import Message
from ckpt.format.messages.asking import RollBack, RolledBack
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import DamageJudged, ReportDamage, Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind, ReadDocument
from ckpt.format.messages.saving import AttemptCommitted
from ckpt.format.messages.targets import DropColumn, DropGeneration
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.placing import PATIENCE_US, RETRY_US
from ckpt.testing.indexes import encode_index
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake

INDEX = DocumentKind.INDEX
RETRY_S = RETRY_US / SECOND_US


def kept(bench: Bench, id: CheckpointId) -> KeptCheckpoint:
    found = bench.machine.checkpoints.get(id)
    assert found is not None
    return found


def holders(bench: Bench, id: CheckpointId) -> list[FakeTarget]:
    return [t for t in bench.targets.values() if (INDEX, id) in t.documents]


def flip(target: FakeTarget, id: CheckpointId, *places: int) -> None:
    document = bytearray(target.documents[INDEX, id])
    for place in places:
        document[place] ^= 1
    target.documents[INDEX, id] = bytes(document)


def newest(bench: Bench) -> list[Message]:
    return bench.tell(bench.session(), Resolve(RUN, None, timeout_us=60 * SECOND_US))


def begun_again(bench: Bench, *targets: TargetId) -> None:
    """A coordinator that knows the catalog alone; these come, all by default."""
    bench.restart(*(targets or bench.targets))


def check_read(bench: Bench, id: CheckpointId, placement: object) -> None:
    (answer,) = newest(bench)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint == id
    assert kept(bench, id).placement == placement


def test_a_start_finds_where_columns_are_in_each_index_and_reads_no_more_of_it() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in range(1, 30)]
    placements = [kept(bench, id).placement for id in ids]
    mark = bench.mark()
    begun_again(bench)
    assert [kept(bench, id).placement for id in ids] == placements
    asked = [each for t in bench.targets for each in bench.asked(t, ReadDocument, mark)]
    assert sorted(each.checkpoint for each in asked) == ids


def test_nothing_is_read_in_its_turn_before_the_targets_vouch() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in range(1, 4)]
    mark = bench.mark()
    bench.restart("t0", "t1")
    assert not bench.machine.vouching.serves
    bench.tick(1)
    assert bench.sent(ReadDocument, mark) == []
    bench.start("t2")
    assert bench.machine.vouching.serves
    bench.start("t3")
    assert all(kept(bench, id).placement is not None for id in ids)


def test_what_a_generation_costs_the_catalog_does_not_grow_with_its_ranks() -> None:
    sizes = []
    for ranks in (1, 64):
        bench = Bench(12, "8+2")
        bench.save(1, world_size=ranks)
        (decided,) = [e for e in bench.durable if isinstance(e, catalog.AttemptDecided)]
        sizes.append(len(decided.record))
        entries = [e for e in bench.durable if getattr(e, "checkpoint", None) is not None]
        assert len(entries) == 3, "opened, decided, committed"
    assert max(sizes) - min(sizes) < 16
    assert max(sizes) <= 4096


def test_a_load_waits_until_who_has_the_index_is_here() -> None:
    bench = Bench()
    id = bench.save(1)
    placement = kept(bench, id).placement
    having = [target.id for target in holders(bench, id)]
    begun_again(bench, *(id for id in bench.targets if id not in having))
    reader = bench.session()
    assert bench.tell(reader, Resolve(RUN, None, timeout_us=60 * SECOND_US)) == []
    assert kept(bench, id).placement is None
    bench.start(having[0])
    assert kept(bench, id).placement == placement
    (answer,) = bench.to(reader)
    assert isinstance(answer, Resolved)


def test_a_damaged_part_comes_from_the_next_copy() -> None:
    bench = Bench()
    id = bench.save(1)
    placement = kept(bench, id).placement
    first, last = holders(bench, id)
    # Neither header of the first, and a page or a directory of the last: none is whole.
    flip(first, id, 21, HEADER_BYTES + 21)
    flip(last, id, len(last.documents[INDEX, id]) - 5)
    begun_again(bench)
    check_read(bench, id, placement)


@pytest.mark.parametrize("how", ["silent", "refuses", "another", "gone"])
def test_who_does_not_give_it_is_passed_over(how: str) -> None:
    bench = Bench()
    id = bench.save(1)
    placement = kept(bench, id).placement
    first, last = holders(bench, id)
    begun_again(bench, *(t for t in bench.targets if t not in (first.id, last.id)))
    bench.start(first)
    # Its list names the index: only the reading shows that it does not give it.
    kept(bench, id).placement = None
    match how:
        case "silent":
            first.silent.add(ReadDocument)
        case "refuses":
            first.refuses[ReadDocument] = Failed("unavailable", "the disk is busy")
        case "another":
            first.documents[INDEX, id] += b"more"
        case "gone":
            del first.documents[INDEX, id]
    bench.start(last)
    if how == "silent":
        bench.tick(PATIENCE_US / SECOND_US)
    check_read(bench, id, placement)


def test_what_nobody_gave_is_tried_again_and_people_hear_of_it_once() -> None:
    bench = Bench()
    id = bench.save(1)
    placement = kept(bench, id).placement
    for target in holders(bench, id):
        target.refuses[ReadDocument] = Failed("unavailable", "the disk is busy")
    mark = bench.mark()
    begun_again(bench)
    bench.tick(RETRY_S)
    bench.tick(RETRY_S)
    told = [each for each in bench.reports(mark) if each.text == "its index cannot be read"]
    assert len(told) == 1
    assert "the disk is busy" in dict(told[0].fields)["reason"]
    assert kept(bench, id).placement is None
    for target in holders(bench, id):
        del target.refuses[ReadDocument]
    bench.tick(RETRY_S)
    check_read(bench, id, placement)


def test_an_index_that_nobody_has_is_found_lost_by_who_asks_for_it() -> None:
    bench = Bench()
    older, id = bench.save(1), bench.save(2)
    for target in holders(bench, id):
        del target.documents[INDEX, id]
    begun_again(bench)
    (answer,) = newest(bench)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint == older
    assert kept(bench, id).state is RowState.DAMAGED
    assert "no index any more" in kept(bench, id).reason


def test_one_whose_holder_is_away_is_lost_by_nobody_s_word() -> None:
    bench = Bench()
    id = bench.save(1)
    first, last = holders(bench, id)
    del first.documents[INDEX, id]
    begun_again(bench, *(t for t in bench.targets if t != last.id))
    assert newest(bench) == []
    bench.tick(RETRY_S)
    assert kept(bench, id).state is RowState.COMMITTED
    bench.start(last)
    assert isinstance(newest(bench)[0], Resolved)


def test_strays_go_once_it_is_known_which_they_are() -> None:
    bench = Bench(5, "2+2")
    id = bench.save(1)
    having = [target.id for target in holders(bench, id)]
    (stray,) = [t for t in bench.targets.values() if not t.columns]
    column = ColumnId(PayloadId(id, Rank(0)), ColumnNumber(0))
    stray.columns[column] = stray.proof(column, "2+2", 10_000)
    mark = bench.mark()
    begun_again(bench, *(t for t in bench.targets if t not in having))
    if stray.id in having:
        bench.targets[stray.id].refuses[ReadDocument] = Failed("unavailable", "busy")
        bench.start(stray)
    assert bench.asked(stray.id, DropColumn, mark) == []
    for other in having:
        if other != stray.id:
            bench.start(other)
    assert column not in stray.columns


def test_a_stager_hears_what_its_save_survives_not_less_because_an_index_is_unread() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    rank.certify()
    (before,) = rank.commits()
    held = holders(bench, rank.payload.checkpoint)
    for target in held:
        target.silent.add(ReadDocument)
    begun_again(bench)
    rank.reconnect()
    assert rank.resume(1, before.info.checkpoint) == []
    for target in held:
        target.silent.discard(ReadDocument)
    bench.tick(PATIENCE_US / SECOND_US)
    bench.tick(RETRY_S)
    bench.tick()
    told = [each for each in rank.heard if isinstance(each, AttemptCommitted)]
    assert [each.info.targets_survivable for each in told] == [1]


def test_one_that_is_decided_and_not_committed_says_what_its_index_says() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.durable = [e for e in bench.durable if not isinstance(e, catalog.RowCommitted)]
    begun_again(bench)
    bench.tick()
    assert kept(bench, id).state is RowState.COMMITTED
    assert kept(bench, id).placement is not None
    assert bench.machine.checkpoints.info_now(kept(bench, id)).targets_survivable == 1


def test_what_was_committed_after_a_start_is_placed_when_who_has_its_index_is_back() -> None:
    """All that the start knew was placed: what came later was looked at after a rest alone."""
    bench = Bench()
    id = bench.save(1)
    placement = kept(bench, id).placement
    bench.durable = [e for e in bench.durable if not isinstance(e, catalog.RowCommitted)]
    having = [target.id for target in holders(bench, id)]
    for target in having:
        bench.targets[target].silent.add(ReadDocument)
    begun_again(bench)
    bench.tick(0.1)
    for target in having:
        bench.stop(target)
        bench.targets[target].silent.discard(ReadDocument)
    assert kept(bench, id).state is RowState.COMMITTED
    assert kept(bench, id).placement is None
    bench.start(having[0])
    assert kept(bench, id).placement == placement


def test_a_rollback_and_a_report_of_damage_wait_for_the_index() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    held = {t.id: t for id in (first, second) for t in holders(bench, id)}.values()
    for target in held:
        target.silent.add(ReadDocument)
    begun_again(bench)
    person, reader = bench.session(), bench.session()
    assert bench.tell(person, RollBack(RUN, first.step)) == []
    report = ReportDamage(PayloadId(second, Rank(0)), "cannot be decoded")
    assert bench.tell(reader, report) == []
    for target in held:
        target.silent.discard(ReadDocument)
    bench.tick(PATIENCE_US / SECOND_US)
    assert isinstance(bench.to(reader)[-1], DamageJudged)
    assert isinstance(bench.to(person)[-1], RolledBack | Failed)


def test_a_deletion_that_a_start_finds_waits_for_every_target() -> None:
    """Its index may be gone, and so what says who has a part of it."""
    bench = Bench(5)
    id = bench.save(1)
    bench.save(2)
    record = decode_record(kept(bench, id).record_bytes)
    (*_, last) = [t for t in bench.targets if t not in record.index_targets]
    for target in bench.targets.values():
        target.silent.add(DropGeneration)
    bench.durable.append(catalog.CheckpointTombstoned(id, "expired"))
    for target in holders(bench, id):
        del target.documents[INDEX, id]
    begun_again(bench, *(t for t in bench.targets if t != last))
    for target in bench.targets.values():
        target.silent.discard(DropGeneration)
    bench.tick(RETRY_S)
    assert bench.states()[str(id)] == "tombstoned"
    bench.start(last)
    bench.tick(RETRY_S)
    assert bench.states()[str(id)] == "deleted"


def test_an_index_that_gave_way_to_a_later_one_of_its_attempt_places_nothing() -> None:
    """A column moved before the decision: the first index, as long as the second one, is where the
    first try had put it.
    """
    bench = Bench(6)
    id = bench.save(1)
    placement = kept(bench, id).placement
    having = holders(bench, id)
    (other, *_) = (t for t in bench.targets.values() if t not in having)
    stale = bytearray(having[0].documents[INDEX, id])
    index = decode_index(bytes(stale))
    (payload,) = index.payloads
    moved = (payload.columns[1], payload.columns[0], *payload.columns[2:])
    first_try = encode_index(replace(index, payloads=(replace(payload, columns=moved),)))
    assert len(first_try) == len(stale)
    other.documents[INDEX, id] = first_try
    begun_again(bench, *(id for id in bench.targets if id != having[0].id))
    assert kept(bench, id).placement == placement
    having[1].refuses[ReadDocument] = Failed("corrupt", "it is damaged here")
    begun_again(bench, *(id for id in bench.targets if id != having[0].id))
    bench.tick(10)
    assert kept(bench, id).placement is None, "nobody has it whole"
    bench.start(having[0].id)
    bench.tick(RETRY_US / SECOND_US + 1)
    assert kept(bench, id).placement == placement
