"""Whatever way the ranks of a launch ask for a step, they load one generation of it: by its number,
as the newest, as files, from a store; what the launch itself saves it sees (decision 0017).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, RunName
from ckpt.format.members import encode_members
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import LoadConfirmed, Resolve
from ckpt.format.messages.saving import CommitMembers
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.reading import rounds
from ckpt.protocol.events import Session
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, every, team
from tests.protocol.file_writers import Writer, committed
from tests.protocol.numbered import STEP, ByNumber, names_both, readers, together
from tests.protocol.test_coordinator_rounds import CONFIRMED, Loader, loaders

HELD_S = rounds.ROUND_HELD_US // SECOND_US


def hand_over(ranks: list[RankFake], step: int = STEP) -> None:
    every(ranks, lambda rank: rank.open(step))
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())


# --------------------------------------------------------------------------- the launch's own saves


def test_what_the_launch_itself_has_saved_since_is_loaded_by_all() -> None:
    bench = Bench()
    first = bench.save(STEP)
    ranks = team(bench, 2, key="job")
    alone = ByNumber(ranks[0])
    assert alone.load() == first
    hand_over(ranks)
    own = ranks[0].commits()[-1].info.checkpoint
    found = [ByNumber(rank).load() for rank in reversed(ranks)]
    assert found == [own, own]


def test_who_waits_to_return_what_its_launch_has_saved_again_since_is_told_to_load_that() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.begin()
    other.begin()
    assert one.finish() == [], "the other reads"
    hand_over([one.rank, other.rank])
    again = one.rank.commits()[0].info.checkpoint
    assert other.again().load() == again != first
    told = [answer for answer in bench.to(one.session) if isinstance(answer, LoadConfirmed)]
    assert [str(again) in answer.superseded for answer in told] == [True]


def test_the_launchs_own_commit_counts_behind_a_restart_too() -> None:
    bench = Bench()
    bench.save(STEP)
    ranks = team(bench, 2, key="job")
    ByNumber(ranks[0]).load()
    hand_over(ranks)
    own = ranks[0].commits()[-1].info.checkpoint
    bench.restart(*bench.targets)
    every(ranks, lambda rank: rank.reconnect())
    assert [ByNumber(rank).load() for rank in ranks] == [own, own]


def test_a_rank_that_has_handed_the_step_over_waits_for_its_own_commit() -> None:
    bench = Bench()
    bench.save(STEP)
    ranks = team(bench, 2, key="job")
    ranks[0].open(STEP)
    ranks[0].seal_all()
    ranks[0].certify()
    early = ByNumber(ranks[0])
    assert early.resolve() == []
    hand_over(ranks[1:])
    early.hear()
    assert early.found == ranks[0].commits()[-1].info.checkpoint


def test_a_commit_that_does_not_come_is_an_error_that_names_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    ranks = team(bench, 2, key="job")
    ranks[0].open(STEP)
    assert ranks[0].plan is not None
    own = ranks[0].plan.payload.checkpoint
    early = ByNumber(ranks[0])
    assert early.resolve() == []
    bench.tick(31)
    (failed,) = bench.to(early.session)
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert names_both(failed, first, own), failed.message
    assert ByNumber(ranks[1]).load() == first, "it has not come to its save yet"


# --------------------------------------------------------------------------- newest and by number


def test_what_some_load_as_the_newest_others_get_by_its_number() -> None:
    bench = Bench()
    first = bench.save(STEP)
    newest, _ = loaders(bench)
    assert newest.load() == [CONFIRMED]
    bench.save(STEP)
    other = ByNumber(RankFake(bench, 1, 2, key="readers"))
    assert other.load() == newest.found == first


def test_what_some_load_by_its_number_others_get_as_the_newest() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, _ = readers(bench)
    one.load()
    bench.save(STEP)
    newest = Loader(RankFake(bench, 1, 2, key="readers"))
    assert newest.load() == [CONFIRMED]
    assert newest.found == one.found == first


def test_one_that_is_gone_is_an_error_both_ways() -> None:
    bench = Bench()
    first = bench.save(STEP)
    newest, _ = loaders(bench)
    newest.load()
    bench.tell(bench.session(), DeleteStep(RUN, STEP))
    again = bench.save(STEP)
    failed = ByNumber(RankFake(bench, 1, 2, key="readers")).failed()
    assert names_both(failed, first, again), failed.message


def test_who_asks_for_the_newest_of_a_launch_that_moved_on_is_told_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    newest, _ = loaders(bench)
    newest.load()
    one, other = readers(bench)
    assert together([one, other]) == [first, first]
    again = bench.save(STEP)
    assert together([one.again(), other.again()]) == [again, again]
    failed = newest.resolve()
    assert isinstance(failed, Failed)
    assert names_both(failed, first, again), failed.message


# --------------------------------------------------------------------------- files


def put(bench: Bench, content: bytes, launch: LaunchNumber | None = None) -> CheckpointId:
    """A file of step 5, committed, by a process of that launch."""
    file = Writer(bench).write("a", content, STEP)
    commit = CommitMembers(file.checkpoint, launch=launch)
    return committed(bench.tell(bench.session(), commit, encode_members([file.member]))).checkpoint


def test_files_bind_a_launch_for_a_while_only() -> None:
    bench = Bench()
    first = put(bench, b"1")
    one, other = readers(bench)
    assert one.load() == first
    again = put(bench, b"2")
    bench.tick(HELD_S - 1)
    assert one.again().load() == first
    bench.tick(2)
    assert [one.again().load(), other.load()] == [again, again]


def test_files_bind_for_a_while_only_behind_a_restart_too() -> None:
    bench = Bench()
    first = put(bench, b"1")
    one, other = readers(bench)
    one.load()
    bench.restart(*bench.targets)
    every([one.rank, other.rank], lambda rank: rank.reconnect())
    again = put(bench, b"2")
    assert one.again().load() == first
    bench.tick(HELD_S + 1)
    assert other.again().load() == again


def test_files_that_the_launch_itself_writes_are_seen_by_its_ranks_at_once() -> None:
    bench = Bench()
    put(bench, b"1")
    one, other = readers(bench)
    one.load()
    assert one.question.launch is not None
    again = put(bench, b"2", one.question.launch)
    assert [one.again().load(), other.load()] == [again, again]


# --------------------------------------------------------------------------- stores


def stored(one: ByNumber, found: CheckpointId) -> list[Message]:
    """It was read from an object store, behind a NotFound here."""
    assert one.failed().code == "not_found"
    one.found = found
    return one.bench.tell(one.session, replace(one.confirm(), stored=True))


def test_what_a_rank_found_in_a_store_only_binds_the_others() -> None:
    bench = Bench()
    drained = CheckpointId(RunName(RUN), STEP, Generation(0, 7))
    one, other = readers(bench)
    assert stored(one, drained) == [CONFIRMED]
    again = bench.save(STEP)
    failed = other.failed()
    assert names_both(failed, drained, again), failed.message
    other.found = drained
    assert bench.tell(other.session, replace(other.confirm(), stored=True)) == [CONFIRMED]
    assert together([one.again(), other.again()]) == [again, again]


def test_a_rank_that_finds_another_in_its_store_is_told_both() -> None:
    bench = Bench()
    one, other = readers(bench)
    first, again = (CheckpointId(RunName(RUN), STEP, Generation(0, n)) for n in (7, 8))
    assert stored(one, first) == [CONFIRMED]
    bench.restart(*bench.targets)
    every([one.rank, other.rank], lambda rank: rank.reconnect())
    other.reconnect()
    (overruled,) = stored(other, again)
    assert isinstance(overruled, LoadConfirmed)
    assert str(first) in overruled.superseded


# --------------------------------------------------------------------------- bounds and seats


def test_of_many_numbers_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STEPS_KEPT", 3)
    bench = Bench()
    ranks = team(bench, 2, key="readers")
    for step in range(5):
        bench.save(step)
        for rank in ranks:
            ByNumber(rank, step).load()
    image = apply_all(CatalogImage(1), bench.durable)  # type: ignore[arg-type]
    kept = image.launches[(RunName(RUN), ranks[0].launch)].by_number
    assert sorted(kept) == [2, 3, 4]


def joined(bench: Bench, session: Session, process: str, *, reads: bool) -> Message:
    join = JoinLaunch(RUN, "job", Rank(0), 2, process, reads=reads)
    return bench.tell(session, join)[-1]


def test_a_process_that_only_loads_keeps_nobody_from_its_rank() -> None:
    bench = Bench()
    helper, trainer, stranger = bench.session(), bench.session(), bench.session()
    told = joined(bench, helper, "helper", reads=True)
    assert isinstance(told, LaunchJoined)
    assert told.by_number
    again = joined(bench, trainer, "trainer", reads=False)
    assert isinstance(again, LaunchJoined)
    assert again.launch == told.launch
    assert joined(bench, helper, "helper", reads=True) == told
    busy = joined(bench, stranger, "stranger", reads=False)
    assert isinstance(busy, Failed)
    assert busy.code == "busy"
    bench.close(helper)
    busy = joined(bench, bench.session(), "stranger", reads=False)
    assert isinstance(busy, Failed), "the trainer is still there"


def test_what_readers_resolved_is_held_for_late_ranks_while_one_of_them_lives() -> None:
    bench = Bench(keep=1)
    first = bench.save(STEP)
    life = bench.session()
    told = joined(bench, life, "reader", reads=True)
    assert isinstance(told, LaunchJoined)
    question = Resolve(RUN, STEP, told.launch, Rank(0), 2)
    session = bench.session()
    bench.tell(session, question)
    bench.close(session)
    bench.save(STEP)
    assert bench.states()[str(first)] == "committed"
    bench.close(life)
    assert bench.states()[str(first)] == "deleted"
