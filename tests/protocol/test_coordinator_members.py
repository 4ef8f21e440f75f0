"""Files of one step meet in one attempt, and exactly those that a commit names are published."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, ColumnNumber, Generation, Step
from ckpt.format.checksum import xxh3_128
from ckpt.format.members import (
    Member,
    encode_members,
    entry_name,
    name_of_entry,
)
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import (
    AttemptAborted,
    CommitMembers,
    PayloadGivenUp,
    PayloadPlanned,
    RequestSpares,
    SparesNamed,
)
from ckpt.format.messages.targets import DropColumn, PutDocument, Reserve
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.saving.members import NUMBERS_HELD
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.file_writers import File, Writer, committed, refused, resolved_ranks


def test_files_of_two_writers_meet_in_one_attempt_and_commit_together() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    files = [a.write("x", b"abc"), b.write("y", b"defg"), a.write("z", b"")]
    assert [file.number for file in files] == [0, 1, 2]
    assert {file.checkpoint for file in files} == {files[0].checkpoint}
    info = committed(a.commit(files[0].checkpoint, *files))
    assert (info.launch, info.world_size) == (0, 3)
    assert resolved_ranks(bench, info.checkpoint) == [0, 1, 2]


def test_nothing_is_visible_before_the_commit() -> None:
    bench = Bench()
    writer = Writer(bench)
    writer.write("x")
    assert bench.ask("runs") == []
    assert bench.ask("files") == []


def test_a_file_that_the_commit_does_not_name_is_discarded_with_its_columns() -> None:
    bench = Bench()
    writer = Writer(bench)
    kept, other = writer.write("x"), writer.write("y")
    mark = bench.mark()
    info = committed(writer.commit(kept.checkpoint, kept))
    assert resolved_ranks(bench, info.checkpoint) == [kept.number]
    dropped = {drop.column.payload.rank for drop in bench.sent(DropColumn, mark)}
    assert dropped == {other.number}


def test_a_missing_member_refuses_the_commit_by_name_and_changes_nothing() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    absent = Member("1/y", 1, xxh3_128(b"x"))
    assert "1/y missing" in refused(writer.commit(file.checkpoint, file, absent))
    committed(writer.commit(file.checkpoint, file))


def test_a_file_that_is_not_certified_yet_is_missing() -> None:
    bench = Bench()
    writer = Writer(bench)
    file, open_one = writer.write("x"), writer.open("y")
    assert "1/y missing" in refused(writer.commit(file.checkpoint, file, open_one))
    open_one.seal_and_certify()
    committed(writer.commit(file.checkpoint, file, open_one))


@pytest.mark.parametrize("other", [b"xy", b"y"])
def test_a_differing_member_refuses_the_commit_by_name(other: bytes) -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x", b"x")
    wrong = Member("1/x", len(other), xxh3_128(other))
    assert "1/x written again" in refused(writer.commit(file.checkpoint, wrong))


def test_of_two_writers_of_one_name_the_last_file_wins() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    first, last = a.write("x", b"first"), b.write("x", b"last")
    assert "written again" in refused(a.commit(first.checkpoint, first))
    info = committed(a.commit(last.checkpoint, last))
    assert resolved_ranks(bench, info.checkpoint) == [last.number]


def test_a_slower_older_file_of_a_name_does_not_win() -> None:
    bench = Bench()
    writer = Writer(bench)
    older = writer.open("x", b"older")
    newer = writer.write("x", b"newer")
    older.seal_and_certify()
    info = committed(writer.commit(newer.checkpoint, newer))
    assert resolved_ranks(bench, info.checkpoint) == [newer.number]


def test_a_replaced_file_makes_room_when_the_next_one_opens() -> None:
    bench = Bench()
    writer = Writer(bench)
    first = writer.write("x", b"1")
    writer.write("x", b"2")
    mark = bench.mark()
    writer.open("y")
    assert {d.column.payload.rank for d in bench.sent(DropColumn, mark)} == {first.number}


def test_a_commit_of_a_file_alone_is_refused_while_others_wait() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    file = a.write("x")
    b.open("y")
    alone = CommitMembers(file.checkpoint, alone=True)
    answer = bench.tell(bench.session(), alone, encode_members([file.member]))
    assert "1/y of the same step" in refused(answer)


def test_a_commit_asked_again_is_answered_again() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    info = committed(writer.commit(file.checkpoint, file))
    assert committed(writer.commit(file.checkpoint, file)) == info
    bench.restart("t0", "t1", "t2", "t3")
    assert committed(writer.commit(file.checkpoint, file)).checkpoint == info.checkpoint


def test_a_file_of_a_committed_step_opens_the_next_generation() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    committed(writer.commit(file.checkpoint, file))
    later = writer.write("x")
    assert later.checkpoint.generation > file.checkpoint.generation
    committed(writer.commit(later.checkpoint, later))
    (view,) = bench.ask("files")  # type: ignore[misc]
    assert view["generation"] == str(later.checkpoint.generation)


def test_ranks_and_files_of_one_step_never_mix() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    writer = Writer(bench)
    file = writer.write("x")
    assert file.checkpoint != rank.payload.checkpoint
    rank.seal_all()
    rank.certify()
    assert rank.commits()
    assert "of ranks" in refused(writer.commit(rank.payload.checkpoint, file))
    committed(writer.commit(file.checkpoint, file))


def test_a_new_launch_of_the_run_does_not_end_the_files() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    bench.save(5)
    committed(writer.commit(file.checkpoint, file))


def test_an_attempt_of_ranks_cannot_be_committed_by_name() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    writer = Writer(bench)
    answer = writer.commit(rank.payload.checkpoint, Member("1/x", 1, xxh3_128(b"x")))
    assert "of ranks" in refused(answer)


def test_files_of_a_writer_that_stays_away_go_and_with_the_last_the_attempt() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    lost, kept = a.write("x"), b.write("y")
    bench.close(a.session)
    mark = bench.mark()
    bench.tick(16)
    assert {d.column.payload.rank for d in bench.sent(DropColumn, mark)} == {lost.number}
    assert "1/x missing" in refused(b.commit(kept.checkpoint, kept, lost))
    bench.close(b.session)
    bench.tick(16)
    assert bench.states() == {str(kept.checkpoint): "aborted"}
    for target in bench.targets.values():
        assert not target.reservations


def test_a_writer_that_is_back_in_time_keeps_its_files() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    bench.close(writer.session)
    bench.tick(10)
    writer.reconnect()
    assert isinstance(file.resume()[0], PayloadPlanned)
    bench.tick(30)
    committed(writer.commit(file.checkpoint, file))


def test_a_given_up_file_goes_alone() -> None:
    bench = Bench()
    writer = Writer(bench)
    kept, given = writer.write("x"), writer.write("y")
    assert given.plan is not None
    (answer,) = bench.tell(writer.session, PayloadGivenUp(given.plan.payload, "aborted", "removed"))
    assert isinstance(answer, Failed)
    assert "1/y missing" in refused(writer.commit(kept.checkpoint, kept, given))
    committed(writer.commit(kept.checkpoint, kept))


def test_a_certificate_of_a_discarded_file_fails_alone() -> None:
    bench = Bench()
    writer = Writer(bench)
    slow, file = writer.open("y"), writer.write("x")
    committed(writer.commit(file.checkpoint, file))
    slow.seal()
    (answer,) = slow.certify()
    assert isinstance(answer, Failed)
    assert (answer.code, "discarded" in answer.message) == ("aborted", True)


def test_a_table_of_another_name_or_without_a_fingerprint_is_refused() -> None:
    bench = Bench()
    file = Writer(bench).open("x")
    file.seal()
    members = (
        dataclasses.replace(file.member, name="1/y"),
        dataclasses.replace(file.member, fingerprint=b""),
    )
    for wrong in members:
        (answer,) = file.certify(wrong)
        assert isinstance(answer, Failed), wrong


def test_a_number_is_durable_before_it_is_told_and_never_given_twice() -> None:
    bench = Bench()
    writer = Writer(bench)
    bench.persist_at_once = False
    file = writer.open("x0")
    assert file.plan is None
    ((entry, _),) = [ticket.entries for ticket in bench.tickets]
    assert isinstance(entry, catalog.AttemptOpened)
    assert (entry.launch, entry.world_size) == (0, NUMBERS_HELD)
    bench.sync()
    bench.persist_at_once = True
    numbers = {writer.open(f"x{n}").number for n in range(1, NUMBERS_HELD + 5)}
    assert max(numbers) == NUMBERS_HELD + 4
    bench.restart("t0", "t1", "t2", "t3")
    writer.reconnect()
    again = writer.open("again")
    assert again.checkpoint == entry.checkpoint
    assert again.number >= 2 * NUMBERS_HELD


def test_after_a_restart_writers_come_back_and_a_commit_waits_for_them() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    mine, other = a.write("x"), b.write("y")
    bench.restart("t0", "t1", "t2", "t3")
    a.reconnect()
    mine.resume()
    mine.certify()
    (answer,) = a.commit(mine.checkpoint, mine, other)
    assert isinstance(answer, Failed)
    assert (answer.code, answer.retry_after_us) == ("unavailable", SECOND_US)
    b.reconnect()
    other.resume()
    other.certify()
    committed(a.commit(mine.checkpoint, mine, other))


def test_a_file_that_was_replaced_does_not_come_back_after_a_restart() -> None:
    """Its proofs were true, its columns are gone, and so is the coordinator that dropped them."""
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    older = a.write("x", b"older")
    b.write("x", b"newer")
    b.open("y")  # With the next file what was replaced goes; then this writer dies.
    bench.restart("t0", "t1", "t2", "t3")
    a.reconnect()
    older.resume()
    (answer,) = older.certify()
    assert isinstance(answer, Failed)
    assert "was discarded: it was replaced" in answer.message
    assert bench.states() == {str(older.checkpoint): "open"}
    bench.tick(1)
    (refused,) = a.commit(older.checkpoint, older)
    assert isinstance(refused, Failed), "nothing of it may be committed"


def test_space_that_a_discarded_file_had_asked_for_goes_back() -> None:
    bench = Bench()
    a, b = Writer(bench, "host/1/a"), Writer(bench, "host/2/b")
    older = a.write("x", b"older")
    b.write("x", b"newer")
    b.open("y")
    bench.restart("t0", "t1", "t2", "t3")
    a.reconnect()
    older.resume()
    assert older.plan is not None
    spares = RequestSpares(older.plan.payload, ColumnNumber(0), ())
    (named,) = bench.tell(a.session, spares)
    assert isinstance(named, SparesNamed)
    (spare,) = named.spares
    assert spare.reservation in bench.targets[spare.target].reservations
    older.certify()
    assert spare.reservation not in bench.targets[spare.target].reservations


def test_a_recovered_list_to_which_nobody_comes_back_ends() -> None:
    bench = Bench()
    file = Writer(bench).write("x")
    bench.restart("t0", "t1", "t2", "t3")
    bench.tick(61)
    assert bench.states() == {str(file.checkpoint): "aborted"}


def test_a_decided_commit_is_rolled_forward_after_a_restart() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    writer.commit(file.checkpoint, file)
    for id in bench.targets:
        bench.let_answer(str(id))  # The index is stored; the decision follows.
    bench.restart("t0", "t1", "t2", "t3")
    bench.tick(2)
    assert committed(writer.commit(file.checkpoint, file)).checkpoint == file.checkpoint


def test_a_file_below_the_floor_waits_for_its_targets_then_aborts_the_commit() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    bench.stop("t0", "t1", "t2")
    session = bench.session()
    assert writer.commit(file.checkpoint, file, session=session) == []
    mark = bench.mark()
    bench.tick(12)
    (answer,) = bench.to(session, mark)
    assert isinstance(answer, AttemptAborted)
    assert answer.code == "unavailable"


def test_a_lack_of_space_refuses_the_file_alone() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x")
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "full")
    assert writer.open("y").plan is None
    committed(writer.commit(file.checkpoint, file))


def test_the_open_list_is_told_to_who_asks() -> None:
    bench = Bench()
    writer = Writer(bench)
    file = writer.write("x", b"abc")
    writer.open("y")
    listed = bench.ask("members", RUN, 1)
    assert listed == {
        "generation": str(file.checkpoint.generation),
        "members": [{"name": "1/x", "length": 3, "fingerprint": xxh3_128(b"abc").hex()}],
    }
    assert bench.ask("members", RUN, 2) == {"generation": "", "members": []}


def test_a_commit_of_what_nobody_knows_is_told_as_aborted() -> None:
    bench = Bench()
    writer = Writer(bench)
    unknown = CheckpointId(RUN, Step(1), Generation(1, 99))
    (answer,) = writer.commit(unknown, Member("1/x", 1, xxh3_128(b"x")))
    assert isinstance(answer, AttemptAborted)


@pytest.mark.parametrize("name", ["", "/x", "x//y", "x/../y", "x/."])
def test_a_bad_name_is_refused(name: str) -> None:
    bench = Bench()
    writer = Writer(bench)
    question = replace(File(writer, "1/x", b"", 1, 1).question(), member=name)
    (answer,) = bench.tell(writer.session, question)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"


@pytest.mark.parametrize("name", ["a", "a/b", "#1", "=x/~", "~.", "a~2", "ü/~1~0"])
def test_a_name_comes_back_from_its_entry(name: str) -> None:
    assert name_of_entry(entry_name(name)) == name
