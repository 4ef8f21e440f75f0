"""What is known of a target's documents, generation by generation."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DocumentSummary
from ckpt.protocol.coordinator.cluster.holdings import HeldDocuments
from tests.protocol.coordinating import Bench

ONE, TWO = (CheckpointId(RunName("run"), Step(step), Generation(1, step)) for step in (1, 2))


def made(kind: DocumentKind, id: CheckpointId = ONE, digest: bytes = b"d" * 16) -> DocumentSummary:
    return DocumentSummary(kind, id, 7, digest)


def test_what_is_put_takes_the_place_of_another_of_its_kind() -> None:
    held = HeldDocuments()
    before, after = made(DocumentKind.INDEX), made(DocumentKind.INDEX, digest=b"e" * 16)
    other, record = made(DocumentKind.INDEX, TWO), made(DocumentKind.RECORD)
    for each in (before, before, other, record):
        held.add(each)
    assert sorted(held, key=lambda one: (one.checkpoint, one.kind.value)) == [before, record, other]
    held.put(after)
    assert list(held.of(ONE)) == [record, after]
    assert held.holds_any({before, after})
    assert not held.holds_any({before})
    assert list(held.of(TWO)) == [other]


def test_a_tombstone_stays_when_all_else_goes_and_then_goes_alone() -> None:
    held, tombstone = HeldDocuments(), made(DocumentKind.TOMBSTONE)
    for each in (made(DocumentKind.RECORD), tombstone, made(DocumentKind.LABELS, TWO)):
        held.add(each)
    assert held.checkpoints() == {ONE, TWO}
    held.drop(ONE)
    held.drop(TWO)
    assert (list(held), held.checkpoints(), held.has_more(ONE)) == ([tombstone], set(), False)
    assert (held.has_tombstone(ONE), held.has_tombstone(TWO)) == (True, False)
    held.drop_tombstone(ONE)
    assert list(held) == []


def test_a_save_and_a_deletion_look_at_no_other_generation_s_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, walks = Bench(keep=2), []
    for step in range(1, 4):
        bench.save(step)
    monkeypatch.setattr(HeldDocuments, "__iter__", lambda self: iter(walks.append(self) or ()))
    monkeypatch.setattr(HeldDocuments, "checkpoints", lambda self: walks.append(self) or set())
    last = bench.save(4)
    assert bench.states()[str(last)] == "committed"
    assert bench.states()["run@2#1.2"] == "deleted"
    assert walks == []
