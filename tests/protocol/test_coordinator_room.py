"""A catalog without room: what would begin is refused by name and holds nothing, what is under way
waits, and what only reads goes on.
"""

from __future__ import annotations

import pytest

from ckpt.base.ids import RunName, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, DeleteStep, LabelStep, ReplaceTarget, RollBack
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.keeping import KeepSteps, Retention
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import LoadConfirmed, Resolved
from ckpt.format.messages.saving import AttemptAborted, PayloadPlanned
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.coordinator.catalog import AttemptOpened, LaunchResolved
from ckpt.protocol.coordinator.room import RoomSeen
from ckpt.protocol.coordinator.saving.members import NUMBERS_HELD
from tests.protocol.coordinated_target import CLUSTER
from tests.protocol.coordinating import RUN, Bench, RankFake, team
from tests.protocol.file_writers import File, Writer
from tests.protocol.test_coordinator_rounds import loaders


def fill(bench: Bench) -> None:
    bench.persist_at_once = False
    bench.feed(RoomSeen(bench.now_us, "etcd says so", "make room"))


def empty(bench: Bench) -> None:
    bench.persist_at_once = True
    bench.feed(RoomSeen(bench.now_us))
    bench.sync()


def refusal(answer: list[Message]) -> Failed:
    (failed,) = answer
    assert isinstance(failed, Failed)
    assert failed.code == "no_space"
    assert failed.message == f"the catalog of cluster {CLUSTER} takes nothing more: etcd says so"
    assert failed.hint == "make room"
    return failed


def test_a_new_save_is_refused_before_anything_is_reserved() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    fill(bench)
    mark = bench.mark()
    refusal(first.open(1))
    refusal(second.open(1))
    assert bench.sent(Reserve, mark) == []
    assert bench.tickets == []
    empty(bench)
    first.open(2)
    second.open(2)
    assert first.plan is not None
    assert second.plan is not None


def test_a_refused_save_fences_no_older_launch() -> None:
    bench = Bench()
    older = RankFake(bench, key="a")
    newer = RankFake(bench, key="b", process="h/b")
    older.open(1)
    fill(bench)
    refusal(newer.open(1))
    older.seal_all()
    older.certify()
    empty(bench)
    assert older.commits()


def test_a_save_whose_row_waits_when_the_room_ends_is_refused_on_all_ranks() -> None:
    """Also on one that comes later; none of them has a plan."""
    bench = Bench()
    first, second = team(bench, 2)
    bench.persist_at_once = False
    first.open(1)
    assert first.plan is None
    fill(bench)
    (failed,) = first.aborts()
    assert (failed.code, failed.hint) == ("no_space", "make room")
    second.open(1)
    assert [each.code for each in second.aborts()] == ["no_space"]
    assert sum(len(target.reservations) for target in bench.targets.values()) == 0
    empty(bench)
    assert list(bench.states().values()) == ["aborted"]
    first.open(2)
    second.open(2)
    assert first.plan is not None


def test_what_was_refused_stays_aborted_when_its_row_alone_was_stored() -> None:
    """The leader dies between the two entries: nobody comes back for it."""
    bench = Bench()
    rank = RankFake(bench)
    bench.persist_at_once = False
    rank.open(1)
    fill(bench)
    bench.sync(1)
    assert list(bench.states().values()) == ["open"]
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    rank.reconnect()
    bench.tick(61)
    assert list(bench.states().values()) == ["aborted"]
    rank.open(2)
    assert rank.plan is not None


def test_a_save_that_is_under_way_waits_and_commits_when_there_is_room() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    fill(bench)
    second.open(1)
    assert isinstance(second.heard[-1], PayloadPlanned), "its attempt has a row"
    for rank in (first, second):
        rank.seal_all()
        rank.certify()
    bench.tick(20)
    assert not first.commits()
    assert not first.aborts()
    empty(bench)
    assert first.commits()
    assert second.commits()


def test_loads_go_on_also_of_a_process_that_begins() -> None:
    """By a key, by the number that it says, or alone, it meets its peers after a restart as well:
    its launch need not be written down first.
    """
    bench = Bench()
    saved = bench.save(1)
    fill(bench)
    alone = RankFake(bench, key=None, process="h/alone")
    keyed = loaders(bench)
    assert alone.launch
    assert all(each.rank.launch for each in keyed)
    for each in keyed:
        assert isinstance(each.resolve(), Resolved)
        assert each.found == saved


def test_ranks_whose_launch_was_not_written_down_meet_after_a_restart() -> None:
    bench = Bench()
    fill(bench)
    first = RankFake(bench, 0, 2, key="job")
    bench.tickets.clear()
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    second = RankFake(bench, 1, 2, key="job")
    first.reconnect()
    assert first.launch == second.launch


def test_ranks_that_nothing_but_the_catalog_holds_together_are_refused() -> None:
    bench = Bench()
    fill(bench)
    rank = RankFake(bench, 0, 2, key=None)
    refusal(rank.heard)
    empty(bench)
    rank.join()
    assert rank.launch


def test_who_waits_for_its_launch_when_the_room_ends_is_answered() -> None:
    bench = Bench()
    bench.persist_at_once = False
    keyed = RankFake(bench, 0, 2, key="job")
    keyless = RankFake(bench, 0, 2, key=None)
    assert keyed.heard == keyless.heard == []
    fill(bench)
    assert isinstance(keyed.heard[-1], LaunchJoined)
    refusal(keyless.heard)
    empty(bench)
    assert len(keyed.heard) == len(keyless.heard) == 1


def test_a_launch_that_cannot_settle_what_it_loads_hears_so_in_its_own_time() -> None:
    """Two steps must not meet in one launch: what all have is durable before one may return it."""
    bench = Bench()
    bench.save(1)
    first, second = loaders(bench)
    fill(bench)
    first.begin()
    mark = bench.mark()
    assert first.finish() == []
    bench.tick(29)
    assert bench.to(first.session, mark) == []
    bench.tick(2)
    refusal(bench.to(first.session, mark))
    assert len(bench.story(mark, LaunchResolved)) == 1
    empty(bench)
    assert isinstance(second.load()[-1], LoadConfirmed)


@pytest.mark.parametrize(
    "message",
    [
        DeleteStep(RUN, Step(1)),
        LabelStep(RUN, Step(1), add=("best",)),
        RollBack(RUN, Step(1)),
        KeepSteps(RUN, Retention(last=1)),
        ChangeTarget(TargetId("t0"), "draining"),
        ReplaceTarget(next(iter(Bench(1, "1+0", targets_live=False).targets))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_change_that_somebody_asks_for_is_refused(message: Message) -> None:
    bench = Bench()
    bench.save(1)
    fill(bench)
    session, mark = bench.session(Role.ADMIN), bench.mark()
    bench.tell(session, message)
    bench.tick(1)
    refusal(bench.to(session, mark))
    assert bench.tickets == []


def test_what_only_asks_goes_on() -> None:
    bench = Bench()
    bench.save(1)
    fill(bench)
    for message in (RollBack(RUN, Step(1), dry_run=True), KeepSteps(RUN, dry_run=True)):
        session = bench.session()
        (answer,) = bench.tell(session, message)
        assert not isinstance(answer, Failed)
    assert not isinstance(bench.ask("steps", RunName(RUN)), Failed)


def test_the_catalog_that_has_room_again_takes_what_waited_in_its_order() -> None:
    bench = Bench()
    rank = RankFake(bench)
    bench.persist_at_once = False
    rank.open(1)
    fill(bench)
    waiting = [entry for ticket in bench.tickets for entry in ticket.entries]
    assert isinstance(waiting[0], AttemptOpened)
    assert isinstance(rank.heard[-1], AttemptAborted)
    empty(bench)
    assert bench.durable[-len(waiting) :] == waiting


def test_files_of_an_open_list_are_taken_as_far_as_it_has_numbers_and_a_new_list_is_refused() -> (
    None
):
    bench = Bench()
    writer = Writer(bench)
    writer.write("first")
    fill(bench)
    for number in range(1, NUMBERS_HELD):
        assert writer.open(f"{number}").plan is not None
    for step in (1, 2):
        file = File(writer, f"{step}/more", b"x", step, 1000 + step)
        refusal(bench.tell(writer.session, file.question()))
    empty(bench)
    assert writer.open("more").plan is not None
    assert writer.open("more", step=2).plan is not None
