"""Rules of a run: durable before they count, and what they keep is never taken away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ckpt.base.ids import RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, LabelStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.keeping import ALL_STAYS, KeepSteps, Retention, StepsKept
from ckpt.format.messages.loading import ReleasePin
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping import retaining
from ckpt.protocol.coordinator.said import RetentionSaid
from ckpt.protocol.events import Send
from tests.protocol.coordinating import RUN, SECOND_US, Bench
from tests.protocol.test_coordinator_deletion import pin

DAY_S = 86_400.0


def keep(bench: Bench, retention: Retention | None, run: str = RUN) -> Message:
    (answer,) = bench.tell(bench.session(), KeepSteps(RunName(run), retention))
    return answer


def steps(bench: Bench, run: str = RUN) -> list[int]:
    found = bench.ask("steps", run)
    assert isinstance(found, list)
    return [each["step"] for each in found]


def view(bench: Bench, run: str = RUN) -> dict[str, Any]:
    found = bench.ask("retention", run)
    assert isinstance(found, dict)
    return found


def dry_run(bench: Bench, retention: Retention | None) -> dict[str, Any]:
    session, mark = bench.session(), bench.mark()
    bench.tell(session, KeepSteps(RUN, retention, dry_run=True))
    (send,) = [a for a in bench.log[mark:] if isinstance(a, Send) and a.session == session]
    assert isinstance(send.message, Answer), send.message
    found = msgspec.json.decode(send.bulk)
    assert isinstance(found, dict)
    return found


def going(found: dict[str, Any]) -> list[int]:
    return [each["step"] for each in found["steps"] if not each["stays"]]


def test_rules_are_in_the_catalog_before_the_answer_and_act_at_once_and_at_commits() -> None:
    bench = Bench()
    for step in (1, 2, 3, 4):
        bench.save(step)
    mark = bench.mark()
    assert keep(bench, Retention(last=1, every=2)) == StepsKept(RUN, Retention(last=1, every=2))
    story = bench.story(mark, RetentionSaid, catalog.CheckpointTombstoned, StepsKept)
    assert [type(told).__name__ for told in story] == [
        "RetentionSaid", "StepsKept", "CheckpointTombstoned", "CheckpointTombstoned",
    ]  # fmt: skip
    assert steps(bench) == [2, 4]
    bench.save(5)
    assert steps(bench) == [2, 4, 5]
    bench.save(7)
    assert steps(bench) == [2, 4, 7]


def test_rules_are_of_one_run_take_the_place_of_the_clusters_and_outlive_a_restart() -> None:
    bench = Bench(keep=1)
    keep(bench, Retention(last=3))
    for step in (1, 2, 3, 4):
        bench.save(step)
        bench.save(step, run="other")
    assert (steps(bench), steps(bench, "other")) == ([2, 3, 4], [4])
    bench.restart("t0", "t1", "t2", "t3")
    bench.save(5)
    assert steps(bench) == [3, 4, 5]
    keep(bench, None)
    assert (steps(bench), view(bench)["source"]) == ([5], "cluster")
    bench.restart("t0", "t1", "t2", "t3")
    bench.save(6)
    assert steps(bench) == [6]


def test_while_rules_are_on_their_way_to_the_catalog_nothing_expires() -> None:
    bench = Bench()
    for step in (1, 2, 3):
        bench.save(step)
    reader, number = pin(bench)
    keep(bench, Retention(last=2))
    bench.save(4)
    assert steps(bench) == [3, 4]
    bench.persist_at_once = False
    session, mark = bench.session(), bench.mark()
    bench.tell(session, KeepSteps(RUN, Retention(last=1)))
    bench.tell(reader, ReleasePin(number))
    bench.tell(session, KeepSteps(RUN, Retention(last=4)))
    bench.sync(1)
    assert bench.story(mark, catalog.CheckpointTombstoned) == []
    bench.persist_at_once = True
    bench.sync()
    assert bench.story(mark, catalog.CheckpointTombstoned) == []
    assert view(bench)["text"] == "the last 4"
    bench.save(5)
    assert steps(bench) == [3, 4, 5]


def test_a_coordinator_that_falls_before_rules_are_durable_has_the_old_ones() -> None:
    bench = Bench(keep=1)
    keep(bench, Retention(last=2))
    bench.persist_at_once = False
    session = bench.session()
    assert bench.tell(session, KeepSteps(RUN, Retention(last=9))) == []
    bench.restart("t0", "t1", "t2", "t3")
    bench.persist_at_once = True
    assert view(bench)["text"] == "the last 2"


def test_time_alone_makes_steps_expire_by_their_age() -> None:
    bench = Bench()
    bench.save(1)
    keep(bench, Retention(age_s=3600))
    live(bench, 3000)
    bench.save(2)
    bench.save(3)
    assert steps(bench) == [1, 2, 3]
    live(bench, 601)
    look(bench)
    assert steps(bench) == [2, 3]
    live(bench, 1_000_000)
    look(bench)
    assert steps(bench) == [3]


def live(bench: Bench, seconds: float) -> None:
    """So much time passes, on the wall as well."""
    bench.now_us += round(seconds * SECOND_US)
    bench.wall_s += seconds
    bench.tick()


def look(bench: Bench) -> None:
    """Rules by age are looked at; a minute passes that the wall does not show."""
    bench.tick(retaining.LOOK_US / 1e6 + 1)


def test_a_wall_clock_that_jumps_ahead_takes_nothing_away() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    keep(bench, Retention(age_s=3600))
    bench.wall_s += DAY_S
    look(bench)
    bench.save(3)
    assert steps(bench) == [1, 2, 3]
    bench.wall_s -= DAY_S
    live(bench, 3601)
    look(bench)
    assert steps(bench) == [3]


def test_the_next_coordinator_on_a_clock_that_is_ahead_takes_nothing_away() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    keep(bench, Retention(age_s=3600))
    bench.wall_s += DAY_S
    bench.restart("t0", "t1", "t2", "t3")
    bench.save(3)
    look(bench)
    assert steps(bench) == [1, 2, 3]
    live(bench, 3601)
    look(bench)
    assert steps(bench) == [3]


def test_a_commit_that_a_wrong_clock_has_dated_makes_no_next_coordinator_believe_it() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    keep(bench, Retention(age_s=3 * 3600))
    bench.wall_s += DAY_S
    bench.save(3)
    found = bench.ask("steps", RUN)
    assert isinstance(found, list)
    assert found[-1]["committed_at_s"] == bench.wall_s, "people read the wall clock"
    for step in (4, 5):
        bench.restart("t0", "t1", "t2", "t3")
        bench.save(step)
        look(bench)
    assert steps(bench) == [1, 2, 3, 4, 5]
    bench.wall_s -= DAY_S
    live(bench, 4 * 3600)
    look(bench)
    assert steps(bench) == [3, 4, 5], "what it dated is old when that day is over"


def test_a_commit_of_a_clock_that_was_late_by_years_holds_no_next_coordinator_up() -> None:
    """As a host's is whose battery is empty, until it has asked others for the time."""
    bench = Bench()
    bench.save(1)
    keep(bench, Retention(age_s=3600))
    bench.wall_s -= 300 * DAY_S
    bench.save(2)
    bench.wall_s += 300 * DAY_S
    bench.restart("t0", "t1", "t2", "t3")
    look(bench)
    assert steps(bench) == [1, 2]
    live(bench, 3601)
    look(bench)
    assert steps(bench) == [2]


def test_what_a_wrong_clock_makes_old_is_repaired_all_the_same() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    keep(bench, Retention(age_s=3 * 3600))
    (one, _) = bench.machine.checkpoints.of_run(RunName(RUN), RowState.COMMITTED)
    assert not bench.machine.retaining.leaves_within(one.id, 3600)
    bench.wall_s += DAY_S
    assert not bench.machine.retaining.leaves_within(one.id, 3600)
    bench.wall_s -= DAY_S
    live(bench, 2.5 * 3600)
    assert bench.machine.retaining.leaves_within(one.id, 3600)


def test_what_was_saved_while_the_clock_was_late_is_as_young_as_what_was_saved_before() -> None:
    bench = Bench()
    bench.save(1)
    keep(bench, Retention(age_s=3600))
    bench.wall_s -= DAY_S
    bench.save(2)
    bench.wall_s += DAY_S
    bench.save(3)
    look(bench)
    assert steps(bench) == [1, 2, 3]


def test_what_a_coordinator_owed_that_fell_goes_a_minute_after_the_next_began() -> None:
    """It fell between a commit and what that leaves over."""
    bench = Bench()
    for step in (1, 2, 3):
        bench.save(step)
    bench.durable.append(RetentionSaid(RUN, Retention(last=1)))
    bench.restart("t0", "t1", "t2", "t3")
    bench.tick(retaining.LOOK_US / 1e6 - 5)
    assert steps(bench) == [1, 2, 3], "readers may come back"
    bench.tick(10)
    assert steps(bench) == [3]


def test_every_step_has_a_reason_and_a_dry_run_changes_nothing() -> None:
    bench = Bench()
    for step in (1, 2, 3, 4, 5):
        bench.save(step)
    bench.tell(bench.session(), LabelStep(RUN, Step(1), add=("first",)))
    bench.tell(bench.session(), LabelStep(RUN, Step(2), pinned=True))
    mark = bench.mark()
    found = dry_run(bench, Retention(last=2))
    assert [(each["step"], each["stays"], each["reason"]) for each in found["steps"]] == [
        (1, True, "called 'first'"),
        (2, True, "pinned"),
        (3, False, "not among the last 2"),
        (4, True, "the last 2"),
        (5, True, "the newest step; the last 2"),
    ]
    assert (found["source"], found["text"]) == ("run", "the last 2")
    assert bench.story(mark, RetentionSaid) == []
    assert going(view(bench)) == []
    assert steps(bench) == [1, 2, 3, 4, 5]
    keep(bench, Retention(last=2))
    assert steps(bench) == [1, 2, 4, 5]


def test_what_a_dry_run_says_goes_is_what_goes_when_nobody_reads_it_any_more() -> None:
    bench = Bench()
    bench.save(1)
    reader, number = pin(bench)
    for step in (2, 3):
        bench.save(step)
    keep(bench, Retention(last=1))
    assert [each["reason"] for each in view(bench)["steps"]] == [
        "somebody reads it", "the newest step; the last 1",
    ]  # fmt: skip
    bench.tell(reader, ReleasePin(number))
    assert steps(bench) == [3]


@pytest.mark.parametrize("bad", [ALL_STAYS, Retention(last=0), Retention(age_s=-5)])
def test_what_is_no_rule_is_refused_and_changes_nothing(bad: Retention) -> None:
    bench = Bench(keep=2)
    keep(bench, Retention(last=7))
    answer = keep(bench, bad)
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    (refused,) = bench.tell(bench.session(), KeepSteps(RUN, bad, dry_run=True))
    assert isinstance(refused, Failed)
    assert view(bench)["text"] == "the last 7"


def test_runs_with_rules_of_their_own_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retaining, "RUNS_MAX", 1)
    bench = Bench()
    keep(bench, Retention(last=1))
    assert isinstance(keep(bench, Retention(last=1), "other"), Failed)
    assert isinstance(keep(bench, Retention(last=2)), StepsKept)
    keep(bench, None)
    assert isinstance(keep(bench, Retention(last=1), "other"), StepsKept)


def test_of_a_run_whose_rules_are_lost_all_stays_until_they_are_said_again() -> None:
    bench = Bench(keep=1)
    bench.durable.append(RetentionSaid(RUN, ALL_STAYS))
    bench.restart("t0", "t1", "t2", "t3")
    for step in (1, 2, 3):
        bench.save(step)
        bench.save(step, run="begun since")
    assert (steps(bench), steps(bench, "begun since")) == ([1, 2, 3], [3])
    assert (view(bench)["source"], going(view(bench))) == ("lost", [])
    status = bench.ask("status")
    assert isinstance(status, dict)
    (check,) = [each for each in status["checks"] if each["name"] == "RETENTION_UNSAID"]
    assert check["command"] == "ckpt keep run --none"
    keep(bench, None)
    assert steps(bench) == [3]
