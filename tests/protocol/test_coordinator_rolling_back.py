"""Rollback: a step is the newest again, and what came after it is set aside under a name."""

from __future__ import annotations

import msgspec
import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.documents.labels import NAMES_MAX, Labels, aside_name
from ckpt.format.messages.asking import (
    DeleteStep,
    LabelStep,
    RollBack,
    RolledBack,
    SetAside,
    StepDeleted,
    StepLabeled,
)
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import LoadConfirmed, Resolve, Resolved
from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.events import Received, Send
from tests.protocol.coordinating import RUN, Bench, team
from tests.protocol.test_coordinator_draining import WorkerFake
from tests.protocol.test_coordinator_evicting import bench_with_room, drain_all
from tests.protocol.test_coordinator_labeling import label, names, on_targets, steps
from tests.protocol.test_coordinator_rounds import Loader, loaders


def roll_back(bench: Bench, step: int, *, dry_run: bool = False) -> list[tuple[int, str]] | Failed:
    """(step, name) of all that is set aside."""
    session, mark = bench.session(), bench.mark()
    bench.tell(session, RollBack(RUN, Step(step), dry_run))
    (send,) = [a for a in bench.log[mark:] if isinstance(a, Send) and a.session == session]
    if isinstance(send.message, Failed):
        return send.message
    assert send.message == RolledBack(RUN, Step(step))
    return [(one.step, one.name) for one in msgspec.json.decode(send.bulk, type=list[SetAside])]


def loaded(
    bench: Bench, step: int | None = None, only: Generation | None = None
) -> CheckpointId | Failed:
    """What a load gets, by default the newest."""
    number = None if step is None else Step(step)
    session = bench.session()
    bench.tell(session, Resolve(RUN, number, only=only, timeout_us=0))
    (answer,) = bench.to(session)
    bench.close(session)
    if isinstance(answer, Failed):
        return answer
    assert isinstance(answer, Resolved)
    return answer.info.checkpoint


def newest(bench: Bench) -> list[int]:
    """As lists, the runs and a load say it."""
    listed = bench.ask("steps", RUN)
    (run,) = bench.ask("runs")  # type: ignore[misc]
    assert isinstance(listed, list)
    found = loaded(bench)
    by_load = [] if isinstance(found, Failed) else [found.step]
    assert [each["step"] for each in listed if each["newest"]] == by_load
    assert [run["latest"]] == (by_load or [None])
    return [int(step) for step in by_load]


def restarted(bench: Bench) -> None:
    bench.restart(*bench.targets)
    bench.tick()


def saved(*steps: int, keep: int | None = None) -> Bench:
    bench = Bench(keep=keep)
    for step in steps:
        bench.save(step)
    return bench


def test_the_step_is_the_newest_again_and_later_ones_have_a_name() -> None:
    bench = saved(100, 200, 300, 400)
    assert newest(bench) == [400]
    mark = bench.mark()
    assert roll_back(bench, 200) == [(300, "aside-300"), (400, "aside-400")]
    assert newest(bench) == [200]
    assert steps(bench) == [100, 200, 300, 400]
    assert names(bench) == {"aside-300": 300, "aside-400": 400}
    put = [a.message.checkpoint.step for a in bench.log[mark:] if isinstance(a, Send)
           and isinstance(a.message, PutDocument)]  # fmt: skip
    assert put == [400, 400, 300, 300, 200, 200], "from the newest step down"
    restarted(bench)
    assert newest(bench) == [200]


def test_all_of_it_is_in_the_catalog_together_and_then_answered() -> None:
    bench = saved(100, 200, 300)
    mark = bench.mark()
    roll_back(bench, 100)
    story = bench.story(mark, PutDocument, catalog.CheckpointLabeled, RolledBack)
    kinds = [type(told) for told in story]
    assert kinds == [PutDocument] * 6 + [catalog.CheckpointLabeled] * 3 + [RolledBack]


def test_asked_again_it_changes_nothing_and_answers_the_same() -> None:
    bench = saved(100, 200, 300)
    told = roll_back(bench, 100)
    mark = bench.mark()
    assert roll_back(bench, 100) == told == [(200, "aside-200"), (300, "aside-300")]
    assert bench.story(mark, PutDocument, catalog.LabelsSent) == []


def test_a_dry_run_says_what_would_be_aside_and_changes_nothing() -> None:
    bench = saved(100, 200, 300)
    mark = bench.mark()
    assert roll_back(bench, 200, dry_run=True) == [(300, "aside-300")]
    assert bench.story(mark, PutDocument, catalog.LabelsSent) == []
    assert (newest(bench), names(bench)) == ([300], {})


def test_what_is_saved_afterwards_is_the_newest_by_the_usual_rule() -> None:
    bench = saved(100, 200, 300)
    roll_back(bench, 100)
    first = loaded(bench, 300)
    bench.save(150)
    assert newest(bench) == [150]
    again = bench.save(300)
    assert newest(bench) == [300]
    assert (loaded(bench), loaded(bench, 300)) == (again, again)
    assert isinstance(first, CheckpointId)
    assert loaded(bench, 300, first.generation) == first
    assert names(bench) == {"aside-200": 200, "aside-300": 300}


def test_a_second_generation_of_a_step_is_set_aside_under_a_name_of_its_own() -> None:
    bench = saved(100, 200, keep=2)
    roll_back(bench, 100)
    again = bench.save(200)
    assert roll_back(bench, 100) == [(200, "aside-200"), (200, "aside-200.2")]
    assert newest(bench) == [100]
    assert [one.names for one in on_targets(bench, again)] == [("aside-200.2",)] * 2
    bench.save(110)
    bench.save(120)
    assert steps(bench) == [110, 120, 200, 200], "both stay"


def test_what_a_newer_save_of_its_step_replaced_does_not_come_to_light() -> None:
    bench = saved(100, 200)
    label(bench, 200, add=("best",))
    bench.save(200)
    assert roll_back(bench, 100) == [(200, "aside-200.2"), (200, "aside-200")]
    assert newest(bench) == [100]
    assert names(bench) == {"aside-200": 200, "aside-200.2": 200, "best": 200}


def test_a_name_that_is_taken_away_brings_its_step_back() -> None:
    bench = saved(100, 200, 300)
    roll_back(bench, 100)
    assert isinstance(label(bench, 200, remove=("aside-200",)), StepLabeled)
    assert newest(bench) == [200]
    label(bench, 300, remove=("aside-300",))
    assert newest(bench) == [300]


def test_when_all_is_aside_there_is_no_newest() -> None:
    bench = saved(100, 200)
    roll_back(bench, 100)
    (deleted,) = bench.tell(bench.session(), DeleteStep(RUN, Step(100)))
    assert isinstance(deleted, StepDeleted)
    assert newest(bench) == []
    nothing = loaded(bench)
    assert isinstance(nothing, Failed)
    assert (nothing.code, "are set aside by a rollback" in nothing.message) == ("not_found", True)


def test_retention_counts_nothing_that_is_aside_and_takes_none_of_it() -> None:
    bench = saved(100, 200, 300, 400, 500, keep=3)
    assert steps(bench) == [300, 400, 500]
    roll_back(bench, 300)
    for step in (310, 320):
        bench.save(step)
    assert steps(bench) == [300, 310, 320, 400, 500]
    bench.save(330)
    assert steps(bench) == [310, 320, 330, 400, 500]


def test_the_step_stays_while_what_came_after_it_is_set_aside() -> None:
    bench = saved(100, 200, 300, keep=3)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    asker = bench.session()
    bench.feed(Received(bench.now_us, asker, 7, RollBack(RUN, Step(100))))
    for target in bench.targets.values():
        target.silent.clear()
    bench.save(400)
    assert 100 in steps(bench)
    while not bench.to(asker):
        bench.tick(1)
    assert [type(told) for told in bench.to(asker)] == [RolledBack]
    assert 100 in steps(bench)


def test_a_coordinator_that_falls_before_the_answer_has_changed_nothing() -> None:
    bench = saved(100, 200, 300)
    bench.persist_at_once = False
    bench.feed(Received(bench.now_us, bench.session(), 7, RollBack(RUN, Step(100))))
    bench.sync(1)
    (ticket,) = bench.tickets
    assert [
        entry.checkpoint.step
        for entry in ticket.entries
        if isinstance(entry, catalog.CheckpointLabeled)
    ] == [300, 200, 100]
    bench.persist_at_once = True
    restarted(bench)
    assert (newest(bench), names(bench)) == ([300], {})
    assert all(not one.names for id in _ids(bench) for one in _highest(bench, id))
    assert roll_back(bench, 100) == [(200, "aside-200"), (300, "aside-300")]
    assert newest(bench) == [100]


def test_nothing_is_taken_for_aside_while_targets_may_have_another_word() -> None:
    bench = saved(100, 200)
    told = roll_back(bench, 100)
    bench.persist_at_once = False
    bring_back = LabelStep(RUN, Step(200), remove=("aside-200",))
    bench.feed(Received(bench.now_us, bench.session(), 7, bring_back))
    bench.sync(1)
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    (of_200,) = (id for id in _ids(bench) if id.step == 200)
    assert [one.names for one in _highest(bench, of_200)] == [()], "it was cut short there"
    assert roll_back(bench, 100) == told
    assert [one.names for one in _highest(bench, of_200)] == [("aside-200",)]


def _ids(bench: Bench) -> list[CheckpointId]:
    return [one.id for one in bench.machine.checkpoints.all()]


def _highest(bench: Bench, id: CheckpointId) -> list[Labels]:
    """What a rebuild would take of what lies on targets."""
    found = sorted(on_targets(bench, id), key=lambda labels: labels.version)
    return found[-1:]


def test_what_cannot_be_the_newest_is_refused_before_anything_changes() -> None:
    bench = saved(100, 200, 300)
    roll_back(bench, 100)
    cases = {
        150: ("not_found", "run@150 has no committed checkpoint", "its steps: 100, 200, 300"),
        200: ("refused", "set aside itself, as 'aside-200'", "ckpt tag run aside-200 --remove"),
    }
    for step, (code, text, hint) in cases.items():
        refused = roll_back(bench, step)
        assert isinstance(refused, Failed)
        assert (refused.code, text in refused.message, hint in refused.hint) == (code, True, True)
    session = bench.session()
    (unknown,) = bench.tell(session, RollBack(RunName("runs"), Step(100)))
    assert isinstance(unknown, Failed)
    assert (unknown.code, unknown.hint) == ("not_found", "did you mean run?")
    assert names(bench) == {"aside-200": 200, "aside-300": 300}


def test_a_step_that_is_out_of_reach_is_refused_and_names_its_targets() -> None:
    bench = Bench(7)
    first, _ = bench.save(100), bench.save(200)
    gone = sorted(t.id for t in bench.targets.values() if t.holds(first))[:2]
    bench.stop(*gone)
    bench.tick(3)
    away = roll_back(bench, 100)
    assert isinstance(away, Failed)
    text = f"{first} cannot be read now: targets {', '.join(gone)} do not answer"
    assert (away.code, away.message) == ("unavailable", text)
    for name in gone:
        bench.targets[name].reboot()
        bench.start(name)
    bench.tick(1)
    assert (names(bench), newest(bench)) == ({}, [200])


def test_what_is_lost_is_set_aside_too_and_is_no_step_to_go_back_to() -> None:
    bench = saved(100, 200, 300)
    for id in (one for one in _ids(bench) if one.step >= 200):
        bench.durable.append(catalog.CheckpointDamaged(id, "all of it"))
    restarted(bench)
    lost = roll_back(bench, 200)
    assert isinstance(lost, Failed)
    assert (lost.code, "all of it" in lost.message) == ("lost", True)
    assert roll_back(bench, 100) == [(200, "aside-200"), (300, "aside-300")]
    (answer,) = bench.tell(bench.session(), Resolve(RUN, None))
    assert isinstance(answer, Resolved)
    assert (answer.info.checkpoint.step, answer.skipped) == (100, ())


def test_a_lost_step_that_was_saved_again_does_not_load_as_what_was_set_aside() -> None:
    bench = saved(100, 200)
    roll_back(bench, 100)
    again = bench.save(200)
    bench.durable.append(catalog.CheckpointDamaged(again, "all of it"))
    restarted(bench)
    lost = loaded(bench, 200)
    assert isinstance(lost, Failed)
    assert (lost.code, newest(bench)) == ("lost", [100])


def test_a_deletion_and_a_rollback_come_one_after_the_other() -> None:
    bench = saved(100, 200, 300)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    first, second = bench.session(), bench.session()
    bench.feed(Received(bench.now_us, first, 7, RollBack(RUN, Step(100))))
    bench.feed(Received(bench.now_us, second, 7, DeleteStep(RUN, Step(300))))
    while not bench.to(second):
        for name in list(bench.targets):
            bench.let_answer(name)
        bench.tick(0.1)
    assert [type(told) for told in bench.to(first)] == [RolledBack]
    assert [type(told) for told in bench.to(second)] == [StepDeleted]
    assert (names(bench), newest(bench)) == ({"aside-200": 200}, [100])


def test_a_step_that_has_all_names_that_are_allowed_is_named_and_nothing_changes() -> None:
    bench = saved(100, 200, 300)
    label(bench, 200, add=tuple(f"name{number:02}" for number in range(NAMES_MAX)))
    refused = roll_back(bench, 100)
    assert isinstance(refused, Failed)
    assert (refused.code, "run@200#1.2 has 32 names" in refused.message) == ("refused", True)
    assert newest(bench) == [300]


def test_on_too_few_targets_it_is_refused_and_nothing_is_aside() -> None:
    bench = saved(100, 200)
    for target in bench.targets.values():
        target.refuses[PutDocument] = Failed("no_space", "full")
    refused = roll_back(bench, 100)
    assert isinstance(refused, Failed)
    assert (refused.code, newest(bench), names(bench)) == ("unavailable", [200], {})


@pytest.mark.parametrize("name", ["aside-300", "aside-200", "aside-200.2"])
def test_only_a_rollback_gives_such_a_name(name: str) -> None:
    bench = saved(100, 200)
    refused = label(bench, 200, add=(name,))
    assert isinstance(refused, Failed)
    assert (refused.code, "ckpt rollback RUN@STEP" in refused.hint) == ("refused", True)
    assert isinstance(label(bench, 200, add=(f"{name}-mine",)), StepLabeled)
    assert newest(bench) == [200]


def test_a_launch_that_has_the_step_goes_on_with_it_and_the_next_one_goes_back() -> None:
    """Two steps never meet in one job."""
    bench = saved(100, 200)
    first, second = loaders(bench)
    first.begin()
    assert roll_back(bench, 100) == [(200, "aside-200")]
    second.begin()
    assert first.finish() == []
    assert second.finish() == [LoadConfirmed()]
    assert (first.found.step, second.found.step) == (200, 200)
    again, _ = [Loader(rank) for rank in team(bench, 2, key="restarted")]
    again.begin()
    assert again.found.step == 100


def test_an_object_store_is_not_sent_what_is_aside_before_it_is_brought_back() -> None:
    bench = saved(100, 200)
    roll_back(bench, 100)
    worker = WorkerFake(bench)
    drain_all(worker)
    assert {step for _, step in stored(bench)} == {100}
    label(bench, 200, remove=("aside-200",))
    drain_all(worker)
    assert {step for _, step in stored(bench)} == {100, 200}


def stored(bench: Bench) -> set[tuple[str, int]]:
    """What stores have."""
    stores = bench.machine.drains.stores
    return {(url, step) for url, one in stores.items() for step, _ in one.row.stored.get(RUN, ())}


def test_the_step_is_not_evicted_and_neither_is_what_is_aside() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    for step in range(1, 7):
        bench.save(step)
    drain_all(worker)
    roll_back(bench, 1)
    bench.save(7)
    drain_all(worker)
    roll_back(bench, 1)
    bench.tick(5)
    assert steps(bench) == [1, 2, 3, 4, 5, 6, 7]
    for step in range(2, 8):
        label(bench, step, remove=(aside_name(Step(step)),))
    bench.tick(30)
    assert steps(bench) == [3, 4, 5, 6, 7]
