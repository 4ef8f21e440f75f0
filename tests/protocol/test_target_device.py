"""A target counts what its device refuses, and finds out by itself when it is well again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET

from ckpt.base.ids import Epoch
from ckpt.base.limits import (
    DEVICE_CALM_US,
    DEVICE_FAILURES_MAX,
    DEVICE_PROBE_LAST_US,
    DEVICE_PROBE_US,
)
from ckpt.base.units import US_PER_S
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import VerifyColumn
from ckpt.format.messages.targets import DeviceReport, RenewLease, TargetRegistered
from ckpt.protocol.events import Session, SessionOpened
from ckpt.protocol.target.disk_events import ProbeFile, ReadAt
from ckpt.testing.disk import Fault
from tests.protocol.target_world import (
    COORDINATOR,
    WRITER,
    Column,
    TargetWorld,
    reserve,
    store,
    write,
)

EVER = 1 << 30
EIO = Fault("write", count=EVER)
NO_READ = Fault("read", count=EVER)


def renewals(world: TargetWorld, session: Session = COORDINATOR) -> list[RenewLease]:
    return [m for m in world.messages(session) if isinstance(m, RenewLease)]


def told(world: TargetWorld) -> object:
    """What the newest renewal says of the device."""
    world.tick()
    return renewals(world)[-1].device


def fail_columns(world: TargetWorld, count: int = DEVICE_FAILURES_MAX, first: int = 1) -> None:
    """So many columns, each of which the disk refuses at its first write."""
    for number in range(first, first + count):
        column = Column(rank=number)
        reserve(world, column, number)
        write(world, column, request=number, reservation=number, stripes=[0])


def probes(world: TargetWorld) -> list[ProbeFile]:
    return [action for action in world.performed if isinstance(action, ProbeFile)]


def test_nothing_is_told_of_a_device_that_refused_nothing() -> None:
    world = TargetWorld()
    store(world, Column())
    assert told(world) is UNSET
    assert probes(world) == []


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("write", "write"), ("sync", "sync"), ("rename", "create"), ("preallocate", "create"),
     ("sync_directory", "sync")],
)  # fmt: skip
def test_what_the_device_refuses_is_counted_by_kind(operation: str, kind: str) -> None:
    world = TargetWorld()
    world.disk.faults.append(Fault(operation, "EIO"))
    store(world, Column())
    latest = f"{kind}: EIO: Input/output error"
    assert told(world) == DeviceReport({kind: 1}, 1, latest)


@pytest.mark.parametrize("errno_name", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_full_device_has_not_failed(errno_name: str) -> None:
    world = TargetWorld()
    world.disk.faults.append(replace(EIO, errno_name=errno_name))
    fail_columns(world)
    assert told(world) == DeviceReport({"space": DEVICE_FAILURES_MAX}, 0)
    world.tick(DEVICE_PROBE_LAST_US)
    assert probes(world) == []


def test_that_it_fails_is_told_at_once_and_again_to_a_new_coordinator() -> None:
    world = TargetWorld()
    world.tick()
    renewals(world)
    world.disk.faults.append(EIO)
    fail_columns(world, DEVICE_FAILURES_MAX - 1)
    world.tick(1000)
    assert renewals(world) == [], "one that may be a bad sector waits for its turn"
    fail_columns(world, 1, first=DEVICE_FAILURES_MAX)
    world.tick(1000)
    report = DeviceReport({"write": 3}, 3, "write: EIO: Input/output error")
    assert [m.device for m in renewals(world)] == [report]

    later = Session(77)
    world.feed(SessionOpened(world.now_us, later, Role.COORDINATOR, ""))
    world.tell(later, TargetRegistered(1, Epoch(2), 3 * US_PER_S))
    world.tick(1000)
    assert [m.device for m in renewals(world, later)] == [report]


def test_a_device_that_fails_is_tried_ever_more_rarely_and_is_well_when_a_probe_succeeds() -> None:
    world = TargetWorld()
    world.disk.faults.append(replace(EIO))
    fail_columns(world)
    pause_us = DEVICE_PROBE_US
    for count in range(1, 12):
        world.tick(pause_us - 1)
        assert len(probes(world)) == count - 1
        world.tick(1)
        assert len(probes(world)) == count
        pause_us = min(2 * pause_us, DEVICE_PROBE_LAST_US)
    assert pause_us == DEVICE_PROBE_LAST_US
    world.disk.faults.clear()
    world.tick(pause_us - 1)
    renewals(world)
    world.tick(1)
    world.tick(1000)
    assert [m.device for m in renewals(world)][-1] == DeviceReport(
        {"write": 3}, 0, "probe: EIO: Input/output error"
    )
    assert not [file for file in world.disk.files() if "probe" in file]
    world.tick(DEVICE_PROBE_LAST_US)
    assert len(probes(world)) == 12, "a device that is well is left alone"


@pytest.mark.parametrize("operation", ["write", "sync", "read", "remove"])
def test_a_probe_fails_at_each_of_its_parts(operation: str) -> None:
    world = TargetWorld()
    world.disk.faults.append(Fault("write", count=DEVICE_FAILURES_MAX))
    fail_columns(world)
    world.disk.faults.append(Fault(operation, file="probe"))
    world.tick(DEVICE_PROBE_US)
    assert world.machine.device.is_failing
    assert world.machine.device.latest == "probe: EIO: Input/output error"
    world.tick(2 * DEVICE_PROBE_US)
    assert not world.machine.device.is_failing


def test_what_does_not_read_back_the_same_is_a_failure() -> None:
    world = TargetWorld()
    world.disk.faults.append(Fault("write", count=DEVICE_FAILURES_MAX))
    fail_columns(world)
    honest = world.disk.write_at
    world.disk.write_at = (
        lambda file, offset, data: honest(  # type: ignore[method-assign]
            file, offset, b"\x01" + bytes(data)[1:]
        )
    )
    world.tick(DEVICE_PROBE_US)
    assert world.machine.device.is_failing


def test_a_relapse_goes_on_with_the_pause_that_it_left() -> None:
    """It takes a small file, and no column."""
    world = TargetWorld()
    world.disk.faults.append(replace(EIO, file="reservation"))
    pause_us = DEVICE_PROBE_US
    for spell in range(4):
        fail_columns(world, first=1 + spell * DEVICE_FAILURES_MAX)
        world.tick(pause_us - 1)
        assert len(probes(world)) == spell
        world.tick(1)
        assert len(probes(world)) == spell + 1
        assert not world.machine.device.is_failing
        pause_us *= 2
    world.tick(DEVICE_CALM_US)
    fail_columns(world, first=50)
    world.tick(DEVICE_PROBE_US)
    assert len(probes(world)) == 5, "after a calm it begins anew"


def test_failures_that_lie_far_apart_do_not_add_up() -> None:
    world = TargetWorld()
    world.disk.faults.append(EIO)
    for number in range(2 * DEVICE_FAILURES_MAX):
        fail_columns(world, 1, first=1 + number)
        world.tick(DEVICE_CALM_US)
    assert probes(world) == []
    assert world.machine.device.errors == {"write": 2 * DEVICE_FAILURES_MAX}


@pytest.mark.parametrize("errno_name", ["ENOENT", "EACCES", "EPERM"])
def test_a_file_that_is_gone_or_is_not_ours_is_no_failure_of_the_device(errno_name: str) -> None:
    world = TargetWorld()
    column = Column()
    store(world, column)
    world.disk.faults.append(Fault("read", errno_name, count=EVER))
    for _ in range(DEVICE_FAILURES_MAX):
        world.tell(WRITER, VerifyColumn(column.id))
    assert world.machine.device.errors["read"] >= DEVICE_FAILURES_MAX
    assert world.machine.device.failures == 0


def test_a_full_device_answers_no_space_and_a_broken_one_failed() -> None:
    world = TargetWorld()
    world.disk.faults.append(EIO)
    fail_columns(world, 1)
    (failed,) = [m for m in world.messages(WRITER) if isinstance(m, Failed)]
    assert failed.code == "failed"


def failing(world: TargetWorld, seconds: float) -> None:
    """Its device refuses writes, and for so long its probes."""
    fail_columns(world, first=20)
    for _ in range(int(seconds * US_PER_S / DEVICE_PROBE_US)):
        world.tick(DEVICE_PROBE_US)


def test_a_device_that_neither_takes_nor_gives_anything_is_dead_after_a_while() -> None:
    """Its target answered for columns that nobody could read, and nobody made them again."""
    world = TargetWorld()
    store(world, Column())
    world.disk.faults += [replace(EIO), replace(NO_READ)]
    failing(world, 30)
    assert not world.machine.is_device_dead, "it may be back in a moment"
    failing(world, 120)
    assert world.machine.is_device_dead


@pytest.mark.parametrize(
    "read",
    [None, Fault("read", count=1), Fault("read", "ENOENT", count=EVER),
     Fault("read", "EMFILE", count=EVER)],
)  # fmt: skip
def test_a_device_that_gives_one_file_is_not_dead(read: Fault | None) -> None:
    """It may be mounted read-only, and one sector or one file may be gone."""
    world = TargetWorld()
    for rank in (1, 2):
        store(world, Column(rank=rank), reservation=rank)
    world.disk.faults += [replace(EIO), *([read] if read else [])]
    failing(world, 300)
    assert not world.machine.is_device_dead
    assert [action for action in world.performed if isinstance(action, ReadAt)]


def test_a_target_that_has_nothing_is_not_ended_for_its_device() -> None:
    world = TargetWorld()
    world.disk.faults += [replace(EIO), replace(NO_READ)]
    failing(world, 300)
    assert not world.machine.is_device_dead


def test_a_device_that_was_well_meanwhile_is_given_time_again() -> None:
    world = TargetWorld()
    store(world, Column())
    world.disk.faults += [replace(EIO), replace(NO_READ)]
    failing(world, 30)
    world.disk.faults.clear()
    world.tick(DEVICE_PROBE_LAST_US)
    world.disk.faults += [replace(EIO), replace(NO_READ)]
    failing(world, 30)
    assert not world.machine.is_device_dead
