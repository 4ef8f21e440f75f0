"""All ranks of a launch load one generation: who finishes waits for who is loading, damage in time
makes all walk back, and damage that is too late is an error that names both steps.
"""

from __future__ import annotations

from ckpt.base.ids import CheckpointId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, LoadConfirmed, ReleasePin, Resolved
from ckpt.protocol.events import Session
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, every, team
from tests.protocol.test_coordinator_resolving import lose, newest_of


class Loader:
    """One rank that loads the newest step, over a session of its own."""

    def __init__(self, rank: RankFake) -> None:
        self.rank = rank
        self.bench = rank.bench
        self.session: Session = self.bench.session()
        self.question = newest_of(rank)
        self.found: CheckpointId

    def resolve(self) -> Message:
        """At once, or when too few targets have said in time that this coordinator is in force."""
        mark = self.bench.mark()
        if not self.bench.tell(self.session, self.question):
            self.bench.tick(1)
        (answer,) = self.bench.to(self.session, mark)
        if isinstance(answer, Resolved):
            self.found = answer.info.checkpoint
        return answer

    def begin(self) -> None:
        self.resolve()
        launch, rank, turn = self.rank.launch, self.rank.rank, self.question.turn
        self.bench.tell(self.session, LoadBegan(RUN, launch, rank, turn))

    def finish(self) -> list[Message]:
        """What it is told at once."""
        launch, rank, turn = self.rank.launch, self.rank.rank, self.question.turn
        timeout_us = 30 * SECOND_US
        confirm = ConfirmLoad(RUN, launch, rank, turn, self.found, timeout_us)
        return self.bench.tell(self.session, confirm)

    def load(self) -> list[Message]:
        self.begin()
        return self.finish()


def loaders(bench: Bench, world_size: int = 2) -> list[Loader]:
    return [Loader(rank) for rank in team(bench, world_size, key="readers")]


def saved(bench: Bench) -> tuple[CheckpointId, CheckpointId]:
    return bench.save(1), bench.save(2)


CONFIRMED = LoadConfirmed()


def test_a_rank_that_loads_alone_waits_for_nobody() -> None:
    bench = Bench()
    _, new = saved(bench)
    alone, later = loaders(bench)
    assert alone.load() == [CONFIRMED]
    assert later.load() == [CONFIRMED]
    assert alone.found == later.found == new


def test_who_finishes_first_is_told_when_all_who_were_loading_have_finished() -> None:
    bench = Bench()
    saved(bench)
    first, second, third = loaders(bench, 3)
    every([first.rank, second.rank], lambda _: None)
    for one in (first, second, third):
        one.begin()
    assert first.finish() == []
    assert second.finish() == []
    assert third.finish() == [CONFIRMED]
    assert bench.to(first.session)[-1] == bench.to(second.session)[-1] == CONFIRMED


def test_damage_that_one_rank_meets_makes_all_walk_back_also_those_that_have_loaded() -> None:
    bench = Bench()
    old, new = saved(bench)
    quick, slow = loaders(bench)
    quick.begin()
    slow.begin()
    assert quick.finish() == []
    lose(bench, new)
    overruled = bench.to(quick.session)[-1]
    assert isinstance(overruled, LoadConfirmed)
    assert str(new) in overruled.superseded
    for one in (slow, quick):
        one.begin()
        assert one.found == old
    assert slow.finish() == []
    assert quick.finish() == [CONFIRMED]


def test_damage_proved_before_a_rank_confirms_supersedes_what_it_loaded() -> None:
    bench = Bench()
    old, new = saved(bench)
    first, second = loaders(bench)
    first.begin()
    lose(bench, new)
    (overruled,) = first.finish()
    assert isinstance(overruled, LoadConfirmed)
    assert overruled.superseded
    second.begin()
    assert second.found == old


def test_damage_after_a_rank_has_returned_its_load_is_an_error_that_names_both_steps() -> None:
    for restarted in (False, True):
        bench = Bench()
        old, new = saved(bench)
        first, second = loaders(bench)
        assert first.load() == [CONFIRMED]
        lose(bench, new)
        if restarted:
            bench.restart(*bench.targets)
            second = Loader(RankFake(bench, 1, 2, key="readers"))
        failed = second.resolve()
        assert isinstance(failed, Failed)
        assert failed.code == "lost"
        assert str(new) in failed.message
        assert str(old) in failed.message
        assert restarted or "ranks 0 of this launch" in failed.message
        fresh = Loader(RankFake(bench, key="the next start"))
        fresh.begin()
        assert fresh.found == old


def test_what_a_rank_has_returned_is_not_exchanged_when_it_is_deleted() -> None:
    bench = Bench()
    old, new = saved(bench)
    first, second = loaders(bench)
    first.load()
    bench.tell(bench.session(), DeleteStep(RUN, new.step))
    failed = second.resolve()
    assert isinstance(failed, Failed)
    assert f"{new} is deleted" in failed.message
    assert str(old) in failed.message


def test_a_confirmation_is_told_only_when_a_restart_would_know_it() -> None:
    bench = Bench()
    saved(bench)
    first, _ = loaders(bench)
    first.begin()
    bench.persist_at_once = False
    assert first.finish() == []
    (ticket,) = bench.tickets
    assert type(ticket.entries[0]).__name__ == "LaunchResolved"
    bench.sync()
    assert bench.to(first.session)[-1] == CONFIRMED


def test_damage_while_the_confirmation_is_written_comes_too_late() -> None:
    bench = Bench()
    old, new = saved(bench)
    first, second = loaders(bench)
    first.begin()
    bench.persist_at_once = False
    first.finish()
    tickets = list(bench.tickets)
    bench.tickets.clear()
    bench.persist_at_once = True
    lose(bench, new)
    bench.tickets.extend(tickets)
    bench.sync()
    assert bench.to(first.session)[-1] == CONFIRMED
    failed = second.resolve()
    assert isinstance(failed, Failed)
    assert str(old) in failed.message


def test_a_reader_that_gives_up_or_dies_holds_nobody_up() -> None:
    for way in ("release", "close"):
        bench = Bench()
        saved(bench)
        first, second = loaders(bench)
        first.begin()
        second.begin()
        assert first.finish() == []
        if way == "close":
            bench.close(second.session)
        else:
            pins = [a.pin for a in bench.to(second.session) if isinstance(a, Resolved)]
            bench.tell(second.session, ReleasePin(pins[-1]))
        assert bench.to(first.session)[-1] == CONFIRMED


def test_a_slow_rank_is_waited_for_only_so_long() -> None:
    bench = Bench()
    saved(bench)
    first, slow = loaders(bench)
    first.begin()
    slow.begin()
    assert first.finish() == []
    bench.tick(29)
    assert bench.to(first.session)[-1] != CONFIRMED
    bench.tick(2)
    assert bench.to(first.session)[-1] == CONFIRMED
    assert slow.finish() == [CONFIRMED]


def test_loads_that_a_coordinators_restart_interrupts_still_end_with_one_generation() -> None:
    bench = Bench()
    _, new = saved(bench)
    first, second = loaders(bench)
    first.begin()
    second.begin()
    bench.restart(*bench.targets)
    third = bench.save(3)
    for one in (first, second):
        one.rank.reconnect()
        one.session = bench.session()
    second.resolve()
    assert second.found == third
    (overruled,) = first.finish()
    assert isinstance(overruled, LoadConfirmed)
    assert str(third) in overruled.superseded
    # The other way round: who has loaded already names the generation.
    bench.restart(*bench.targets)
    for one in (first, second):
        one.rank.reconnect()
        one.session = bench.session()
    first.found = new
    assert first.finish() == [CONFIRMED]
    second.resolve()
    assert second.found == new


def test_a_rank_that_only_saved_does_not_get_what_its_peers_began_with() -> None:
    bench = Bench()
    bench.save(1)
    ranks = team(bench, 2, key="job")
    assert Loader(ranks[0]).load() == [CONFIRMED]  # And passes it on to its peer.
    every(ranks, lambda rank: rank.open(2))
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())
    found = [Loader(rank) for rank in reversed(ranks)]
    for one in found:
        one.begin()
    assert [int(one.found.step) for one in found] == [2, 2]


def test_the_turn_of_a_rank_that_has_saved_is_known_after_a_restart() -> None:
    bench = Bench()
    ranks = team(bench, 2, key="job")
    every(ranks, lambda rank: rank.open(1))
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())
    assert [newest_of(rank).turn for rank in ranks] == [1, 1]
    bench.restart(*bench.targets)
    every(ranks, lambda rank: rank.reconnect())
    assert [newest_of(rank).turn for rank in ranks] == [1, 1]
