"""Which generation is read: one answer for a launch, pinned, and never silently an older one."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, PayloadId, Rank, RunName, Step
from ckpt.format.documents.record import decode_record
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import DamageJudged, ReleasePin, ReportDamage, Resolve, Resolved
from ckpt.format.messages.reading import ByteRange
from ckpt.protocol.events import Send, Session
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, every, team

NEWEST = Resolve(RUN, None)


def resolve(bench: Bench, message: Resolve = NEWEST, session: Session | None = None) -> Message:
    """The answer, which must come at once."""
    (answer,) = bench.tell(session or bench.session(), message)
    return answer


def resolved(bench: Bench, message: Resolve = NEWEST, session: Session | None = None) -> Resolved:
    answer = resolve(bench, message, session)
    assert isinstance(answer, Resolved), answer
    return answer


def newest_of(rank: RankFake) -> Resolve:
    """As a process asks: it joins first, and is told which turn is its next."""
    joined = rank.join()[-1]
    assert isinstance(joined, LaunchJoined)
    return Resolve(
        rank.run, None, rank.launch, rank.rank, rank.world_size, 10 * SECOND_US, False, joined.turn
    )


def steps(answers: list[Resolved]) -> list[int]:
    return [int(answer.info.checkpoint.step) for answer in answers]


def lose(bench: Bench, id: CheckpointId) -> None:
    """Proved damage."""
    for target in bench.targets.values():
        for column in [c for c in target.columns if c.payload.checkpoint == id]:
            target.damaged[column] = (ByteRange(0, 10),)
    report = ReportDamage(PayloadId(id, Rank(0)), "its bytes are wrong")
    (judged,) = bench.tell(bench.session(), report)
    assert isinstance(judged, DamageJudged)
    assert judged.proved


def apart(
    bench: Bench, save_old: Callable[[], CheckpointId], save_new: Callable[[], CheckpointId]
) -> tuple[CheckpointId, CheckpointId]:
    """Two checkpoints of nine targets: those of the newer one are away, the others are here."""
    old = save_old()
    held = holders(bench, old)
    bench.stop(*held)
    new = save_new()
    for id in held:
        bench.start(id)
    bench.stop(*holders(bench, new))
    return old, new


def holders(bench: Bench, id: CheckpointId) -> list[str]:
    """Targets with columns of it."""
    targets = bench.targets.values()
    return [t.id for t in targets if any(c.payload.checkpoint == id for c in t.columns)]


def test_the_newest_step_is_resolved_with_its_record_and_its_live_targets() -> None:
    bench = Bench()
    bench.save(1)
    id = bench.save(2)
    session = bench.session()
    mark = bench.mark()
    answer = resolved(bench, NEWEST, session)
    assert (answer.info.checkpoint, answer.skipped) == (id, ())
    sends = [a for a in bench.log[mark:] if isinstance(a, Send)]
    (send,) = [send for send in sends if send.session == session]
    assert decode_record(bytes(send.bulk)).info.checkpoint == id
    named = {address.target for address in answer.targets}
    assert {t.id for t in bench.targets.values() if t.columns} >= named
    assert len(named) >= 3


def test_a_step_is_resolved_by_its_number_and_its_newest_generation() -> None:
    bench = Bench()
    bench.save(1)
    again = bench.save(1)
    bench.save(2)
    assert resolved(bench, Resolve(RUN, Step(1))).info.checkpoint == again


def test_what_never_was_is_not_found() -> None:
    bench = Bench()
    bench.save(1)
    for message in (Resolve(RUN, Step(9)), replace(NEWEST, run=RunName("other"))):
        failed = resolve(bench, message)
        assert isinstance(failed, Failed)
        assert failed.code == "not_found"


def test_before_a_launch_has_begun_all_its_ranks_read_the_same_step() -> None:
    bench = Bench()
    bench.save(1)
    readers = [RankFake(bench, rank, 2, key="reader", role=Role.READER) for rank in range(2)]
    first = resolved(bench, newest_of(readers[0]))
    bench.save(2)
    second = resolved(bench, newest_of(readers[1]))
    again = resolved(bench, newest_of(readers[0]))
    assert steps([first, second, again]) == [1, 1, 1]
    assert steps([resolved(bench)]) == [2], "a reader without a launch sees the newest"


def test_retention_waits_for_ranks_that_have_not_come_for_their_launchs_resolution() -> None:
    bench = Bench(keep=1)
    bench.save(1)
    readers = [RankFake(bench, rank, 2, key="reader", role=Role.READER) for rank in range(2)]
    first = resolved(bench, newest_of(readers[0]), readers[0].session)
    bench.tell(readers[0].session, ReleasePin(first.pin))
    bench.save(2)
    second = resolved(bench, newest_of(readers[1]), readers[1].session)
    assert steps([first, second]) == [1, 1]
    assert bench.states()["run@1#1.1"] == "committed"
    bench.tell(readers[1].session, ReleasePin(second.pin))
    assert bench.states()["run@1#1.1"] == "deleted"


def test_a_resolution_is_held_for_late_ranks_only_while_their_launch_lives_and_not_for_ever() -> (
    None
):
    for ending in ("sessions", "time"):
        bench = Bench(keep=1)
        bench.save(1)
        reader = RankFake(bench, 0, 2, key="reader", role=Role.READER)
        answer = resolved(bench, newest_of(reader), reader.session)
        bench.tell(reader.session, ReleasePin(answer.pin))
        bench.save(2)
        assert bench.states()["run@1#1.1"] == "committed"
        if ending == "sessions":
            bench.close(reader.session)
        else:
            bench.tick(301)
        assert bench.states()["run@1#1.1"] == "deleted"


def test_a_launch_that_has_begun_sees_its_own_commits_and_its_ranks_agree_turn_by_turn() -> None:
    bench = Bench()
    bench.save(1)
    ranks = team(bench, 2, key="job")

    def save(step: int) -> None:
        every(ranks, lambda rank: rank.open(step))
        every(ranks, lambda rank: rank.seal_all())
        every(ranks, lambda rank: rank.certify())

    before = resolved(bench, newest_of(ranks[0]))
    save(2)
    turns = [resolved(bench, newest_of(ranks[0]))]
    save(3)
    turns.append(resolved(bench, newest_of(ranks[1])))
    turns.append(resolved(bench, newest_of(ranks[1])))
    turns.append(resolved(bench, newest_of(ranks[0])))
    assert steps([before, *turns]) == [1, 2, 2, 3, 3]


def test_a_resolution_waits_for_attempts_that_every_rank_has_handed_over() -> None:
    bench = Bench()
    bench.save(1)
    rank = RankFake(bench, key="job")
    rank.open(2)
    reader = bench.session()
    assert bench.tell(reader, NEWEST) == []
    rank.seal_all()
    rank.certify()
    (answer,) = bench.to(reader)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint.step == 2


def test_it_does_not_wait_for_an_attempt_that_lacks_a_rank_nor_for_another_step() -> None:
    bench = Bench()
    bench.save(1)
    RankFake(bench, 0, 2, key="half").open(2)
    assert steps([resolved(bench)]) == [1]
    RankFake(bench, key="whole").open(3)
    assert steps([resolved(bench, Resolve(RUN, Step(1)))]) == [1]


def test_it_waits_for_an_attempt_at_most_ten_seconds_and_not_for_a_dead_stager() -> None:
    bench = Bench()
    bench.save(1)
    rank = RankFake(bench, key="job")
    rank.open(2)
    reader, late = bench.session(), bench.session()
    bench.tell(reader, replace(NEWEST, timeout_us=60 * SECOND_US))
    bench.tick(9)
    assert bench.to(reader) == []
    bench.tell(late, NEWEST)
    bench.tick(2)
    assert [type(each) for each in bench.to(reader)] == [Resolved]
    assert bench.to(late) == []
    bench.close(rank.session)
    bench.tick(3)
    assert [type(each) for each in bench.to(late)] == [Resolved]


def test_what_is_out_of_reach_is_waited_for_then_unavailable_and_names_its_targets() -> None:
    bench = Bench()
    bench.save(1)
    id = bench.save(2)
    away = sorted(t.id for t in bench.targets.values() if t.columns)[:2]
    bench.stop(*away)
    reader = bench.session()
    assert bench.tell(reader, NEWEST) == []
    bench.tick(11)
    (failed,) = bench.to(reader)
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert str(id) in failed.message
    assert ", ".join(away) in failed.message


def test_targets_that_come_back_in_time_make_the_answer() -> None:
    bench = Bench(3)
    bench.save(1)
    bench.stop("t0", "t1")
    reader = bench.session()
    bench.tell(reader, NEWEST)
    bench.tick(5)
    bench.start("t0")
    assert [type(each) for each in bench.to(reader)] == [Resolved]


def test_fallback_reads_an_older_step_and_says_what_it_passed_over() -> None:
    bench = Bench(9)
    old, new = apart(bench, lambda: bench.save(1), lambda: bench.save(2))
    reader = bench.session()
    bench.tell(reader, replace(NEWEST, fallback=True))
    bench.tick(11)
    (answer,) = bench.to(reader)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint == old
    assert str(new) in answer.skipped[0]


def test_it_walks_back_past_proved_damage_and_says_so_loudly() -> None:
    bench = Bench()
    old = bench.save(1)
    new = bench.save(2)
    lose(bench, new)
    mark = bench.mark()
    answer = resolved(bench)
    assert answer.info.checkpoint == old
    assert str(new) in answer.skipped[0]
    assert "resolution walked back" in [report.text for report in bench.reports(mark)]


def test_a_step_that_is_lost_is_lost_also_by_its_number_and_after_a_restart() -> None:
    bench = Bench()
    bench.save(1)
    lose(bench, bench.save(2))
    for restarted in (False, True):
        if restarted:
            bench.restart(*bench.targets)
        failed = resolve(bench, Resolve(RUN, Step(2)))
        assert isinstance(failed, Failed)
        assert failed.code == "lost"
        assert steps([resolved(bench)]) == [1]


def test_a_pin_belongs_to_its_session() -> None:
    bench = Bench()
    id = bench.save(1)
    session = bench.session()
    answer = resolved(bench, NEWEST, session)
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    bench.tell(bench.session(), ReleasePin(answer.pin))
    assert checkpoint.pins == {answer.pin}
    bench.tell(session, ReleasePin(answer.pin))
    assert checkpoint.pins == set()


def test_a_reader_that_went_away_is_not_answered() -> None:
    bench = Bench()
    bench.save(1)
    RankFake(bench, key="job").open(2)
    reader = bench.session()
    bench.tell(reader, NEWEST)
    bench.close(reader)
    bench.tick(11)
    assert bench.to(reader) == []
