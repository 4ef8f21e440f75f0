"""How fast lost columns were made again is noted, and known to the next coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import RepairSet, SetRepair
from ckpt.protocol.coordinator.repairing import measuring
from ckpt.protocol.coordinator.room import RoomSeen
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_repairing import Worker, holders, wipe

COLUMN_BYTES = 5000
PER_S = 500.0


@pytest.fixture(autouse=True)
def _little_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "NOTE_BYTES", COLUMN_BYTES // 2)


def measured(bench: Bench) -> dict[str, float] | None:
    repair: Any = bench.ask("repair")
    found: dict[str, float] | None = repair["measured"]
    return found


def working() -> Worker:
    """A payload of two such columns lacks one, and is in hand."""
    bench = Bench(5)
    wipe(bench, holders(bench, bench.save(1))[1])
    worker = Worker(bench)
    worker.lease()
    assert worker.leased.payload is not None
    return worker


def work(worker: Worker, seconds: int) -> None:
    """Two columns are read as fast as one is made."""
    for _ in range(seconds):
        worker.bench.tick(1)
        worker.read_bytes += round(2 * PER_S)
        worker.renew()


def test_it_is_noted_when_nothing_is_in_hand_any_more_and_the_next_one_knows_it() -> None:
    worker = working()
    bench = worker.bench
    work(worker, 8)
    assert measured(bench) is None, "it is under way"
    worker.seal()
    worker.end()
    bench.wall_s += 100
    bench.tick(1)
    found = measured(bench)
    assert found is not None
    assert found["bytes_per_s"] == pytest.approx(PER_S, rel=0.2)
    (answer,) = bench.tell(bench.session(Role.ADMIN), SetRepair(as_configured=True))
    assert isinstance(answer, RepairSet)
    bench.restart(*bench.targets)
    bench.tick(20)
    assert measured(bench) == found


def test_while_it_goes_on_it_is_noted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "NOTE_US", 3_000_000)
    worker = working()
    work(worker, 9)
    assert measured(worker.bench) is not None


def test_a_little_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "NOTE_BYTES", 2 * COLUMN_BYTES)
    worker = working()
    work(worker, 8)
    worker.seal()
    worker.end()
    worker.bench.tick(20)
    assert measured(worker.bench) is None


def test_a_full_catalog_is_given_nothing() -> None:
    worker = working()
    bench = worker.bench
    work(worker, 8)
    bench.feed(RoomSeen(bench.now_us, "it is full"))
    worker.seal()
    worker.end()
    bench.tick(2)
    assert measured(bench) is None
    bench.feed(RoomSeen(bench.now_us))
    bench.tick(2)
    assert measured(bench) is not None
