"""Names and pins: on their targets first, then in the catalog, then answered."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Step, TargetId
from ckpt.format.documents.labels import Labels, decode_labels
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep, LabelStep, StepDeleted, StepLabeled
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.events import Received
from tests.protocol.coordinating import RUN, Bench


def label(bench: Bench, step: int, **change: object) -> Message:
    message = LabelStep(RUN, Step(step), **change)  # type: ignore[arg-type]
    (answer,) = bench.tell(bench.session(), message)
    return answer


def delete(bench: Bench, step: int) -> Message:
    (answer,) = bench.tell(bench.session(), DeleteStep(RUN, Step(step)))
    return answer


def on_targets(bench: Bench, id: CheckpointId) -> list[Labels]:
    key = (DocumentKind.LABELS, id)
    held = [t.documents[key] for t in bench.targets.values() if key in t.documents]
    return [decode_labels(document) for document in held]


def names(bench: Bench) -> dict[str, int]:
    found = bench.ask("names", RUN)
    assert isinstance(found, list)
    return {each["name"]: each["step"] for each in found}


def steps(bench: Bench) -> list[int]:
    found = bench.ask("steps", RUN)
    assert isinstance(found, list)
    return [each["step"] for each in found]


def test_labels_lie_on_enough_targets_before_the_catalog_and_that_before_the_answer() -> None:
    bench = Bench()
    id = bench.save(1)
    mark = bench.mark()
    assert label(bench, 1, add=("best", "a/b=1.ckpt"), pinned=True) == StepLabeled(
        id, ("a/b=1.ckpt", "best"), True
    )
    story = bench.story(mark, catalog.CheckpointLabeled, PutDocument, StepLabeled)
    assert [type(told) for told in story] == [
        PutDocument, PutDocument, catalog.CheckpointLabeled, StepLabeled,
    ]  # fmt: skip
    held = on_targets(bench, id)
    assert len(held) == 2
    assert {(one.names, one.pinned) for one in held} == {(("a/b=1.ckpt", "best"), True)}
    assert names(bench) == {"a/b=1.ckpt": 1, "best": 1}


def test_nothing_is_said_before_it_is_durable() -> None:
    bench = Bench()
    bench.save(1)
    bench.persist_at_once = False
    session = bench.session()
    bench.feed(Received(bench.now_us, session, 7, LabelStep(RUN, Step(1), add=("best",))))
    assert bench.to(session) == []
    assert names(bench) == {}
    bench.persist_at_once = True
    bench.sync()
    assert [type(told) for told in bench.to(session)] == [StepLabeled]
    assert names(bench) == {"best": 1}


def test_a_name_moves_and_is_of_one_step_at_a_time() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    label(bench, 1, add=("best", "kept"))
    answer = label(bench, 2, add=("best",))
    assert answer == StepLabeled(second, ("best",), False)
    assert names(bench) == {"best": 2, "kept": 1}
    (of_first, _), (of_second, _) = on_targets(bench, first), on_targets(bench, second)
    assert (of_first.names, of_second.names) == (("kept",), ("best",))


def test_what_is_said_outlives_a_restart_and_versions_go_on_above() -> None:
    bench = Bench()
    id = bench.save(1)
    label(bench, 1, add=("best",))
    (before, _) = on_targets(bench, id)
    bench.restart("t0", "t1", "t2", "t3")
    assert names(bench) == {"best": 1}
    label(bench, 1, pinned=True)
    (after, _) = on_targets(bench, id)
    assert after.version > before.version
    assert (after.names, after.pinned) == (("best",), True)


def test_saying_what_is_said_already_changes_nothing() -> None:
    bench = Bench()
    id = bench.save(1)
    told = label(bench, 1, add=("best",))
    mark = bench.mark()
    assert label(bench, 1, add=("best",), remove=("other",)) == told
    assert label(bench, 1) == StepLabeled(id, ("best",), False)
    assert bench.story(mark, catalog.CheckpointLabeled, PutDocument) == []


def test_retention_takes_nothing_that_has_a_name_or_is_pinned() -> None:
    bench = Bench(keep=1)
    bench.save(1)
    label(bench, 1, add=("best",))
    bench.save(2)
    label(bench, 2, pinned=True)
    bench.save(3)
    bench.save(4)
    assert steps(bench) == [1, 2, 4]
    label(bench, 1, remove=("best",))
    label(bench, 2, pinned=False)
    assert steps(bench) == [4]


def test_a_generation_with_a_name_outlives_a_later_save_of_its_step() -> None:
    bench = Bench()
    first = bench.save(1)
    label(bench, 1, add=("best",))
    second = bench.save(1)
    assert steps(bench) == [1, 1]
    assert names(bench) == {"best": 1}
    # By its number the newer one is meant, by its generation the older.
    assert label(bench, 1, add=("new",)) == StepLabeled(second, ("new",), False)
    answer = label(bench, 1, generation=first.generation, remove=("best",))
    assert answer == StepLabeled(first, (), False)
    assert steps(bench) == [1]


def test_one_generation_of_a_step_is_deleted_alone() -> None:
    bench = Bench()
    first = bench.save(1)
    label(bench, 1, add=("best",))
    second = bench.save(1)
    message = DeleteStep(RUN, Step(1), second.generation)
    assert isinstance(bench.tell(bench.session(), message)[0], StepDeleted)
    assert bench.states()[str(first)] == "committed"
    (again,) = bench.tell(bench.session(), message)
    assert isinstance(again, Failed)
    assert f"run@1#{second.generation}" in again.message
    assert names(bench) == {"best": 1}


def test_what_has_a_name_is_not_deleted_as_nameless() -> None:
    bench = Bench()
    id = bench.save(1)
    label(bench, 1, add=("best",))
    message = DeleteStep(RUN, Step(1), id.generation, nameless=True)
    (refused,) = bench.tell(bench.session(), message)
    assert isinstance(refused, Failed)
    assert (refused.code, "'best'" in refused.message) == ("refused", True)
    label(bench, 1, remove=("best",))
    assert isinstance(bench.tell(bench.session(), message)[0], StepDeleted)


def test_a_pinned_step_is_deleted_only_after_it_was_unpinned() -> None:
    bench = Bench()
    id = bench.save(1)
    label(bench, 1, add=("best",), pinned=True)
    refused = delete(bench, 1)
    assert isinstance(refused, Failed)
    assert (refused.code, "is pinned" in refused.message) == ("refused", True)
    assert "ckpt unpin run@1" in refused.hint
    label(bench, 1, pinned=False)
    assert isinstance(delete(bench, 1), StepDeleted)
    assert (names(bench), on_targets(bench, id)) == ({}, [])
    assert not any(target.holds(id) for target in bench.targets.values())


def test_changes_of_one_run_come_one_after_the_other() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    bench.persist_at_once = False
    sessions = [bench.session() for _ in range(4)]
    changes = [
        LabelStep(RUN, Step(1), add=("best",)), LabelStep(RUN, Step(2), add=("best",)),
        LabelStep(RUN, Step(9), add=("best",)), LabelStep(RUN, Step(1), add=("last",)),
    ]  # fmt: skip
    for session, change in zip(sessions, changes, strict=True):
        bench.feed(Received(bench.now_us, session, 7, change))
    bench.persist_at_once = True
    while bench.tickets:
        bench.sync(1)
    answers = [bench.to(session) for session in sessions]
    assert [[type(told) for told in one] for one in answers] == [
        [StepLabeled], [StepLabeled], [Failed], [StepLabeled],
    ]  # fmt: skip
    assert names(bench) == {"best": 2, "last": 1}


def test_on_too_few_targets_it_is_refused_and_nothing_is_said() -> None:
    bench = Bench()
    bench.save(1)
    for target in bench.targets.values():
        target.refuses[PutDocument] = Failed("no_space", "full")
    refused = label(bench, 1, add=("best",))
    assert isinstance(refused, Failed)
    assert refused.code == "unavailable"
    assert names(bench) == {}
    for target in bench.targets.values():
        target.refuses.clear()
    assert isinstance(label(bench, 1, add=("best",)), StepLabeled)


def test_a_deletion_waits_for_labels_that_are_on_their_way() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    asker, deleter = bench.session(), bench.session()
    bench.feed(Received(bench.now_us, asker, 7, LabelStep(RUN, Step(1), add=("best",))))
    bench.feed(Received(bench.now_us, deleter, 7, DeleteStep(RUN, Step(1))))
    assert bench.to(deleter) == []
    for name in list(bench.targets):
        bench.let_answer(name)
    assert bench.to(asker) == [StepLabeled(id, ("best",), False)]
    assert [type(told) for told in bench.to(deleter)] == [StepDeleted]
    assert not any(target.holds(id) for target in bench.targets.values())
    assert (names(bench), bench.states()[str(id)]) == ({}, "deleted")


def test_what_is_pinned_before_a_deletion_was_asked_for_is_not_deleted() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.persist_at_once = False
    asker, deleter = bench.session(), bench.session()
    bench.feed(Received(bench.now_us, asker, 7, LabelStep(RUN, Step(1), pinned=True)))
    bench.sync(1)
    (pin,) = bench.tickets
    assert isinstance(pin.entries[0], catalog.CheckpointLabeled)
    bench.feed(Received(bench.now_us, deleter, 7, DeleteStep(RUN, Step(1))))
    bench.persist_at_once = True
    bench.sync()
    assert bench.to(asker) == [StepLabeled(id, (), True)]
    (refused,) = bench.to(deleter)
    assert isinstance(refused, Failed)
    assert "is pinned" in refused.message
    assert steps(bench) == [1]


def cut_short(bench: Bench, change: LabelStep) -> None:
    """Its labels are on targets, and the coordinator ends before they are in the catalog."""
    bench.persist_at_once = False
    bench.feed(Received(bench.now_us, bench.session(), 7, change))
    bench.sync(1)
    assert [type(entry) for t in bench.tickets for entry in t.entries][:1] == [
        catalog.CheckpointLabeled
    ]
    bench.persist_at_once = True
    bench.restart(*bench.targets)


def newest_on_targets(bench: Bench, id: CheckpointId) -> Labels:
    return max(on_targets(bench, id), key=lambda labels: labels.version)


def test_targets_get_what_the_catalog_says_when_a_restart_cut_a_change_short() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    label(bench, 1, add=("best",))
    cut_short(bench, LabelStep(RUN, Step(2), add=("best",)))
    assert (newest_on_targets(bench, first).names, names(bench)) == ((), {"best": 1})
    cut_off = newest_on_targets(bench, second)
    assert cut_off.names == ("best",)
    bench.tick()
    of_first, of_second = newest_on_targets(bench, first), newest_on_targets(bench, second)
    assert (of_first.names, of_second.names, names(bench)) == (("best",), (), {"best": 1})
    assert min(of_first.version, of_second.version) > cut_off.version
    mark = bench.mark()
    bench.tick(3)
    assert bench.story(mark, PutDocument) == []


def test_nothing_is_taken_for_said_while_targets_may_have_more() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    label(bench, 1, add=("best",))
    cut_short(bench, LabelStep(RUN, Step(2), add=("best",), pinned=True))
    assert newest_on_targets(bench, second).names == ("best",)
    assert label(bench, 1, add=("best",)) == StepLabeled(first, ("best",), False)
    assert newest_on_targets(bench, first).names == ("best",)
    assert (newest_on_targets(bench, second).names, newest_on_targets(bench, second).pinned) == (
        (), False,
    )  # fmt: skip


def test_a_removal_is_said_to_targets_when_the_name_was_refused_for_want_of_them() -> None:
    bench = Bench()
    id = bench.save(1)
    for name in ("t1", "t2", "t3"):
        bench.targets[TargetId(name)].refuses[PutDocument] = Failed("no_space", "full")
    refused = label(bench, 1, add=("best",))
    assert isinstance(refused, Failed)
    assert newest_on_targets(bench, id).names == ("best",), "t0 has it"
    for target in bench.targets.values():
        target.refuses.clear()
    assert label(bench, 1, remove=("best",)) == StepLabeled(id, (), False)
    assert newest_on_targets(bench, id).names == ()


def test_what_may_have_a_name_stays_until_that_is_settled() -> None:
    bench = Bench(keep=1)
    bench.save(1)
    for target in bench.targets.values():
        target.refuses[PutDocument] = Failed("no_space", "full")
    assert isinstance(label(bench, 1, add=("best",)), Failed)
    for target in bench.targets.values():
        target.refuses.clear()
    bench.save(2)
    assert steps(bench) == [1, 2]
    bench.tick(1)
    assert steps(bench) == [2]


def test_a_bad_name_and_an_unknown_step_are_refused_by_name() -> None:
    bench = Bench()
    id = bench.save(1)
    bad = label(bench, 1, add=("12",))
    assert isinstance(bad, Failed)
    assert (bad.code, "'12'" in bad.message) == ("refused", True)
    unknown = label(bench, 2, add=("best",))
    assert isinstance(unknown, Failed)
    assert (unknown.code, "run@2" in unknown.message) == ("not_found", True)
    other = replace(id.generation, counter=99)
    missing = label(bench, 1, generation=other, add=("best",))
    assert isinstance(missing, Failed)
    assert "run@1#1.99" in missing.message


def test_copies_of_labels_that_are_away_are_counted_as_documents_missing() -> None:
    bench = Bench()
    id = bench.save(1)
    label(bench, 1, add=("best",))
    label(bench, 1, add=("a longer name than that",))
    (view,) = _shown(bench)["generations"]
    assert view["documents_missing"] == 0
    held = [t.id for t in bench.targets.values() if (DocumentKind.LABELS, id) in t.documents]
    (_, _, documents) = _shown(bench)["documents"]
    assert (documents["kind"], sorted(documents["targets"])) == ("labels", held)
    before = bench.targets[held[0]].documents.pop((DocumentKind.LABELS, id))
    bench.stop(held[0])
    bench.targets[held[0]].reboot()
    bench.start(held[0])
    bench.tick(1)
    (view,) = _shown(bench)["generations"]
    assert (view["documents_missing"], view["names"]) == (1, ["a longer name than that", "best"])
    assert decode_labels(before).names == ("a longer name than that", "best")
    label(bench, 1, pinned=True)
    (view,) = _shown(bench)["generations"]
    assert view["documents_missing"] == 0


def _shown(bench: Bench) -> dict[str, Any]:
    view = bench.ask("show", RUN, 1)
    assert isinstance(view, dict)
    return view


def test_a_target_that_knows_no_labels_is_passed_over() -> None:
    """One of 0.1.0 would end its session at that kind of document."""
    bench = Bench(protocol=1)
    bench.targets[TargetId("t0")].version = 1
    bench.stop("t0")
    bench.start("t0")
    id = bench.save(1)
    mark = bench.mark()
    assert isinstance(label(bench, 1, add=("best",)), StepLabeled)
    assert len(on_targets(bench, id)) == 2
    put = bench.asked("t0", PutDocument)
    assert put, "it has the index, or the record"
    assert all(message.kind is not DocumentKind.LABELS for message in put)
    assert len(bench.sent(PutDocument, mark)) == 2
