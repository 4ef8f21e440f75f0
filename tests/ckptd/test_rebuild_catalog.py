"""A lost catalog comes back from the targets' directories, and says what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpt.base.errors import Unavailable
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
from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.file import DocumentHeader, document_name, encode_document_header
from ckpt.format.documents.labels import Labels, decode_labels, encode_labels
from ckpt.format.documents.record import CommitRecord, Tombstone, encode_record, encode_tombstone
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexPayload
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy
from ckpt.protocol.target.term import PROTOCOL_FILE, encode_protocol, encode_term
from ckpt.testing.indexes import encode_index
from ckptd.catalog.rebuild import TERM_SKIP, RestingTarget, rebuild, write_rebuilt
from ckptd.catalog.sqlite import read_image
from ckptd.local.cluster_file import ClusterOptions, load_or_create
from tests.ckptd.catalogs import begin_term, opened

COLUMNS = (TargetId("t0"), TargetId("t1"), None)
CLUSTER = "c1"


def checkpoint(step: int, term: int = 3) -> CheckpointId:
    return CheckpointId(RunName("a run"), Step(step), Generation(term, step))


def index_of(id: CheckpointId) -> bytes:
    payload = IndexPayload(Rank(0), Code(2, 1), 4096, 131072, 0, 100, bytes(16), COLUMNS, (1, 2, 0))
    return encode_index(Index(id, LaunchNumber(5), 1, (payload,), ()))


def record_of(
    id: CheckpointId, index: bytes, term: int = 4, homes: Sequence[CheckpointId] = ()
) -> bytes:
    info = CommitInfo(
        checkpoint=id, launch=LaunchNumber(5), world_size=1, code="2+1", payload_bytes=4096,
        targets_survivable=0, domains_survivable=0, domain_level="device", committed_at_s=1.0,
        commit_us=1, stall_us=1, slowest_rank=Rank(0), slowest_target=TargetId("t0"),
        homes=tuple(map(Home.of, homes)),
    )  # fmt: skip
    targets = (TargetId("t0"), TargetId("t1"))
    return encode_record(CommitRecord(CLUSTER, info, xxh3_128(index), len(index), targets, term))


def store(target: Path, kind: DocumentKind, id: CheckpointId, document: bytes) -> Path:
    header = DocumentHeader(CLUSTER, kind.value, id, len(document), xxh3_128(document))
    page = encode_document_header(header)
    padded = document.ljust(header.padded_bytes, b"\0")
    path = target / "documents" / document_name(kind.value, id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page + padded * header.copies + page)
    return path


def commit(target: Path, id: CheckpointId, *homes: CheckpointId) -> Path:
    index = index_of(id)
    store(target, DocumentKind.INDEX, id, index)
    return store(target, DocumentKind.RECORD, id, record_of(id, index, homes=homes))


def test_what_has_a_record_and_its_index_comes_back_all_else_is_named(tmp_path: Path) -> None:
    t0, t1 = tmp_path / "t0", tmp_path / "t1"
    commit(t0, checkpoint(1))
    commit(t1, checkpoint(1))
    store(t0, DocumentKind.INDEX, checkpoint(2), index_of(checkpoint(2)))
    commit(t0, checkpoint(3))
    tombstone = encode_tombstone(Tombstone(CLUSTER, checkpoint(3), 9, "asked by a user"))
    store(t1, DocumentKind.TOMBSTONE, checkpoint(3), tombstone)
    store(t1, DocumentKind.RECORD, checkpoint(4), record_of(checkpoint(4), b"another index"))
    damaged = commit(t1, checkpoint(5))
    damaged.write_bytes(damaged.read_bytes().replace(b"CKPR", b"xxxx"))
    (t0 / "documents" / "junk").write_bytes(b"junk")
    (t1 / "term").write_bytes(encode_term(11))
    missing = tmp_path / "t2"

    sources = [RestingTarget(folder, CLUSTER) for folder in (t0, t1, missing)]
    found = rebuild(CLUSTER, sources)

    assert found.committed == (checkpoint(1),)
    row = found.image.rows[checkpoint(1)]
    assert (row.state, row.launch, row.world_size) == (RowState.COMMITTED, 5, 1)
    assert row.record == record_of(checkpoint(1), index_of(checkpoint(1)))
    reasons = {int(refusal.checkpoint.step): refusal.reason for refusal in found.refused}
    assert sorted(reasons) == [2, 3, 4, 5]
    assert "no commit record" in reasons[2]
    assert reasons[3] == "tombstoned: asked by a user"
    assert "index is on none" in reasons[4]
    assert "t0, t1" in reasons[4]
    assert "cannot be decoded" in reasons[5]
    assert found.image.rows[checkpoint(3)].state is RowState.DELETED
    assert (found.image.rebuilt_term, found.image.term) == (11, 11 + TERM_SKIP)
    assert found.image.passed_over == {checkpoint(4), checkpoint(5)}
    assert [name.split(":")[0] for name in found.unreachable] == [str(missing)]


def test_one_good_copy_of_a_damaged_document_is_enough(tmp_path: Path) -> None:
    path = commit(tmp_path / "t0", checkpoint(1))
    content = bytearray(path.read_bytes())
    content[0:10] = bytes(10)  # The first header page.
    content[PAGE_BYTES : PAGE_BYTES + 10] = bytes(10)  # The first copy.
    path.write_bytes(content)
    found = rebuild(CLUSTER, [RestingTarget(tmp_path / "t0", CLUSTER)])
    assert found.committed == (checkpoint(1),)


def test_a_deleted_home_comes_back_as_deleted_and_stays_for_what_refers_to_it(
    tmp_path: Path,
) -> None:
    commit(tmp_path / "t0", checkpoint(1))
    tombstone = encode_tombstone(Tombstone(CLUSTER, checkpoint(1), 9, "expired"))
    store(tmp_path / "t0", DocumentKind.TOMBSTONE, checkpoint(1), tombstone)
    commit(tmp_path / "t0", checkpoint(2), checkpoint(1))
    found = rebuild(CLUSTER, [RestingTarget(tmp_path / "t0", CLUSTER)])
    assert found.committed == (checkpoint(2),)
    home = found.image.rows[checkpoint(1)]
    assert (home.state, home.reason) == (RowState.TOMBSTONED, "tombstoned: expired")

    machine = CoordinatorMachine(
        CoordinatorPolicy(CLUSTER, Code(2, 1)), found.image, secret=b"s" * 32, wall_s=lambda: 0.0
    )
    kept = machine.checkpoints.get(checkpoint(1))
    assert kept is not None
    assert kept.users == {checkpoint(2)}


def test_what_refers_to_a_home_that_is_lost_comes_back_as_damaged(tmp_path: Path) -> None:
    commit(tmp_path / "t0", checkpoint(2), checkpoint(1))
    commit(tmp_path / "t0", checkpoint(3), checkpoint(2))
    found = rebuild(CLUSTER, [RestingTarget(tmp_path / "t0", CLUSTER)])
    assert found.committed == (checkpoint(3),), "the bytes of step 2 itself are there"
    row = found.image.rows[checkpoint(2)]
    assert row.state is RowState.DAMAGED
    assert f"refers to {checkpoint(1)}, which does not come back: no commit record" in row.reason
    assert [refusal.checkpoint for refusal in found.refused] == [checkpoint(2)]


@pytest.mark.parametrize("away", [1, 2])
def test_a_deleted_home_is_left_untouched_while_an_index_is_away(tmp_path: Path, away: int) -> None:
    """Of the home, or of what refers to it: both come back with the target that has it."""
    here, later = tmp_path / "t0", tmp_path / "t1"
    commit(here, checkpoint(1))
    tombstone = encode_tombstone(Tombstone(CLUSTER, checkpoint(1), 9, "expired"))
    store(here, DocumentKind.TOMBSTONE, checkpoint(1), tombstone)
    commit(here, checkpoint(2), checkpoint(1))
    index = here / "documents" / document_name(DocumentKind.INDEX.value, checkpoint(away))
    store(later, DocumentKind.INDEX, checkpoint(away), index_of(checkpoint(away)))
    index.unlink()
    found = rebuild(CLUSTER, [RestingTarget(here, CLUSTER)])
    assert found.committed == ()
    assert checkpoint(1) not in found.image.rows, "nothing of it is dropped"
    found = rebuild(CLUSTER, [RestingTarget(folder, CLUSTER) for folder in (here, later)])
    assert found.committed == (checkpoint(2),)
    assert found.image.rows[checkpoint(1)].state is RowState.TOMBSTONED


def labels(target: Path, id: CheckpointId, version: int, *names: str, pinned: bool = False) -> None:
    said = Labels(CLUSTER, id, Generation(4, version), names, pinned)
    store(target, DocumentKind.LABELS, id, encode_labels(said))


def test_what_was_said_last_of_a_checkpoint_comes_back(tmp_path: Path) -> None:
    t0, t1 = tmp_path / "t0", tmp_path / "t1"
    for target in (t0, t1):
        for step in (1, 2, 3):
            commit(target, checkpoint(step))
    labels(t0, checkpoint(1), 5, "best", "first")
    labels(t1, checkpoint(1), 7, "best", "kept", pinned=True)
    labels(t1, checkpoint(2), 9, "best")  # It was moved, and a crash left it on the first.
    labels(t0, checkpoint(3), 1, "old")
    labels(t1, checkpoint(3), 2)
    labels(t0, checkpoint(4), 1, "never committed")
    found = rebuild(CLUSTER, [RestingTarget(folder, CLUSTER) for folder in (t0, t1)])
    said = {id: decode_labels(document) for id, document in found.image.labels.items()}
    assert {id.step: (one.names, one.pinned) for id, one in said.items()} == {
        1: (("kept",), True),
        2: (("best",), False),
    }
    assert {id.step for id in found.image.unsettled} == {1, 2, 3}, "to be put on targets again"
    write_rebuilt(tmp_path / "c", found)
    with opened(tmp_path / "c", CLUSTER, CLUSTER) as catalog:
        assert catalog.image.labels == found.image.labels
        assert catalog.image.unsettled == found.image.unsettled


def test_labels_that_cannot_be_read_are_taken_from_a_backup(tmp_path: Path) -> None:
    commit(tmp_path / "t0", checkpoint(1))
    commit(tmp_path / "t0", checkpoint(2))
    labels(tmp_path / "t0", checkpoint(2), 3, "newer")
    backup = CatalogImage(4)
    for step, name in ((1, "kept"), (2, "older")):
        said = Labels(CLUSTER, checkpoint(step), Generation(4, step), (name,))
        backup.labels[checkpoint(step)] = encode_labels(said)
    found = rebuild(CLUSTER, [RestingTarget(tmp_path / "t0", CLUSTER)], backup)
    said_now = [decode_labels(document).names for document in found.image.labels.values()]
    assert said_now == [("newer",), ("kept",)]


def test_documents_of_another_cluster_do_not_count(tmp_path: Path) -> None:
    commit(tmp_path / "t0", checkpoint(1))
    found = rebuild("c2", [RestingTarget(tmp_path / "t0", "c2")])
    assert (found.committed, found.refused) == ((), ())


def test_without_any_target_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        rebuild(CLUSTER, [RestingTarget(tmp_path / "t0", CLUSTER)])


def test_the_command_replaces_the_catalog_and_keeps_the_old_one(tmp_path: Path) -> None:
    made = load_or_create(tmp_path, ClusterOptions(targets=2), "host", "test")
    for id in made.first_ids:
        (tmp_path / "targets" / id).mkdir(parents=True)
        (tmp_path / "targets" / id / "term").write_bytes(encode_term(7))
    begin_term(tmp_path, None, "lost")
    command = [sys.executable, "-m", "ckptd.cli", "rebuild-catalog", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    printed = json.loads(done.stdout)
    term = 7 + TERM_SKIP
    assert (printed["cluster"], printed["term"], printed["refused"]) == (made.cluster, term, [])
    cluster, image = read_image(tmp_path)
    assert (cluster, image.term, sorted(image.targets)) == (made.cluster, term, ["t0", "t1"])
    assert (tmp_path / "catalog.sqlite.1").exists()


def test_what_one_target_has_kept_is_needed_again(tmp_path: Path) -> None:
    """Its moves are found again by whoever leads: nobody may come who undoes them."""
    folders = [tmp_path / id for id in ("t0", "t1")]
    for folder in folders:
        commit(folder, checkpoint(1))
    sources = [RestingTarget(folder, CLUSTER) for folder in folders]
    assert rebuild(CLUSTER, sources).image.protocol == OLDEST_VERSION
    (folders[1] / PROTOCOL_FILE).write_bytes(encode_protocol(PROTOCOL_VERSION))
    found = rebuild(CLUSTER, sources)
    assert found.image.protocol == PROTOCOL_VERSION
    write_rebuilt(tmp_path / "coordinator", found)
    assert read_image(tmp_path / "coordinator")[1].protocol == PROTOCOL_VERSION
    # A copy of the catalog says it as well.
    (folders[1] / PROTOCOL_FILE).unlink()
    assert rebuild(CLUSTER, sources, CatalogImage(1)).image.protocol == PROTOCOL_VERSION
