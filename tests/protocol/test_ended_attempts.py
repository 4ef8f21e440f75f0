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


def test_a_commit_that_was_not_heard_is_told_as_soon_as_its_targets_are_back() -> None:
    """Whoever asks before that is not asked to ask again: that takes seconds, and the coordinator
    may be another one by then.
    """
    bench = Bench()
    rank = RankFake(bench)
    commit(rank, 1)
    (told,) = rank.commits()
    *others, late = (str(place.target) for place in rank.places().values())
    bench.restart(*others, *(bench.targets.keys() - {*others, late}))
    rank.reconnect()
    rank.resume(1, told.info.checkpoint)
    bench.tick()
    assert bench.machine.vouching.serves
    assert rank.commits() == [], "it would promise too little"
    bench.start(late)
    bench.tick()
    (again,) = rank.commits()
    assert again.info.checkpoint == told.info.checkpoint
    assert again.info.targets_survivable == 1
    bench.tick(1)
    assert len(rank.commits()) == 1


def test_who_waits_to_hear_of_a_commit_and_leaves_is_forgotten() -> None:
    bench = Bench()
    rank = RankFake(bench)
    commit(rank, 1)
    (told,) = rank.commits()
    *others, late = (str(place.target) for place in rank.places().values())
    bench.restart(*others, *(bench.targets.keys() - {*others, late}))
    rank.reconnect()
    rank.resume(1, told.info.checkpoint)
    bench.close(rank.session)
    bench.start(late)
    mark = bench.mark()
    bench.tick()
    assert bench.sent(AttemptCommitted, mark) == []
