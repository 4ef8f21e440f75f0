"""Terms that outlive a target, and what a start does with what it finds in its directory."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from msgspec import UNSET

from ckpt.aio.directory_scan import scan
from ckpt.base.ids import CheckpointId, Epoch, Generation, ReservationId, RunName, Step
from ckpt.base.limits import DEVICE_FAILURES_MAX, DEVICE_PROBE_US, LEASE_US, PAGE_BYTES
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import ColumnVerified, DocumentKind, VerifyColumn
from ckpt.format.messages.targets import (
    DropGeneration,
    Dropped,
    ListColumns,
    RegisterTarget,
    ReleaseReservation,
    RenewLease,
    Reserve,
    Reserved,
    TargetRegistered,
)
from ckpt.protocol.events import Send, Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import column_name
from ckpt.protocol.target.disk_events import WriteAt
from ckpt.protocol.target.term import (
    decode_coordinator,
    decode_term,
    encode_coordinator,
    encode_term,
)
from ckpt.testing.disk import FakeDisk, Fault, Keep
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    put_document,
    reserve,
    store,
)

PORT = ("connections_full", "descriptor_limit", "peers_turned_away", "strangers_evicted")


def _answers(world: TargetWorld) -> list[object]:
    return list(world.messages(COORDINATOR))


def _ready(disk: FakeDisk | None = None, boot: int = 11) -> TargetWorld:
    world = TargetWorld(disk, boot=boot)
    world.messages(COORDINATOR)
    return world


# --------------------------------------------------------------------------- terms

ONE, OTHER = b"one coordinator.", b"another of them."


def _come(world: TargetWorld, term: int) -> None:
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    world.tell(COORDINATOR, TargetRegistered(term, Epoch(term), 3_000_000))


def test_a_term_is_durable_before_any_of_its_commands_is_answered() -> None:
    world = TargetWorld(term=0)
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(COORDINATOR, TargetRegistered(3, Epoch(3), 3_000_000))
    world.tell(COORDINATOR, Reserve(3, ReservationId(1), 8192))
    for _ in range(4):
        assert _answers(world) == []
        assert world.machine.term == 0
        world.step()
    assert world.machine.term == 3
    world.step()
    assert _answers(world) == [Reserved(ReservationId(1))]
    world.disk.crash(Keep.NOTHING)
    assert TargetWorld(world.disk, boot=12, term=0).machine.term == 3


def test_a_command_of_a_lower_term_is_refused_and_does_nothing() -> None:
    world, column = _ready(), Column()
    store(world, column)
    _come(world, 5)
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, DropGeneration(4, CHECKPOINT))
    (answer,) = _answers(world)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert world.machine.column_count == 1


def test_a_coordinator_of_a_lower_term_is_cut_off_also_after_a_restart() -> None:
    world = _ready()
    _come(world, 5)
    again = TargetWorld(world.disk, boot=12, term=0)
    again.feed(SessionOpened(again.now_us, COORDINATOR, Role.COORDINATOR, ""))
    (register,) = again.messages(COORDINATOR)
    assert isinstance(register, RegisterTarget)
    assert register.term_seen == 5
    again.tell(COORDINATOR, TargetRegistered(4, Epoch(4), 3_000_000))
    assert [each.session for each in again.closed] == [COORDINATOR]
    assert not again.machine.registered


def _registered(term: int, process: bytes) -> TargetRegistered:
    return TargetRegistered(term, Epoch(term), 3_000_000, process)


def test_of_two_coordinators_of_one_term_the_first_is_obeyed_also_after_a_restart() -> None:
    """They began from copies of one catalog."""
    world = TargetWorld(term=0)
    for again in (False, True):
        if again:
            world = TargetWorld(world.disk, boot=12, term=0)
        world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
        (register,) = world.messages(COORDINATOR)
        assert isinstance(register, RegisterTarget)
        assert register.coordinator == (ONE if again else b"")
        world.tell(COORDINATOR, _registered(5, ONE))
        assert (world.machine.term, world.machine.registered) == (5, True)
        world.tell(COORDINATOR, _registered(5, OTHER))
        assert [each.reason for each in world.closed] == [
            "another coordinator of term 5: its catalog is a copy"
        ]


def test_it_is_the_first_as_soon_as_its_term_is_being_written() -> None:
    world = TargetWorld(term=0)
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    world.held = deque()
    world.tell(COORDINATOR, _registered(5, ONE))
    world.tell(COORDINATOR, _registered(5, OTHER))
    while world.held:
        world.step()
    assert [each.session for each in world.closed] == [COORDINATOR]
    assert scan(world.disk, 0).coordinator == ONE


@pytest.mark.parametrize("known", [b"", ONE])
def test_a_coordinator_of_before_says_not_who_it_is_and_is_obeyed(known: bytes) -> None:
    world = TargetWorld(term=0)
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, ""))
    world.tell(COORDINATOR, _registered(5, known))
    _come(world, 5)
    assert world.machine.registered
    _come(world, 6)
    assert (world.machine.term, scan(world.disk, 0).coordinator) == (6, b"")


def test_whose_term_it_is_counts_only_for_that_term() -> None:
    data = encode_coordinator(5, ONE)
    assert decode_coordinator(data, 5) == ONE
    assert decode_coordinator(data, 6) == b"", "a version of before raised it since"
    for broken in (b"", data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:]):
        assert decode_coordinator(broken, 5) == b""


def test_of_two_terms_that_arrive_at_once_the_higher_stays() -> None:
    world = _ready()
    world.held = deque()
    world.tell(COORDINATOR, TargetRegistered(6, Epoch(6), 3_000_000))
    world.tell(COORDINATOR, TargetRegistered(7, Epoch(7), 3_000_000))
    while world.held:
        world.step()
    assert world.machine.term == 7
    assert TargetWorld(world.disk, boot=12, term=0).machine.term == 7


@pytest.mark.parametrize("took_s", [0.5, 2.4, 9.5])
def test_the_lease_is_renewed_while_a_slow_disk_makes_the_term_durable(took_s: float) -> None:
    """As the coordinator counts, it runs from the registration on."""
    world = _ready()
    world.held = deque()
    _come(world, 6)
    world.messages(COORDINATOR)
    heard_us = [world.now_us]
    for tick in range(150):
        world.tick(us=100_000)
        if tick == took_s * 10:
            while world.held:
                world.step()
            world.held = None
        heard_us += [world.now_us for each in _answers(world) if isinstance(each, RenewLease)]
        assert world.machine.registered is (tick >= took_s * 10)
    assert max(later - one for one, later in pairwise([*heard_us, world.now_us])) < LEASE_US


def test_under_a_term_that_cannot_be_written_nothing_is_obeyed_and_all_is_read() -> None:
    """A device that went read-only before its coordinator started again still serves."""
    world, column = _ready(), Column()
    store(world, column)
    world.disk.faults.append(Fault("write", "EROFS", count=1 << 30))
    reserve(world, Column(rank=3), 7)
    _come(world, 6)
    assert (world.machine.term, world.machine.registered, world.closed) == (1, False, [])
    world.tell(COORDINATOR, ReleaseReservation(6, ReservationId(7)), request=0)
    world.messages(COORDINATOR)
    for term in (1, 6):
        world.tell(COORDINATOR, DropGeneration(term, CHECKPOINT), request=4)
        (failed,) = _answers(world)
        assert isinstance(failed, Failed)
        assert failed.code == "unavailable"
        assert "EROFS" in failed.message
    for _ in range(DEVICE_FAILURES_MAX):
        world.tick(us=DEVICE_PROBE_US)
    renewal = [each for each in _answers(world) if isinstance(each, RenewLease)][-1]
    assert renewal.device is not UNSET
    assert renewal.device.failures >= DEVICE_FAILURES_MAX
    world.tell(READER, VerifyColumn(column.id))
    assert world.messages(READER) == [
        ColumnVerified(column.id, False, column.layout.column_bytes, ())
    ]
    tried = len(world.performed)
    world.tick(us=DEVICE_PROBE_US // 2)
    assert len(world.performed) == tried, "while the device fails its probe goes first"

    world.disk.faults.clear()
    for _ in range(4):
        world.tick(us=4 * DEVICE_PROBE_US)
    assert (world.machine.term, world.machine.registered, world.closed) == (6, True, [])
    assert world.disk.list_directory("staging") == [], "what was to be released is"
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, DropGeneration(6, CHECKPOINT))
    assert [type(each) for each in _answers(world)] == [Dropped]


def test_commands_that_waited_for_a_term_that_cannot_be_written_are_answered() -> None:
    world = _ready()
    world.held = deque()
    world.disk.faults.append(Fault("sync"))
    world.tell(COORDINATOR, TargetRegistered(6, Epoch(6), 3_000_000))
    world.tell(COORDINATOR, DropGeneration(6, CHECKPOINT), request=4)
    world.messages(COORDINATOR)
    while world.held:
        world.step()
    assert [getattr(each, "code", "") for each in _answers(world)] == ["unavailable"]


def test_a_term_that_fails_behind_its_session_holds_nobody_out() -> None:
    world = _ready()
    world.held = deque()
    world.disk.faults.append(Fault("sync"))
    world.tell(COORDINATOR, TargetRegistered(6, Epoch(6), 3_000_000))
    later = Session(77)
    world.feed(SessionOpened(world.now_us, later, Role.COORDINATOR, ""))
    while world.held:
        world.step()
    world.held = None
    world.tell(later, TargetRegistered(7, Epoch(7), 3_000_000))
    assert (world.machine.term, world.machine.registered) == (7, True)


def test_a_command_from_a_session_that_was_not_dialed_cuts_it_off() -> None:
    world, column = _ready(), Column()
    store(world, column)
    world.tell(WRITER, DropGeneration(1, CHECKPOINT))
    assert [each.session for each in world.closed] == [WRITER]
    assert world.machine.column_count == 1


def test_the_coordinator_has_refused_nothing_that_another_peer_says() -> None:
    world = _ready()
    world.tell(WRITER, Failed("refused", "go away"))
    assert [each.session for each in world.closed] == [WRITER]
    assert world.reports == []
    assert world.machine.registered


def test_the_lease_is_renewed_each_second_with_counters() -> None:
    world, column = _ready(), Column()
    store(world, column)
    world.messages(COORDINATOR)
    for _ in range(20):
        world.tick(us=100_000)
    renewals = _answers(world)
    assert len(renewals) == 2
    last = renewals[-1]
    assert isinstance(last, RenewLease)
    assert last.counters["columns_sealed"] == 1
    assert last.counters["bytes_written"] == len(column.data)
    assert last.bytes_used == column.file_bytes


def test_the_lease_tells_how_it_stands_at_the_port() -> None:
    world = _ready()
    for full in (True, False):
        world.machine.note_peers(full=full, descriptor_limit=99, turned_away=7, evicted=5)
        for _ in range(11):
            world.tick(us=100_000)
        last = _answers(world)[-1]
        assert isinstance(last, RenewLease)
        told = {name: last.counters.get(name, 0) for name in PORT}
        assert told == dict(zip(PORT, (int(full), 99, 7, 5), strict=True))


def test_a_long_burst_is_told_when_it_begins_ever_more_rarely_and_when_it_ends() -> None:
    world, column = _ready(), Column(payload_bytes=1 << 22)
    assert column.layout.stripe_count >= 24
    reserve(world, column)
    world.tick(us=2_000_000)
    world.tell(WRITER, column.begin())
    world.messages(COORDINATOR)
    told_at: list[int] = []
    for tick in range(24):
        world.tell(WRITER, *column.fragment(tick))
        world.tick(us=100_000)
        told_at += [tick for each in _answers(world) if isinstance(each, RenewLease)]
    assert told_at == [0, 1, 3, 7, 15]
    world.tick(us=100_000)
    (last,) = _answers(world)
    assert isinstance(last, RenewLease)
    assert last.counters["fragments"] == 24


def test_a_term_file_refuses_damage() -> None:
    data = encode_term(77)
    assert decode_term(data) == 77
    assert decode_term(data[:-1]) is None
    assert decode_term(b"x" + data[1:]) is None


# --------------------------------------------------------------------------- the directory


def test_what_cannot_be_attributed_is_set_aside_and_never_deleted() -> None:
    world, column = _ready(), Column()
    store(world, column)
    file = f"columns/{column_name(column.id)}"
    size = world.disk.file_bytes(file)
    whole = bytes(world.disk.read_at(file, 0, size))
    disk = world.disk
    disk.write_at("columns/garbage", 0, b"not ours")
    disk.write_at("columns/renamed", 0, whole)
    disk.write_at("documents/strange", 0, whole)
    disk.write_at("staging/leftover", 0, b"never sealed")
    again = _ready(disk, boot=12)
    assert again.machine.column_count == 1
    assert disk.list_directory("columns") == [column_name(column.id)]
    assert disk.list_directory("staging") == []
    assert len(disk.list_directory("aside")) == 3
    assert again.machine.counters["set_aside"] == 3
    assert [each.text for each in again.reports] == ["set aside"] * 3


def test_one_bad_header_of_two_costs_nothing_and_both_set_the_file_aside() -> None:
    world, column = _ready(), Column()
    store(world, column)
    file = f"columns/{column_name(column.id)}"
    world.disk.rot(file, 100)
    assert _ready(world.disk, boot=12).machine.column_count == 1
    world.disk.rot(file, world.disk.file_bytes(file) - 100)
    last = _ready(world.disk, boot=13)
    assert last.machine.column_count == 0
    assert len(world.disk.list_directory("aside")) == 1


@pytest.mark.parametrize("errno_name", ["EACCES", "EIO", "EMFILE"])
def test_what_cannot_be_read_stays_where_it_is_and_counts_once_it_can(errno_name: str) -> None:
    """A wrong owner, a loose cable: it was put away, and came back by hand only."""
    world, columns = _ready(), [Column(rank=1), Column(rank=2)]
    for number, column in enumerate(columns, 1):
        store(world, column, reservation=number)
    names = sorted(column_name(column.id) for column in columns)
    world.disk.faults.append(Fault("read", errno_name, file=names[0], count=2))
    again = _ready(world.disk, boot=12)
    assert again.machine.column_count == 1
    assert again.disk.list_directory("columns") == names
    assert again.disk.list_directory("aside") == []
    (said,) = again.reports
    assert (said.text, dict(said.fields)) == (
        "not read, and left there", {"file": f"columns/{names[0]}", "error": errno_name},
    )  # fmt: skip
    assert _ready(world.disk, boot=13).machine.column_count == 2


def test_a_document_that_cannot_be_read_is_set_aside() -> None:
    """Its checkpoint may be deleted before it can be read again, and would be back with it."""
    world = _ready()
    put_document(world, DocumentKind.RECORD, b"record")
    world.disk.faults.append(Fault("read", "EIO", file="documents/", count=2))
    again = _ready(world.disk, boot=12)
    assert again.disk.list_directory("documents") == []
    assert len(again.disk.list_directory("aside")) == 1


def test_a_column_of_another_cluster_is_set_aside() -> None:
    world, column = _ready(), Column()
    store(world, column)
    other = TargetWorld(world.disk, boot=12, cluster="another")
    assert other.machine.column_count == 0
    assert len(world.disk.list_directory("aside")) == 1


def test_no_file_has_the_name_of_a_leftover_whose_removal_may_still_wait_for_the_disk() -> None:
    disk = FakeDisk(seed=5)
    left = ["catalog-7", "column", "probe-12", "reservation-1f-x", "term-1", "term-2"]
    TargetWorld(disk)
    for name in left:
        disk.write_at(f"staging/{name}", 0, b".")
    world = TargetWorld(disk, boot=12, term=2)
    put_document(world, DocumentKind.RECORD, b"record", term=2)
    written = {each.file for each in world.performed if isinstance(each, WriteAt)}
    assert len(written) > 1
    assert not written & {f"staging/{name}" for name in left}
    assert disk.list_directory("staging") == []


def test_a_directory_that_resists_is_reported_and_not_fatal() -> None:
    world, column = _ready(), Column()
    store(world, column)
    world.disk.write_at("columns/garbage", 0, b"not ours")
    world.disk.write_at("staging/leftover", 0, b".")
    world.disk.faults += [Fault("rename"), Fault("remove")]
    again = _ready(world.disk, boot=12)
    assert again.machine.column_count == 1
    texts = sorted(each.text for each in again.reports)
    assert texts == ["leftover not removed", "not set aside", "set aside"]


def test_equal_events_give_equal_actions() -> None:
    def story() -> list[Send]:
        world = TargetWorld(FakeDisk(seed=3))
        for rank in range(3):
            column = Column(rank=rank)
            store(world, column, request=20 + rank, reservation=rank + 1)
        put_document(world, DocumentKind.INDEX, bytes(300_000))
        world.tell(READER, ListColumns())
        return world.sent

    assert story() == story()


def test_long_run_names_are_only_ever_digests_on_disk() -> None:
    run = RunName("team a/" + "x" * 240)
    checkpoint = CheckpointId(run, Step(1), Generation(1, 1))
    world, column = _ready(), Column(checkpoint=checkpoint)
    store(world, column)
    (name,) = world.disk.list_directory("columns")
    assert "/" not in name
    assert "team" not in name


@pytest.mark.parametrize("size", [0, PAGE_BYTES - 1, PAGE_BYTES + 1])
def test_space_that_is_no_number_of_pages_is_refused_once_and_not_held(size: int) -> None:
    world = _ready()
    _answers(world)
    world.tell(COORDINATOR, Reserve(1, ReservationId(9), size), request=5)
    (answer,) = _answers(world)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert world.machine.counters["reservations"] == 0
