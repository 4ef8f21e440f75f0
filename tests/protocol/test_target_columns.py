"""A column on its target: sealed whole and proved, or not there; whatever comes in whatever
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ckpt.base.ids import BootId, Epoch, ReservationId, TargetId
from ckpt.format.checksum import xxh3_128
from ckpt.format.manifest import RankManifest, decode_manifest, encode_manifest
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import (
    ByteRuns,
    ColumnVerified,
    RangeData,
    RangesDone,
    ReadRanges,
    VerifyColumn,
)
from ckpt.format.messages.targets import (
    LeaseRenewed,
    Reserve,
)
from ckpt.format.messages.writing import (
    AbandonColumn,
    ColumnAccepted,
    ColumnSealed,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import SessionClosed
from ckpt.protocol.proofs import check_proof
from ckpt.protocol.target.disk_events import (
    DiskAction,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)
from ckpt.testing.disk import FakeDisk, Fault, Keep
from tests.protocol.target_world import (
    CLUSTER,
    COORDINATOR,
    READER,
    SECRET,
    WRITER,
    Column,
    PowerCut,
    TargetWorld,
    reserve,
    store,
    write,
)


def _proofs(world: TargetWorld) -> list[ColumnSealed]:
    return [each for each in world.messages(WRITER) if isinstance(each, ColumnSealed)]


def _failed(world: TargetWorld) -> list[str]:
    return [each.code for each in world.messages(WRITER) if isinstance(each, Failed)]


def test_a_column_is_sealed_with_a_proof_that_the_coordinator_can_check() -> None:
    world, column = TargetWorld(), Column()
    store(world, column)
    (sealed,) = _proofs(world)
    proof = sealed.proof
    assert (proof.column, proof.target, proof.boot) == (column.id, TargetId("t1"), BootId(11))
    assert proof.column_crc == column.crc
    assert proof.manifest_digest == xxh3_128(column.manifest)
    assert check_proof(proof, CLUSTER, SECRET)
    assert not check_proof(proof, "another", SECRET)
    assert not check_proof(proof, CLUSTER, b"x" * 32)


def test_the_seal_writes_aside_syncs_renames_and_syncs_the_directory_before_it_answers() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    world.performed.clear()
    world.sent.clear()
    sent_at: list[int] = []
    world.before = lambda _action: sent_at.append(len(world.sent))
    world.tell(WRITER, column.seal, column.manifest, request=20)
    kinds: list[type[DiskAction]] = [type(action) for action in world.performed]
    assert kinds == [WriteAt, WriteAt, SyncFile, RenameFile, SyncDirectory]
    assert sent_at == [0] * 5
    assert len(world.sent) == 1


def test_fragments_may_come_in_any_order_and_twice() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    count = column.layout.stripe_count
    write(world, column, stripes=[*reversed(range(count)), 0, 1])
    world.tell(WRITER, column.seal, column.manifest, request=20)
    assert len(_proofs(world)) == 1
    assert world.machine.counters["fragments"] == count


def test_an_empty_payload_has_a_column_too() -> None:
    world, column = TargetWorld(), Column(payload_bytes=0)
    store(world, column)
    assert len(_proofs(world)) == 1


def test_a_larger_reservation_is_cut_to_the_columns_size() -> None:
    world, column = TargetWorld(), Column()
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), column.file_bytes + 40960))
    write(world, column)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    assert any(isinstance(action, TruncateFile) for action in world.performed)
    again = TargetWorld(world.disk, boot=12)
    assert again.machine.column_count == 1


def test_a_reservation_of_a_dead_stream_serves_the_same_column_again() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column, stripes=[0, 1])
    world.feed(SessionClosed(world.now_us, WRITER))
    write(world, column, request=21, session=READER)
    world.tell(READER, column.seal, column.manifest, request=21)
    assert any(isinstance(each, ColumnSealed) for each in world.messages(READER))


def test_a_newer_stream_takes_a_column_over_and_late_fragments_of_the_older_do_nothing() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column, stripes=[0])
    write(world, column, request=21, session=READER)
    assert _failed(world) == ["aborted"]
    world.tell(WRITER, Fragment(1, 0), b"\0" * column.layout.cell_bytes, request=20)
    world.tell(READER, column.seal, column.manifest, request=21)
    assert any(isinstance(each, ColumnSealed) for each in world.messages(READER))


def test_a_taken_over_file_is_not_written_before_the_old_writes_have_ended() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column, stripes=[0])
    world.tell(READER, column.begin(), request=21)
    assert not any(isinstance(each, ColumnAccepted) for each in world.messages(READER))
    world.step()
    assert [type(each) for each in world.messages(READER)] == [ColumnAccepted]


def test_a_repeated_begin_of_a_sealed_column_is_answered_with_its_proof() -> None:
    world, column = TargetWorld(), Column()
    store(world, column)
    (first,) = _proofs(world)
    world.tell(WRITER, column.begin(), request=30)
    assert world.messages(WRITER) == [first]


def test_an_abandoned_stream_gives_its_reservation_back() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column, stripes=[0])
    world.tell(WRITER, AbandonColumn(), request=20)
    assert world.machine.counters["streams"] == 0
    write(world, column, request=21)
    world.tell(WRITER, column.seal, column.manifest, request=21)
    assert len(_proofs(world)) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"reservation": ReservationId(9)}, "refused"),
        ({"code": "9"}, "refused"),
        ({"code": "1+0"}, "refused"),
        ({"cell_bytes": 1000}, "refused"),
        ({"payload_bytes": -1}, "refused"),
        ({"payload_bytes": 1 << 30}, "refused"),
    ],
)
def test_a_begin_that_does_not_fit_is_refused(change: dict[str, object], code: str) -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    message = structs.replace(column.begin(), **change)  # type: ignore[arg-type]
    world.tell(WRITER, message, request=20)
    assert _failed(world) == [code]
    assert world.machine.counters["streams"] == 0


def test_a_fragment_that_does_not_match_its_checksum_ends_that_column_only() -> None:
    world, column, other = TargetWorld(), Column(), Column(column=2)
    reserve(world, column, 1)
    reserve(world, other, 2)
    write(world, other, request=21, reservation=2)
    world.tell(WRITER, column.begin(), request=20)
    message, cell = column.fragment(0)
    world.tell(WRITER, message, b"!" + cell[1:], request=20)
    assert _failed(world) == ["corrupt"]
    world.tell(WRITER, other.seal, other.manifest, request=21)
    assert len(_proofs(world)) == 1


LIES: dict[str, Callable[[RankManifest], RankManifest]] = {
    "another payload": lambda said: replace(said, payload=Column(rank=1).id.payload),
    "another shape": lambda said: replace(said, payload_bytes=said.payload_bytes - 1),
    "another fragment": lambda said: replace(said, fragment_crcs=said.fragment_crcs ^ np.uint32(1)),
    "another column": lambda said: replace(said, column_crcs=said.column_crcs ^ np.uint32(1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_of_other_bytes_is_refused(lie: str) -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    foreign = encode_manifest(LIES[lie](decode_manifest(column.manifest)))
    world.tell(WRITER, SealColumn(len(foreign)), foreign, request=20)
    assert _failed(world) == ["corrupt"]
    assert world.disk.list_directory("columns") == []


def test_a_seal_with_stripes_missing_is_refused() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column, stripes=[0])
    world.tell(WRITER, column.seal, column.manifest, request=20)
    assert _failed(world) == ["refused"]


def test_a_manifest_in_parts_seals_at_its_last_part() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    total, half = len(column.manifest), len(column.manifest) // 2
    world.tell(WRITER, SealColumn(total, 0), column.manifest[:half], request=20)
    assert _proofs(world) == []
    world.tell(WRITER, SealColumn(total, half), column.manifest[half:], request=20)
    assert len(_proofs(world)) == 1


# --------------------------------------------------------------------------- buffers


def test_a_kept_bulk_is_released_once_and_only_after_its_write() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column)
    world.feed(SessionClosed(world.now_us, WRITER))
    assert world.released == []
    kept = list(world.kept)
    while world.held:
        world.step(len(world.held) - 1)
    assert sorted(world.released) == sorted(kept)


def test_writes_that_end_in_another_order_seal_the_same_column() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    while world.held:
        world.step(len(world.held) - 1)
    assert len(_proofs(world)) == 1
    world.held = None
    world.tell(READER, VerifyColumn(column.id))
    size = column.layout.column_bytes
    assert world.messages(READER) == [ColumnVerified(column.id, False, size, ())]


# --------------------------------------------------------------------------- the disk fails


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("errno_name", ["EIO", "ENOSPC"])
def test_a_disk_failure_refuses_that_column_and_others_go_on(
    operation: str, errno_name: str
) -> None:
    world, column, other = TargetWorld(), Column(), Column(column=2)
    reserve(world, column, 1)
    reserve(world, other, 2)
    world.disk.faults.append(Fault(operation, errno_name))
    write(world, column, reservation=1)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    expected = "no_space" if errno_name == "ENOSPC" else "failed"
    assert _failed(world) == [expected]
    write(world, other, request=21, reservation=2)
    world.tell(WRITER, other.seal, other.manifest, request=21)
    assert [each.proof.column for each in _proofs(world)] == [other.id]
    assert [name for name in world.disk.files() if name.startswith("staging/")] == []
    world.disk.crash(Keep.ALL)
    assert TargetWorld(world.disk, boot=12).machine.column_count == 1


def test_a_file_whose_sync_failed_is_never_tried_again() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    world.disk.faults.append(Fault("sync"))
    world.tell(WRITER, column.seal, column.manifest, request=20)
    assert _failed(world) == ["failed"]
    write(world, column, request=21)
    assert _failed(world) == ["refused"]
    reserve(world, column)
    write(world, column, request=22)
    world.tell(WRITER, column.seal, column.manifest, request=22)
    assert len(_proofs(world)) == 1
    world.disk.crash(Keep.NOTHING)
    again = TargetWorld(world.disk, boot=12)
    again.tell(READER, VerifyColumn(column.id))
    size = column.layout.column_bytes
    assert again.messages(READER) == [ColumnVerified(column.id, False, size, ())]


def test_what_the_next_process_lists_stays_wherever_the_one_before_was_killed() -> None:
    """The kill leaves all that was written; the power is lost later."""
    column, listed = Column(), []
    for steps in range(100):
        world = TargetWorld()
        reserve(world, column)
        write(world, column)
        world.held = deque()
        world.tell(WRITER, column.seal, column.manifest, request=20)
        for _ in range(steps):
            if world.held:
                world.step()
        ended = not world.held
        again = TargetWorld(world.disk, boot=12)
        listed.append(again.machine.column_count)
        world.disk.crash(Keep.NOTHING)
        assert TargetWorld(world.disk, boot=13).machine.column_count >= listed[-1]
        if ended:
            break
    assert sorted(set(listed)) == [0, 1]


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_at_any_action_leaves_a_whole_sealed_column_or_none(keep: Keep) -> None:
    """Every crash point from the reservation to after the proof, under each survival of the
    unsynced.
    """
    column = Column()
    outcomes = []
    for point in range(100):
        world = TargetWorld(FakeDisk(seed=point))
        count = 0

        def cut(_action: DiskAction, point: int = point) -> None:
            nonlocal count
            if count == point:
                raise PowerCut
            count += 1

        world.before = cut
        finished = True
        try:
            store(world, column)
        except PowerCut:
            finished = False
        proved = any(isinstance(each.message, ColumnSealed) for each in world.sent)
        world.disk.crash(keep)
        again = TargetWorld(world.disk, boot=12)
        again.tell(READER, VerifyColumn(column.id))
        (verified,) = again.messages(READER)
        assert isinstance(verified, ColumnVerified)
        assert verified.damaged == (), f"point {point}"
        assert not (proved and verified.missing), f"proved and lost at point {point}"
        assert again.disk.list_directory("staging") == []
        assert again.disk.list_directory("aside") == []
        outcomes.append((proved, verified.missing))
        if finished:
            break
    assert outcomes[0] == (False, True)
    assert outcomes[-1] == (True, False)
    assert len(outcomes) >= column.layout.stripe_count + 6


def test_a_restarted_target_serves_what_was_sealed_and_signs_with_its_new_boot() -> None:
    world, column = TargetWorld(), Column()
    store(world, column)
    again = TargetWorld(world.disk, boot=12)
    again.tell(READER, ReadRanges(column.id, (ByteRuns(100, 200),)))
    data, done = (each for each in again.sent if each.session == READER)
    assert isinstance(data.message, RangeData)
    assert data.bulk == column.data[100:200]
    assert done.message == RangesDone()
    again.tell(WRITER, column.begin(), request=20)
    (sealed,) = _proofs(again)
    assert sealed.proof.boot == 12
    assert check_proof(sealed.proof, CLUSTER, SECRET)


def test_a_lease_answer_from_a_stager_cuts_it_off() -> None:
    world = TargetWorld()
    world.tell(WRITER, LeaseRenewed(Epoch(99)))
    assert [each.session for each in world.closed] == [WRITER]
    assert world.machine.epoch == 1
