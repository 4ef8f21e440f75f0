"""Writers that come back with a file that is not wanted any more, or with a question again."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import Generation, PayloadId
from ckpt.format.members import encode_members
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    Certified,
    CommitMembers,
    PayloadGivenUp,
    PayloadPlanned,
    RequestSpares,
)
from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.events import Received
from tests.protocol.coordinating import Bench
from tests.protocol.file_writers import Writer, committed, resolved_ranks


def test_a_file_that_was_replaced_does_not_come_back_to_who_dropped_it() -> None:
    bench = Bench()
    writer = Writer(bench)
    older, newer = writer.write("x", b"old"), writer.write("x", b"new")
    other = writer.write("y")
    writer.reconnect()
    (answer,) = older.resume()
    assert isinstance(answer, Failed)
    assert (answer.code, "discarded" in answer.message) == ("aborted", True)
    for file in (newer, other):
        assert isinstance(file.resume()[0], PayloadPlanned)
    committed(writer.commit(newer.checkpoint, newer, other))


def test_a_writer_of_many_files_and_who_repeats_a_commit_hear_of_its_end_once() -> None:
    bench = Bench()
    writer, asker = Writer(bench), bench.session()
    files = [writer.write("x"), writer.write("y")]
    bench.persist_at_once = False
    question = CommitMembers(files[0].checkpoint)
    wanted = encode_members([file.member for file in files])
    for _ in range(2):
        bench.feed(Received(bench.now_us, asker, 7, question, wanted))
    bench.persist_at_once = True
    bench.sync()
    for session in (asker, writer.session):
        told = [one for one in bench.to(session) if isinstance(one, AttemptCommitted)]
        assert len(told) == 1


def test_a_file_of_a_generation_that_nobody_knows_is_told_so_and_others_go_on() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    assert file.plan is not None
    known = file.plan
    unknown = replace(known.payload.checkpoint, generation=Generation(1, 99))
    file.plan = replace(known, payload=PayloadId(unknown, known.payload.rank))
    (answer,) = file.resume()
    assert isinstance(answer, AttemptAborted)
    file.plan = known
    assert isinstance(file.resume()[0], PayloadPlanned)


def test_a_file_cannot_be_taken_back_while_its_commit_waits_for_targets() -> None:
    bench = Bench()
    writer, asker = Writer(bench), bench.session()
    kept, late = writer.write("x"), writer.write("y")
    assert late.plan is not None
    away = list(bench.targets)[:3]
    bench.stop(*away)
    assert writer.commit(kept.checkpoint, kept, late, session=asker) == []
    given_up = PayloadGivenUp(late.plan.payload, "aborted", "removed")
    (answer,) = bench.tell(writer.session, given_up)
    assert isinstance(answer, Failed)
    for id in away:
        bench.start(id)
    bench.tick(2)
    (end,) = [one for one in bench.to(asker) if isinstance(one, AttemptCommitted)]
    assert end.info.checkpoint == kept.checkpoint
    assert resolved_ranks(bench, kept.checkpoint) == [0, 1]


def test_a_file_of_a_decided_commit_is_no_discarded_one_after_a_restart() -> None:
    """Its writer was asked to write it again, and it was being committed (files, seed 200)."""
    bench = Bench()
    writer = Writer(bench)
    left_out, file = writer.write("y"), writer.write("x")
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    writer.commit(file.checkpoint, file)
    bench.persist_at_once = False
    for id in bench.targets:
        bench.let_answer(str(id))  # The index is stored; the decision follows.
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    bench.sync()
    bench.persist_at_once = True
    bench.restart("t0", "t1", "t2", "t3")
    writer.reconnect()
    assert isinstance(file.resume()[0], PayloadPlanned)
    for target in bench.targets.values():
        target.columns.clear()  # It is rolled forward all the same.
    (answer,) = file.certify()
    assert isinstance(answer, Certified)
    (answer,) = left_out.resume()
    assert isinstance(answer, Failed)
    assert "was discarded" in answer.message
    for id in bench.targets:
        bench.let_answer(str(id))  # The record is stored.
    (end,) = [one for one in bench.to(writer.session) if isinstance(one, AttemptCommitted)]
    assert end.info.checkpoint == file.checkpoint


def test_what_is_asked_late_for_a_file_given_up_is_answered_for_that_file_alone() -> None:
    """The writer's other files lie in the same attempt: word that it was aborted would end them."""
    bench = Bench()
    writer = Writer(bench)
    kept, given = writer.write("x"), writer.open("y")
    assert given.plan is not None
    payload = given.plan.payload
    late = (PayloadGivenUp(payload, "unavailable", "too few"), RequestSpares(payload, 0, ("t0",)))
    for question in (*late, *late):
        (answer,) = bench.tell(writer.session, question)
        assert isinstance(answer, Failed)
        assert answer.code == "aborted"
    committed(writer.commit(kept.checkpoint, kept))
    for question in late:
        (answer,) = bench.tell(writer.session, question)
        assert isinstance(answer, Failed)
        assert "discarded" in answer.message
