"""Whether this coordinator is still the one is asked of its targets, each time that it matters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask, DeleteStep
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.targets import Attest, PutDocument
from ckpt.protocol.coordinator.facts import CheckpointCommitted
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, ready
from tests.protocol.test_coordinator_resolving import NEWEST, holders, resolved

DELETE = DeleteStep(RUN, Step(1))
STEPS = Ask("steps", RUN)


def hush(bench: Bench, *kinds: type[Message], ids: tuple[str, ...] = ()) -> None:
    """These targets keep what they are asked, as on a connection that hangs."""
    for id in ids or tuple(bench.targets):
        bench.targets[TargetId(id)].silent.update(kinds)


def let_all_answer(bench: Bench) -> None:
    for id in bench.targets:
        bench.let_answer(id)


@pytest.mark.parametrize("question", [NEWEST, Resolve(RUN, Step(1)), STEPS, DELETE])
def test_whose_targets_obey_another_answers_nothing_and_says_so(
    question: Message,
) -> None:
    bench = Bench(4)
    bench.save(1)
    hush(bench, Attest)
    session = bench.session()
    assert bench.tell(session, question) == []
    bench.let_answer("t0")
    bench.tick(11)
    (failed,) = bench.to(session)
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert "1 of 4 targets obey this coordinator: another may have taken its" in failed.message
    assert bench.states() == {"run@1#1.1": "committed"}, "and nothing is deleted"


def test_who_waits_in_vain_is_told_which_targets_are_away() -> None:
    bench = Bench(4)
    bench.stop("t1", "t2")
    session = bench.session()
    bench.tell(session, STEPS)
    bench.tick(7)
    (failed,) = bench.to(session)
    assert isinstance(failed, Failed)
    assert failed.message.endswith("away: t1, t2")


def test_the_status_is_told_by_a_coordinator_that_nobody_obeys() -> None:
    bench = Bench(4)
    bench.save(1)
    bench.stop("t0", "t1", "t2")
    status = bench.ask("status")
    assert isinstance(status, dict)
    assert status["health"] != "HEALTH_OK"


def test_a_worker_that_repairs_a_generation_waits_for_no_round() -> None:
    """It says nothing of what is the newest, and a wide cluster would have a round a payload."""
    bench = Bench(4)
    id = bench.save(1)
    hush(bench, Attest)
    wanted = Resolve(RUN, id.step, only=id.generation, for_repair=True)
    mark = bench.mark()
    (found,) = bench.tell(bench.session(Role.DRAIN), wanted)
    assert isinstance(found, Resolved)
    assert found.info.checkpoint == id
    assert bench.sent(Attest, mark) == []
    for unsure in (replace(wanted, only=None), replace(wanted, for_repair=False)):
        assert bench.tell(bench.session(), unsure) == []


def test_who_greets_is_answered_once_the_catalog_is_vouched_for_and_waits_for_no_round() -> None:
    """A client whose targets are away afterwards may have an object store to read from."""
    bench = Bench(4)
    bench.save(1)
    bench.stop("t0", "t1", "t2")
    assert bench.ask("coordinator") == {"address": "", "pid": 0, "http": "", "wire": ""}
    bench.restart("t0")
    session = bench.session()
    bench.tell(session, Ask("coordinator"))
    assert bench.to(session) == []
    bench.start("t1")
    bench.start("t2")
    assert [type(each) for each in bench.to(session)] == [Answer]


def test_what_was_asked_is_answered_as_soon_as_enough_have_said_so() -> None:
    bench = Bench(4)
    bench.save(1)
    hush(bench, Attest)
    session = bench.session()
    assert bench.tell(session, NEWEST) == []
    bench.let_answer("t0")
    bench.let_answer("t1")
    assert bench.to(session) == [], "two of four may obey another one"
    bench.let_answer("t2")
    assert [type(each) for each in bench.to(session)] == [Resolved]


def test_a_target_that_comes_meanwhile_is_asked_at_once() -> None:
    bench = Bench(4)
    bench.save(1)
    bench.stop("t0", "t1")
    session = bench.session()
    assert bench.tell(session, STEPS) == []
    bench.start("t0")
    assert [type(each) for each in bench.to(session)] == [Answer]


def test_an_answer_to_a_question_of_before_confirms_nobody() -> None:
    """It was given before the newer question came: another may have risen in between."""
    bench = Bench(4)
    bench.save(1)
    hush(bench, Attest)
    early, late = bench.session(), bench.session()
    bench.tell(early, NEWEST)
    kept = {id: list(target.unanswered) for id, target in bench.targets.items()}
    bench.tell(late, NEWEST)
    assert {id: t.unanswered for id, t in bench.targets.items()} == kept, "the next round waits"
    for id in ("t0", "t1", "t2"):
        bench.let_answer(id)
        hush(bench, Attest, ids=(id,))
    assert [type(each) for each in bench.to(early)] == [Resolved]
    assert bench.to(late) == []
    let_all_answer(bench)
    assert [type(each) for each in bench.to(late)] == [Resolved]


def test_a_crowd_that_asks_at_once_costs_two_rounds() -> None:
    bench = Bench(4)
    bench.save(1)
    hush(bench, Attest)
    mark = bench.mark()
    crowd = [bench.session() for _ in range(50)]
    for session in crowd:
        bench.tell(session, NEWEST)
    let_all_answer(bench)
    assert all(isinstance(bench.to(session)[-1], Resolved) for session in crowd)
    assert len(bench.sent(Attest, mark)) == 2 * len(bench.targets)


def test_who_left_meanwhile_gets_no_pin() -> None:
    bench = Bench(4)
    bench.save(1)
    hush(bench, Attest)
    session = bench.session()
    bench.tell(session, NEWEST)
    bench.close(session)
    let_all_answer(bench)
    assert bench.to(session) == []
    assert all(not checkpoint.pins for checkpoint in bench.machine.checkpoints.all())


def test_a_target_that_refuses_is_asked_again() -> None:
    """A new coordinator's term is there; or its disk failed for a moment."""
    bench = Bench(4)
    bench.save(1)
    for id in ("t0", "t1"):
        bench.targets[TargetId(id)].refuses[Attest] = Failed("refused", "term 9 is in force")
    session = bench.session()
    bench.tell(session, NEWEST)
    bench.tick(1)
    assert bench.to(session) == []
    bench.targets[TargetId("t0")].refuses.clear()
    bench.tick()
    assert [type(each) for each in bench.to(session)] == [Resolved]


# --------------------------------------------------------------------------- commits


def commit_under_way(bench: Bench) -> RankFake:
    """Its record is on its targets, and nobody has said behind it whom it obeys."""
    (rank,) = ready(bench)
    hush(bench, Attest)
    rank.certify()
    return rank


def test_a_commit_is_heard_of_only_when_targets_obey_behind_its_record() -> None:
    bench = Bench(4)
    rank = commit_under_way(bench)
    assert bench.states() == {"run@1#1.1": "decided"}
    assert rank.commits() == []
    let_all_answer(bench)
    assert bench.states() == {"run@1#1.1": "committed"}
    assert len(rank.commits()) == 1


def test_a_deposed_coordinator_announces_no_commit_however_long_it_waits() -> None:
    bench = Bench(4)
    rank = commit_under_way(bench)
    bench.stop("t0", "t1", "t2")
    bench.tick(60)
    assert rank.commits() == rank.aborts() == []
    assert bench.states() == {"run@1#1.1": "decided"}, "who is in force next rolls it forward"


def test_a_save_that_a_minority_has_is_refused_by_name() -> None:
    bench = Bench(8)
    (rank,) = ready(bench)
    away = [id for id in map(str, bench.targets) if id not in holders(bench, rank_id(rank))]
    bench.stop(*away)
    rank.certify()
    bench.tick(12)
    (aborted,) = rank.aborts()
    assert aborted.code == "unavailable"
    assert f"{', '.join(away)} are away, and may obey another" in aborted.message


def rank_id(rank: RankFake) -> CheckpointId:
    return rank.payload.checkpoint


def test_what_a_commit_may_lose_comes_on_top_of_who_was_away_then() -> None:
    """P1: the answer counts from its own moment."""
    bench = Bench(6, "1+1", hosts=3)
    bench.stop("t2", "t5")
    bench.save(1)
    bench.stop("t0", "t3")
    assert resolved(bench).info.checkpoint.step == 1
    bench.start("t2")
    bench.stop("t2")
    session = bench.session()
    assert bench.tell(session, NEWEST) == [], "it was here, and counts again"


def test_a_later_commit_that_survives_less_takes_no_earlier_promise_back() -> None:
    """Found by the simulator's seeds 1343526 and 1366038."""
    bench = Bench(6, "1+1", hosts=3)
    bench.stop("t2", "t5")
    bench.save(1)
    info = resolved(bench).info
    assert info.domains_survivable == 1
    less = replace(info, targets_survivable=0, domains_survivable=0)
    bench.machine.confirming.committed(CheckpointCommitted(info.checkpoint, less, ()))
    bench.stop("t0", "t3")
    assert resolved(bench).info.checkpoint.step == 1


# --------------------------------------------------------------------------- what is owed


def test_a_save_that_another_process_decided_is_made_before_the_newest_is_told() -> None:
    """That process may be alive, and have announced it; seed 1083 of test_two_coordinators.py."""
    bench = Bench(4)
    bench.save(1)
    rank = RankFake(bench, key="next")
    rank.open(2)
    rank.seal_all()
    decided = decide(bench, rank)
    bench.restart(*bench.targets)
    patient, brief = bench.session(), bench.session()
    assert bench.tell(patient, replace(NEWEST, timeout_us=20 * SECOND_US)) == []
    assert bench.tell(brief, replace(NEWEST, timeout_us=0)) == []
    bench.tick(5)
    (failed,) = bench.to(brief)
    assert isinstance(failed, Failed)
    assert (failed.code, bench.to(patient)) == ("unavailable", [])
    assert "has decided waits for its targets" in failed.message
    for target in bench.targets.values():
        target.refuses.clear()
    bench.tick(1)
    (found,) = bench.to(patient)
    assert isinstance(found, Resolved)
    assert found.info.checkpoint == decided


def decide(bench: Bench, rank: RankFake) -> CheckpointId:
    """The process ends when its decision is durable, and nothing of the record is on a target."""
    bench.persist_at_once = False
    rank.certify()
    bench.durable.extend(entry for ticket in bench.tickets for entry in ticket.entries)
    bench.persist_at_once = True
    for target in bench.targets.values():
        target.refuses[PutDocument] = Failed("unavailable", "its disk hangs")
    return rank.payload.checkpoint


def test_who_waits_when_the_catalog_proves_old_is_told_so() -> None:
    """Seed 1013: it waited for ever."""
    bench = Bench(4)
    bench.save(1)
    bench.tick(7)
    RankFake(bench, key="job").open(2)
    reader = bench.session()
    assert bench.tell(reader, NEWEST) == [], "it waits for the save under way"
    bench.stop("t0")
    bench.targets[TargetId("t0")].term_seen = 40
    bench.start("t0")
    bench.tick()
    (failed,) = bench.to(reader)
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt"


def test_of_a_hundred_targets_a_majority_confirms_and_half_of_them_does_not() -> None:
    bench = Bench(100, "4+2")
    bench.save(1)
    hush(bench, Attest)
    session = bench.session()
    assert bench.tell(session, STEPS) == []
    for number in range(50):
        bench.let_answer(f"t{number}")
    bench.tick()
    assert bench.to(session) == [], "50 of 100 are no majority"
    bench.let_answer("t50")
    bench.tick()
    (answer,) = bench.to(session)
    assert isinstance(answer, Answer)
