"""Space on a target: who is given it, and what becomes of a stream whose space is given back."""

from __future__ import annotations

from collections import deque

from ckpt.base.ids import Epoch, ReservationId
from ckpt.base.limits import RENEW_US
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    DocumentStored,
    RegisterTarget,
    ReleaseReservation,
    RenewLease,
    Reserve,
    Reserved,
    TargetRegistered,
)
from ckpt.format.messages.writing import (
    ColumnSealed,
)
from ckpt.protocol.events import SessionClosed, SessionOpened
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import (
    Preallocate,
)
from ckpt.protocol.target.space import INODES_KEPT, REFUSED_FORGOTTEN_US
from ckpt.testing.disk import FakeDisk, Fault
from tests.protocol.target_world import (
    COORDINATOR,
    WRITER,
    Column,
    TargetWorld,
    put_document,
    reserve,
    store,
    write,
)


def _proofs(world: TargetWorld) -> list[ColumnSealed]:
    return [each for each in world.messages(WRITER) if isinstance(each, ColumnSealed)]


def _failed(world: TargetWorld) -> list[str]:
    return [each.code for each in world.messages(WRITER) if isinstance(each, Failed)]


def test_a_reservation_is_idempotent_and_refused_without_space() -> None:
    world = TargetWorld(FakeDisk(bytes_total=100 * 4096))
    world.messages(COORDINATOR)
    ask = Reserve(1, ReservationId(1), 60 * 4096)
    world.tell(COORDINATOR, ask, request=5)
    world.tell(COORDINATOR, ask, request=6)
    world.tell(COORDINATOR, Reserve(1, ReservationId(2), 60 * 4096), request=7)
    answers = world.messages(COORDINATOR)
    assert answers[:2] == [Reserved(ReservationId(1)), Reserved(ReservationId(1))]
    assert isinstance(answers[2], Failed)
    assert (answers[2].code, answers[2].retry_after_us) == ("no_space", 5_000_000)
    assert [type(a) for a in world.performed].count(Preallocate) == 1


def _levels(world: TargetWorld) -> tuple[int, int]:
    """What it tells of inodes, and of refused room, with its next renewal."""
    world.tick(RENEW_US)
    (*_, renewal) = [each for each in world.messages(COORDINATOR) if isinstance(each, RenewLease)]
    return renewal.counters["inodes_out"], renewal.counters["room_refused"]


def test_a_file_system_without_inodes_takes_no_column_and_documents_still() -> None:
    world = TargetWorld()
    world.disk.inodes_free = INODES_KEPT
    assert _levels(world) == (1, 0)
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), 60 * 4096))
    (failed,) = world.messages(COORDINATOR)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == (
        "no_space", f"target {world.machine.target} has no inodes left for more files",
    )  # fmt: skip
    assert "df -i" in failed.hint
    put_document(world, DocumentKind.TOMBSTONE, b"gone")
    (stored,) = world.messages(COORDINATOR)
    assert isinstance(stored, DocumentStored)
    world.disk.inodes_free = INODES_KEPT + 1
    assert _levels(world) == (0, 0)
    world.tell(COORDINATOR, Reserve(1, ReservationId(2), 60 * 4096))
    assert world.messages(COORDINATOR) == [Reserved(ReservationId(2))]


def test_space_that_is_refused_although_it_is_free_is_said_until_a_column_finds_room() -> None:
    """As a quota refuses it, which no figure of the file system shows."""
    world = TargetWorld()
    world.disk.faults.append(Fault("preallocate", "EDQUOT", count=2))
    for number in (1, 2):
        world.tell(COORDINATOR, Reserve(1, ReservationId(number), 60 * 4096))
        assert _levels(world) == (0, 1)
    world.tell(COORDINATOR, Reserve(1, ReservationId(3), 4096))
    assert _levels(world) == (0, 0)


def test_a_refusal_of_room_is_forgotten_when_nobody_meets_it_again() -> None:
    world = TargetWorld()
    world.disk.faults.append(Fault("preallocate", "EDQUOT"))
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), 60 * 4096))
    world.tick(REFUSED_FORGOTTEN_US - 1)
    assert _levels(world) == (0, 0)


def test_a_disk_that_others_fill_at_that_moment_is_full_and_has_no_quota() -> None:
    world = TargetWorld(FakeDisk(bytes_total=100 * 4096))
    world.disk.faults.append(Fault("preallocate", "ENOSPC"))
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), 60 * 4096))
    world.disk.preallocate("others", 70 * 4096)
    assert _levels(world) == (0, 0)


def test_a_reserve_that_comes_again_behind_its_column_holds_no_space() -> None:
    world, column = TargetWorld(), Column()
    store(world, column)
    world.messages(COORDINATOR)
    reserve(world, column)
    (answer,) = world.messages(COORDINATOR)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert world.disk.list_directory("staging") == []


def test_the_reserve_of_five_percent_is_never_given() -> None:
    world = TargetWorld(FakeDisk(bytes_total=1000 * 4096))
    world.tick(us=1)
    free = world.disk.space().bytes_free
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), free - 49 * 4096))
    world.tell(COORDINATOR, Reserve(1, ReservationId(2), free - 51 * 4096))
    first, second = world.messages(COORDINATOR)
    assert isinstance(first, Failed)
    assert second == Reserved(ReservationId(2))


def test_space_that_was_promised_is_not_promised_again_before_or_after_a_measurement() -> None:
    world = TargetWorld(FakeDisk(bytes_total=100 * 4096))
    world.messages(COORDINATOR)
    for number in (1, 2):
        world.tell(COORDINATOR, Reserve(1, ReservationId(number), 40 * 4096))
    world.tick(us=1)
    world.tell(COORDINATOR, Reserve(1, ReservationId(3), 40 * 4096))
    answers = world.messages(COORDINATOR)
    assert [type(each) for each in answers] == [Reserved, Reserved, Failed]
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(1)))
    world.tick(us=1)
    world.tell(COORDINATOR, Reserve(1, ReservationId(3), 40 * 4096))
    assert world.messages(COORDINATOR) == [Reserved(ReservationId(3))]


def test_a_capacity_below_the_device_is_kept() -> None:
    limits = TargetLimits(capacity_bytes=100 * 4096)
    world = TargetWorld(limits=limits)
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), 90 * 4096))
    world.tick(us=1)
    world.tell(COORDINATOR, Reserve(1, ReservationId(2), 10 * 4096))
    assert [type(each) for each in world.messages(COORDINATOR)] == [Reserved, Failed]


def test_registering_names_the_standing_reservations() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column, 4)
    world.messages(COORDINATOR)
    world.feed(SessionClosed(world.now_us, COORDINATOR))

    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    (register,) = world.messages(COORDINATOR)
    assert isinstance(register, RegisterTarget)
    assert (register.term_seen, register.reservations) == (1, (ReservationId(4),))
    world.tell(COORDINATOR, TargetRegistered(1, Epoch(1), 3_000_000))
    assert world.machine.registered


def test_registering_names_what_is_still_being_allocated_and_a_release_ends_it() -> None:
    """A target that was stopped finds commands of a session that has ended in its socket."""
    world, column = TargetWorld(), Column()
    world.held = deque()
    reserve(world, column, 4)
    world.messages(COORDINATOR)
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    (register,) = world.messages(COORDINATOR)
    assert isinstance(register, RegisterTarget)
    assert register.reservations == (ReservationId(4),)
    world.tell(COORDINATOR, TargetRegistered(1, Epoch(1), 3_000_000))
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(4)))
    while world.held:
        world.step()
    assert world.disk.list_directory("staging") == []


def test_what_was_given_back_ends_the_stream_that_uses_it() -> None:
    world, column, other = TargetWorld(), Column(), Column(column=2)
    reserve(world, column, 1)
    reserve(world, other, 2)
    write(world, column, reservation=1)
    write(world, other, request=21, reservation=2)
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(2)))
    assert _failed(world) == ["aborted"]
    world.tell(WRITER, other.seal, other.manifest, request=21)
    world.tell(WRITER, other.begin(2), request=22)
    assert _failed(world) == ["refused"]
    world.tell(WRITER, column.seal, column.manifest, request=20)
    assert [each.proof.column for each in _proofs(world)] == [column.id]
    assert world.disk.list_directory("staging") == []
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(1)))
    assert world.machine.column_count == 1


def test_what_was_given_back_is_free_when_the_last_write_to_it_has_ended() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column)
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(1)))
    assert len(world.disk.list_directory("staging")) == 1
    while world.held:
        world.step()
    assert world.disk.list_directory("staging") == []
    assert world.machine.space.held_bytes == 0


def test_a_seal_that_is_on_the_disks_way_ends_under_what_was_given_back() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(1)))
    while world.held:
        world.step()
    assert [each.proof.column for each in _proofs(world)] == [column.id]
    assert world.machine.space.held_bytes == 0
