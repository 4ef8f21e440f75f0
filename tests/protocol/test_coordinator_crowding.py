"""A payload of which too many columns lie in one failure domain is spread again."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.targets import DropColumn
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.repairing import crowding
from ckpt.protocol.coordinator.repairing.crowding import LOOK_US
from ckpt.protocol.coordinator.repairing.tasks import LOOK_US as QUEUE_LOOK_US
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import NOTHING, Worker, holders, missing
from tests.protocol.test_coordinator_standings import change, done

LOOK_S = (LOOK_US + QUEUE_LOOK_US) / SECOND_US + 2


def to_host(bench: Bench, target: FakeTarget, host: int) -> None:
    """It is another machine's now, with all that it holds."""
    bench.stop(target.id)
    target.domain = f"p/r/h{host}/d{target.id[1:]}"
    target.reboot()
    bench.start(target)
    bench.tick(LOOK_S)


def hosts(bench: Bench, id: CheckpointId) -> list[str]:
    """Of the columns, ascending."""
    return sorted(target.domain.split("/")[2] for target in holders(bench, id))


def spread(worker: Worker) -> None:
    while worker.lease() != NOTHING:
        worker.seal()
        worker.end()
        worker.bench.tick(1)


def crowded(count: int = 5, code: str = "2+1") -> tuple[Bench, CheckpointId]:
    """The target of column 1 has come to the host of column 0's."""
    bench = Bench(count, code)
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    to_host(bench, second, int(first.id[1:]))
    return bench, id


def test_one_of_two_goes_where_no_other_is() -> None:
    bench, id = crowded()
    assert len(set(hosts(bench, id))) == 2
    worker = Worker(bench)
    leased = worker.lease()
    assert leased.payload is not None
    (one,) = leased.lost
    assert one.alone, "data is read where it is"
    old = holders(bench, id)[one.column]
    others = {target.id for target in holders(bench, id)}
    assert one.place.target not in others
    worker.seal()
    mark = bench.mark()
    worker.end()
    bench.tick(2)
    story = bench.story(mark, ColumnsMoved, DropColumn)
    assert [type(each) for each in story] == [ColumnsMoved, DropColumn]
    assert len(set(hosts(bench, id))) == 3
    assert not any(column.payload == leased.payload for column in old.columns)
    assert missing(bench, id) == 0
    bench.tick(LOOK_S)
    assert worker.lease() == NOTHING


def test_where_no_domain_has_a_place_nothing_is_due() -> None:
    bench, _ = crowded(3)
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    assert not bench.machine.repairs.waiting()
    assert not bench.machine.repairs.counts.problems


def test_as_many_go_as_there_are_places_for() -> None:
    bench = Bench(6, "2+2")
    id = bench.save(1)
    first, *others = holders(bench, id)
    for target in others:
        to_host(bench, target, int(first.id[1:]))
    assert len(set(hosts(bench, id))) == 1
    spread(Worker(bench))
    assert len(set(hosts(bench, id))) == 3, "two other hosts are left"
    assert missing(bench, id) == 0


def test_a_rule_that_allows_two_lets_two_lie_together() -> None:
    bench = Bench(8, "2+2", hosts=4, max_per_domain=2)
    id = bench.save(1)
    assert Worker(bench).lease() == NOTHING
    two = [target for target in holders(bench, id) if target.domain != holders(bench, id)[0].domain]
    to_host(bench, two[0], int(holders(bench, id)[0].domain.split("/")[2][1:]))
    spread(Worker(bench))
    found = hosts(bench, id)
    assert max(found.count(host) for host in found) == 2


def test_what_lacks_a_column_is_made_whole_first() -> None:
    bench, id = crowded()
    lost = holders(bench, id)[2]
    bench.stop(lost.id)
    lost.columns.clear()
    lost.reboot()
    bench.start(lost)
    bench.tick(LOOK_S)
    worker = Worker(bench)
    leased = worker.lease()
    assert [one.column for one in leased.lost] == [2]
    worker.seal()
    worker.end()
    bench.tick(LOOK_S)
    spread(worker)
    assert len(set(hosts(bench, id))) == 3
    assert missing(bench, id) == 0


def test_a_reader_keeps_the_old_place() -> None:
    bench, id = crowded()
    reader = bench.session()
    (found,) = bench.tell(reader, Resolve(RUN, id.step))
    assert isinstance(found, Resolved)
    mark = bench.mark()
    spread(Worker(bench))
    bench.tick(LOOK_S)
    assert not bench.sent(DropColumn, mark)
    bench.tell(reader, ReleasePin(found.pin))
    bench.tick(2)
    assert len(bench.sent(DropColumn, mark)) == 1


def test_what_is_drained_as_well_goes_once() -> None:
    bench, id = crowded()
    holder = holders(bench, id)[1]
    done(change(bench, holder.id, "draining"))
    bench.tick(LOOK_S)
    spread(Worker(bench))
    assert not any(column.payload.checkpoint == id for column in holder.columns)
    assert len(set(hosts(bench, id))) == 3
    assert missing(bench, id) == 0


def test_while_an_upgrade_is_not_finished_nothing_moves() -> None:
    bench = Bench(5, protocol=2)
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    to_host(bench, second, int(first.id[1:]))
    assert Worker(bench).lease() == NOTHING


def test_a_look_goes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "LOOKED_AT_ONCE", 1)
    bench = Bench(5)
    ids = [bench.save(step) for step in range(1, 6)]
    first, second, *_ = holders(bench, ids[0])
    to_host(bench, second, int(first.id[1:]))
    spread(Worker(bench))
    assert all(len(set(hosts(bench, id))) == 3 for id in ids)


def test_what_has_other_holders_is_looked_at_again_and_nothing_else() -> None:
    """A column that was made again beside one that came back late."""
    bench, id = crowded()
    bench.save(2)
    spread(Worker(bench))
    bench.tick(LOOK_S)
    moving = bench.machine.checkpoints.moving
    assert not moving.crowded
    assert not moving.take_replaced()
    bench.tick(LOOK_S)
    assert len(set(hosts(bench, id))) == 3
