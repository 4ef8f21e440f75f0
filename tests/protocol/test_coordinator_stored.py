"""What is lost in the tier and whole in a store is named, to readers that can read stores."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Step
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import LoadConfirmed, ReleasePin, Resolve, Resolved
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_draining import URL, WorkerFake
from tests.protocol.test_coordinator_resolving import NEWEST, apart, lose, resolve, resolved
from tests.protocol.test_coordinator_rounds import CONFIRMED, Loader, loaders

DURABLE = replace(NEWEST, stored=True)


def drained(bench: Bench, *saved: int) -> list[CheckpointId]:
    """These steps are saved, and verified in the store."""
    worker, found = WorkerFake(bench), []
    for step in saved:
        bench.save(step)
        id = worker.lease()
        assert id is not None
        worker.end(id)
        found.append(id)
    return found


def readers(bench: Bench) -> list[Loader]:
    """Two ranks of a launch, both able to read stores."""
    found = loaders(bench)
    for one in found:
        one.question = replace(one.question, stored=True)
    return found


def test_a_lost_newest_step_is_read_from_the_store_that_has_it() -> None:
    bench = Bench()
    drained(bench, 1)
    id = bench.save(2)
    lose(bench, id)
    assert resolved(bench, DURABLE).info.checkpoint.step == 1, "no store has step 2"
    drained(bench, 3)
    newest = resolved(bench, DURABLE)
    assert (newest.info.checkpoint.step, newest.stored) == (3, ()), "the tier has it"
    lose(bench, newest.info.checkpoint)
    found = resolved(bench, DURABLE)
    assert (found.info.checkpoint.step, found.stored, found.skipped) == (3, (URL,), ())
    by_number = resolved(bench, replace(DURABLE, step=Step(3)))
    assert by_number.stored == (URL,)


def test_who_can_read_no_store_walks_back_as_before() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    lose(bench, resolved(bench).info.checkpoint)
    found = resolved(bench)
    assert (found.info.checkpoint.step, found.stored, len(found.skipped)) == (1, (), 1)
    failed = resolve(bench, Resolve(RUN, Step(2)))
    assert isinstance(failed, Failed)
    assert (failed.code, URL in failed.hint) == ("lost", True)


def test_a_replaced_generation_in_the_store_is_not_taken_for_the_lost_one() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    again = bench.save(2)
    lose(bench, again)
    found = resolved(bench, DURABLE)
    assert found.info.checkpoint != again
    assert not found.stored


def test_damage_found_after_a_rank_has_loaded_sends_the_others_to_the_store() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    early, late = readers(bench)
    assert early.load() == [CONFIRMED]
    lose(bench, early.found)
    late.begin()
    assert late.found == early.found
    assert late.finish() == [CONFIRMED]


def test_damage_found_while_all_load_keeps_them_on_one_step() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    first, second = readers(bench)
    first.begin()
    second.begin()
    assert first.finish() == [], "it waits for the other"
    lose(bench, first.found)
    (told,) = [a for a in bench.to(first.session) if isinstance(a, LoadConfirmed)]
    assert "is lost" in told.superseded
    for one in (first, second):
        answer = one.resolve()
        assert isinstance(answer, Resolved)
        assert (answer.info.checkpoint.step, answer.stored) == (2, (URL,))
    assert [one.finish() for one in (second, first)] == [[CONFIRMED], [CONFIRMED]]


def test_a_rank_that_can_read_no_store_is_never_given_another_step_than_its_launch() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    lose(bench, resolved(bench).info.checkpoint)
    able, unable = readers(bench)
    unable.question = replace(unable.question, stored=False)
    assert able.load() == [CONFIRMED]
    failed = unable.resolve()
    assert isinstance(failed, Failed)
    assert (failed.code, URL in failed.message, "durable=" in failed.hint) == ("lost", True, True)


def test_a_damaged_generation_goes_when_its_step_was_fetched_again_and_nobody_reads_it() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    session = bench.session()
    held = resolved(bench, DURABLE, session)
    lose(bench, held.info.checkpoint)
    again = bench.save(2)
    assert bench.states()[str(held.info.checkpoint)] == "damaged"
    bench.tell(session, ReleasePin(held.pin))
    assert bench.states()[str(held.info.checkpoint)] == "deleted"
    assert bench.states()[str(again)] == "committed"


def take_away(bench: Bench) -> list[str]:
    """Two targets, without which no step can be read."""
    away = sorted(t.id for t in bench.targets.values() if t.columns)[:2]
    bench.stop(*away)
    return [str(id) for id in away]


def test_what_stays_out_of_reach_is_read_from_the_store_by_those_who_can() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    newest = resolved(bench, DURABLE)
    assert newest.stored == (), "the tier has it"
    away = take_away(bench)
    able, unable = bench.session(), bench.session()
    assert bench.tell(able, DURABLE) == bench.tell(unable, NEWEST) == [], "they may come back"
    bench.tick(11)
    (found,) = bench.to(able)
    assert isinstance(found, Resolved)
    assert (found.info.checkpoint, found.skipped) == (newest.info.checkpoint, ())
    assert (found.stored, found.away) == ((URL,), f"targets {', '.join(away)} do not answer")
    (failed,) = bench.to(unable)
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"


def test_the_same_step_in_a_store_goes_before_an_older_one_here() -> None:
    bench = Bench(9)
    apart(bench, lambda: bench.save(1), lambda: drained(bench, 2)[-1])
    reader = bench.session()
    bench.tell(reader, replace(DURABLE, fallback=True))
    bench.tick(11)
    (found,) = bench.to(reader)
    assert isinstance(found, Resolved)
    assert (found.info.checkpoint.step, found.stored, found.skipped) == (2, (URL,), ())


def test_a_reader_that_asked_the_tier_in_vain_is_sent_to_the_store_at_once() -> None:
    bench = Bench()
    drained(bench, 1)
    in_vain = replace(DURABLE, away=True, timeout_us=0)
    found = resolved(bench, in_vain)
    assert (found.stored, found.away) == ((URL,), "the reader does not reach its targets")
    bench.save(2)
    assert resolved(bench, in_vain).stored == (), "no store has step 2"


def test_ranks_that_read_one_generation_here_and_there_are_one_launch() -> None:
    bench = Bench()
    drained(bench, 1, 2)
    near, far = readers(bench)
    near.begin()
    take_away(bench)
    far.question = replace(far.question, away=True, timeout_us=0)
    far.begin()
    assert far.found == near.found
    assert near.finish() == []
    assert far.finish() == [CONFIRMED]
    assert bench.to(near.session)[-1] == CONFIRMED
