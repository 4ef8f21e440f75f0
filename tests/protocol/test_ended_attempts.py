"""What a coordinator remembers of ended saves: how they ended, nothing of their size."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.format.messages.saving import AttemptCommitted
from tests.protocol.coordinating import Bench, RankFake


def commit(rank: RankFake, step: int) -> None:
    rank.open(step)
    rank.seal_all()
    rank.certify()


def test_an_ended_attempt_keeps_no_proofs_places_documents_or_tables() -> None:
    bench = Bench()
    commit(RankFake(bench), 1)
    (attempt,) = bench.machine.book.attempts.values()
    (payload,) = attempt.payloads.values()
    assert (attempt.index, attempt.record, attempt.record_bytes) == (b"", None, b"")
    assert not attempt.placement
    assert not payload.proofs
    assert (payload.table, payload.certify, payload.allotment) == (None, None, None)
    assert payload.planned is not None
    assert not payload.planned.places


def test_a_stager_that_asks_again_after_the_end_hears_of_the_same_commit() -> None:
    bench = Bench()
    rank = RankFake(bench)
    commit(rank, 1)
    (told,) = rank.commits()
    certificate = rank.certificate()
    rank.reconnect()
    heard = bench.tell(rank.session, replace(certificate, table_bytes=0))
    heard += rank.resume(1, told.info.checkpoint)
    commits = [message for message in heard if isinstance(message, AttemptCommitted)]
    assert commits
    assert {message.info.checkpoint for message in commits} == {told.info.checkpoint}
