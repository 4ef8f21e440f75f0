"""Commit records and tombstones: one page at most, whole or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import (
    CheckpointId,
    Generation,
    Home,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.limits import (
    CODE_PARITY_MAX,
    COMMIT_RECORD_BYTES_MAX,
    HOMES_MAX,
    INDEX_BYTES_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.format.documents.record import (
    RECORD_MAGIC,
    CommitRecord,
    Tombstone,
    decode_record,
    decode_tombstone,
    encode_record,
    encode_tombstone,
    fitting,
)
from ckpt.format.envelope import Packing, wrap
from ckpt.format.messages.metrics import METRIC_NAMES_BYTES_MAX, METRICS_MAX, check_metrics
from ckpt.format.messages.saving import CommitInfo
from tests.format.strategies import checkpoints, flipped, masks, positions, read_or_refused, u63

INFO = CommitInfo(
    checkpoint=CheckpointId(RunName("r"), Step(1), Generation(1, 1)),
    launch=LaunchNumber(1),
    world_size=4,
    code="4+2",
    payload_bytes=1 << 30,
    targets_survivable=2,
    domains_survivable=1,
    domain_level="host",
    committed_at_s=1.5e9,
    commit_us=1000,
    stall_us=10,
    slowest_rank=Rank(3),
    slowest_target=TargetId("t" * 64),
)
RECORD = CommitRecord("c" * 64, INFO, bytes(16), 12_345, (TargetId("t" * 64),) * 5, 1)


def named(checkpoint: CheckpointId) -> CommitRecord:
    """The record of another checkpoint."""
    return replace(RECORD, info=replace(INFO, checkpoint=checkpoint))


@given(checkpoints, u63)
def test_a_record_comes_back_equal_and_fits_a_page(checkpoint: CheckpointId, number: int) -> None:
    info = replace(INFO, checkpoint=checkpoint, launch=LaunchNumber(number))
    record = replace(RECORD, info=info, term=number)
    document = encode_record(record)
    assert len(document) <= COMMIT_RECORD_BYTES_MAX
    assert decode_record(document) == record
    assert decode_record(document + bytes(100)) == record


@given(checkpoints, st.text())
def test_a_tombstone_comes_back_with_its_reason_cut(checkpoint: CheckpointId, reason: str) -> None:
    tombstone = Tombstone("c1", checkpoint, 7, reason * 50)
    found = decode_tombstone(encode_tombstone(tombstone))
    assert found == replace(tombstone, reason=tombstone.reason[:256])


def test_the_largest_record_fits_a_page() -> None:
    run = RunName("\U0001f980" * 63 + "abc")
    info = replace(
        INFO, checkpoint=CheckpointId(run, Step((1 << 63) - 1), Generation(1 << 62, 1 << 62))
    )
    record = replace(RECORD, info=info)
    assert decode_record(encode_record(record)) == record
    tombstone = Tombstone("c" * 64, info.checkpoint, 1 << 63, "\U0001f980" * 1000)
    assert len(encode_tombstone(tombstone)) <= COMMIT_RECORD_BYTES_MAX


def test_the_largest_record_has_room_for_all_metrics_and_as_many_warnings_as_fit() -> None:
    big, generation = (1 << 63) - 1, Generation(1 << 62, 1 << 62)
    names = [f"{number:02}".ljust(METRIC_NAMES_BYTES_MAX // METRICS_MAX, "x")
             for number in range(METRICS_MAX)]  # fmt: skip
    metrics = check_metrics(dict.fromkeys(names, -1e300))
    warnings = ("\U0001f980" * 200,) * 2 + ("short",)
    run = RunName("\U0001f980" * 63 + "abc")
    info = replace(
        INFO, checkpoint=CheckpointId(run, Step(big), generation), launch=LaunchNumber(big),
        world_size=WORLD_SIZE_MAX, code="28+4", payload_bytes=big, commit_us=big, stall_us=big,
        fault_in_us=big, referenced_bytes=big, slowest_rank=Rank(WORLD_SIZE_MAX),
        columns_missing=WORLD_SIZE_MAX * 4, homes=(Home(Step(big), generation),) * HOMES_MAX,
        metrics=metrics, warnings=warnings,
    )  # fmt: skip
    targets = (TargetId("t" * 64),) * (CODE_PARITY_MAX + 1)
    record = fitting(CommitRecord("c" * 64, info, bytes(16), INDEX_BYTES_MAX, targets, big))
    assert decode_record(encode_record(record)).info == replace(info, warnings=())
    few = replace(record, info=replace(info, metrics={"loss": 0.1}))
    assert fitting(few).info.warnings == warnings


@pytest.mark.parametrize(
    "bad",
    [
        {"": 1.0}, {"a\nb": 1.0}, {"x" * 129: 1.0}, {"nan": float("nan")}, {"inf": float("-inf")},
        {str(number): 0.0 for number in range(65)},
        {f"{number:0100}": 0.0 for number in range(18)},
    ],
)  # fmt: skip
def test_metrics_that_no_record_may_have_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(Refused):
        check_metrics(bad)


@given(positions, masks)
def test_a_damaged_record_is_refused(position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_record(flipped(encode_record(RECORD), position, mask))


@given(st.binary(max_size=500))
def test_random_bytes_are_refused(noise: bytes) -> None:
    for document in (noise, wrap(RECORD_MAGIC, 1, noise, Packing.STORED)):
        with pytest.raises(Corrupt):
            decode_record(document)


@given(positions, masks)
def test_a_lying_coordinator_is_refused_or_read(position: int, mask: int) -> None:
    body = flipped(msgspec.msgpack.encode(RECORD), position, mask)
    found = read_or_refused(decode_record, wrap(RECORD_MAGIC, 1, body, Packing.STORED))
    assert found is None or len(found.index_digest) == 16


@pytest.mark.parametrize(
    "bad",
    [
        replace(RECORD, info=replace(INFO, code="40+2")),
        named(replace(INFO.checkpoint, run=RunName("../x"))),
        named(replace(INFO.checkpoint, step=Step(-1))),
        named(replace(INFO.checkpoint, generation=Generation(-1, 0))),
        replace(RECORD, index_digest=b"short"),
        replace(RECORD, index_bytes=1 << 40),
    ],
    ids=["code", "run", "step", "generation", "digest", "index bytes"],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(bad: CommitRecord) -> None:
    with pytest.raises(Corrupt):
        decode_record(encode_record(bad))


def test_a_record_is_no_tombstone() -> None:
    with pytest.raises(Corrupt, match="CKPS"):
        decode_tombstone(encode_record(RECORD))


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(Corrupt, match="version 2"):
        decode_record(wrap(RECORD_MAGIC, 2, msgspec.msgpack.encode(RECORD), Packing.STORED))
