"""One directory is one target, and one process of it: copies, emptied and renamed directories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt.base.ids import BootId, TargetId
from ckpt.base.limits import INCARNATION_BYTES, LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.documents.cluster_map import target_bytes
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, ReplaceTarget, TargetReplaced
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.targets import RegisterTarget, TargetRegistered
from ckpt.protocol.coordinator.catalog import TargetSeen
from ckpt.protocol.coordinator.cluster import claims
from ckpt.protocol.coordinator.cluster.claims import REMOVED_RETRY_S
from ckpt.protocol.coordinator.cluster.membership import TargetState
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import Bench

LEASE_S = LEASE_US / 1e6
T1 = TargetId("t1")


def incarnation(number: int) -> bytes:
    return number.to_bytes(INCARNATION_BYTES, "big")


@pytest.fixture
def bench() -> Bench:
    """Four targets, each with a directory of its own, that have saved a step."""
    made = Bench(targets_live=False)
    for number, target in enumerate(made.targets.values()):
        target.incarnation, target.place = incarnation(number + 1), f"host/fs/{number}"
        made.start(target)
    made.tick()
    made.save(1)
    return made


def copy_of(bench: Bench, place: str = "host/fs/copy", boot: int = 99) -> FakeTarget:
    """Another process on a copy of t1's directory."""
    return replace(bench.targets[T1], boot=BootId(boot), session=None, place=place)


def answer(bench: Bench, target: FakeTarget) -> Message:
    """What a process that registers is told."""
    session = bench.session(Role.TARGET)
    register = RegisterTarget(
        target.id, target.boot, "a:1", "", target.domain, f"/copies/{target.place}", 77, 1 << 40,
        1 << 40, 0, target.term_seen, incarnation=target.incarnation, place=target.place,
    )  # fmt: skip
    return bench.tell(session, register)[0]


def refused(bench: Bench, target: FakeTarget) -> Failed:
    told = answer(bench, target)
    assert isinstance(told, Failed), told
    return told


def is_live(bench: Bench, boot: int = 2) -> bool:
    target = bench.machine.members.targets[T1]
    return target.state is TargetState.LIVE and target.boot == boot


def checks(bench: Bench) -> dict[str, dict[str, str]]:
    view = bench.ask("status")
    assert isinstance(view, dict)
    return {each["name"]: each for each in view["checks"]}


def replace_it(bench: Bench, wanted: bytes = b"", *, repeated: bool = False) -> Message:
    question = ReplaceTarget(T1, wanted, repeated=repeated)
    return bench.tell(bench.session(Role.ADMIN), question)[0]


def test_a_copy_is_refused_by_name_while_the_original_lives_and_nothing_flips(
    bench: Bench,
) -> None:
    for _ in range(5):
        told = refused(bench, copy_of(bench))
        assert "target t1 is d/t1, which has another process" in told.message
        assert "/copies/host/fs/copy is a copy" in told.message
        assert told.retry_after_us
        bench.tick(1)
        assert is_live(bench)
    assert checks(bench)["DIRECTORY_COPIED"]["command"] == "ssh a kill 77"
    bench.tick(20)
    assert checks(bench) == {}, "it has ended"


def test_why_a_process_is_refused_is_reported_once_however_often_it_comes(bench: Bench) -> None:
    """It dials twice a second, for as long as it runs: the coordinator's disk must not fill."""

    def said(mark: int) -> list[tuple[str, object]]:
        return [
            (str(dict(each.fields)["why"])[-10:], dict(each.fields)["remedy"])
            for each in bench.reports(mark)
            if each.text == "target refused"
        ]

    mark = bench.mark()
    for _ in range(5):
        refused(bench, copy_of(bench))
        bench.tick(1)
    assert said(mark) == [("was in use", "end the process on the copy")]
    bench.stop("t1")
    bench.tick(LEASE_S * 1.1)
    assert isinstance(answer(bench, copy_of(bench)), TargetRegistered)
    mark = bench.mark()
    original = bench.targets[T1]
    for _ in range(2):
        refused(bench, original)
    assert len(said(mark)) == 1, "another process, of another place"


def test_the_sessions_of_refused_processes_are_known_while_they_stand(bench: Bench) -> None:
    assert bench.machine.members.refused == set()
    refused(bench, copy_of(bench))
    (session,) = bench.machine.members.refused
    bench.close(session)
    assert bench.machine.members.refused == set()


def test_a_process_that_comes_again_in_its_place_has_the_seat_at_once(bench: Bench) -> None:
    """Killed with its host's connection half open, say."""
    again = copy_of(bench, bench.targets[T1].place, boot=100)
    assert isinstance(answer(bench, again), TargetRegistered)
    assert bench.machine.members.targets[T1].boot == 100


def test_a_connection_that_broke_gives_a_copy_no_chance_for_a_lease(bench: Bench) -> None:
    bench.stop("t1")
    bench.tick(LEASE_S * 0.9)
    assert refused(bench, copy_of(bench)).code == "busy"
    bench.start(T1)
    assert is_live(bench)
    bench.stop("t1")
    bench.tick(LEASE_S * 1.1)
    assert isinstance(answer(bench, copy_of(bench)), TargetRegistered)
    assert refused(bench, bench.targets[T1]).code == "busy"


def test_a_new_coordinator_keeps_the_known_place_its_seat_for_a_lease(bench: Bench) -> None:
    bench.restart("t0", "t2", "t3")
    assert refused(bench, copy_of(bench)).code == "busy"
    bench.start(T1)
    bench.tick()
    assert is_live(bench)
    bench.restart("t0", "t2", "t3")
    bench.tick(LEASE_S * 1.1)
    moved = copy_of(bench, "another host/fs/1")
    assert isinstance(answer(bench, moved), TargetRegistered), "a directory may move"


def test_an_emptied_directory_is_refused_until_somebody_says_so(bench: Bench) -> None:
    bench.stop("t1")
    bench.tick(60)
    emptied = replace(copy_of(bench), incarnation=incarnation(9))
    told = refused(bench, emptied)
    assert told.code == "refused"
    assert "emptied" in told.message
    assert "ckpt target replace t1" in told.hint
    standing = checks(bench)
    assert "TARGET_DOWN" not in standing, "its process runs; to start it mends nothing"
    assert standing["DIRECTORY_UNKNOWN"]["command"] == "ckpt target replace t1"
    assert standing["REDUNDANCY_LOW"]["command"] == "ckpt target replace t1"
    replaced = replace_it(bench)
    assert isinstance(replaced, TargetReplaced)
    assert (replaced.incarnation, replaced.target) == (incarnation(9), "t1")
    assert isinstance(answer(bench, emptied), TargetRegistered)
    assert "DIRECTORY_UNKNOWN" not in checks(bench)
    # The old directory comes back: it counts no more.
    old = refused(bench, replace(bench.targets[T1], boot=BootId(101)))
    assert "t1 is another directory" in old.message


def test_a_second_target_of_a_name_that_is_served_is_told_to_take_another(bench: Bench) -> None:
    """Nothing is to be brought back or replaced: somebody gave one name twice."""
    second = replace(copy_of(bench), incarnation=incarnation(9))
    told = refused(bench, second)
    assert told.message == (
        "target t1 is another directory than /copies/host/fs/copy: d/t1, which is served"
    )
    assert "with an --id of its own" in told.hint
    standing = checks(bench)["DIRECTORY_UNKNOWN"]
    assert standing["command"] == "ssh a kill 77"
    bench.stop("t1")
    assert "ckpt target replace t1" in refused(bench, replace(second, boot=BootId(100))).hint
    assert checks(bench)["DIRECTORY_UNKNOWN"]["command"] == "ckpt target replace t1"


def test_what_was_said_holds_behind_a_restart(bench: Bench) -> None:
    bench.stop("t1")
    emptied = replace(copy_of(bench), incarnation=incarnation(9))
    refused(bench, emptied)
    replace_it(bench)
    bench.restart("t0", "t2", "t3")
    assert isinstance(answer(bench, emptied), TargetRegistered)
    bench.restart("t0", "t2", "t3")
    refused(bench, replace(bench.targets[T1], boot=BootId(101)))


def test_a_replacement_is_told_only_when_it_is_durable(bench: Bench) -> None:
    bench.stop("t1")
    refused(bench, replace(copy_of(bench), incarnation=incarnation(9)))
    bench.persist_at_once = False
    assert bench.tell(bench.session(Role.ADMIN), ReplaceTarget(T1)) == []
    (ticket,) = bench.tickets
    seen = [entry for entry in ticket.entries if isinstance(entry, TargetSeen)]
    assert [each.incarnation for each in seen] == [incarnation(9)]


def test_one_that_left_after_it_replaced_another_is_replaced_by_none_that_has_not_knocked(
    bench: Bench,
) -> None:
    """Two disks within a minute: who asks too soon must not hear that it is done."""
    bench.stop("t1")
    target = bench.targets[T1]
    target.incarnation = b"n" * 16
    target.reboot()
    refused(bench, target)
    assert isinstance(replace_it(bench), TargetReplaced)
    bench.start(T1)
    bench.tick(1)
    bench.stop("t1")
    for repeated in (False, True):
        answered = replace_it(bench, repeated=repeated)
        assert isinstance(answered, Failed)
        assert answered.code == "not_found"


def test_a_replacement_whose_answer_was_lost_is_done_when_it_is_asked_again(bench: Bench) -> None:
    """The target may be live by now, and another coordinator may lead."""
    bench.stop("t1")
    emptied = replace(copy_of(bench), incarnation=incarnation(9))
    refused(bench, emptied)
    first = replace_it(bench)
    assert isinstance(first, TargetReplaced)
    unknown = replace_it(bench, repeated=True)
    assert isinstance(unknown, Failed), "that one may have died before it did anything"
    assert unknown.code == "not_found"
    assert replace_it(bench, incarnation(9), repeated=True) == first
    bench.restart("t0", "t2", "t3")
    assert isinstance(answer(bench, emptied), TargetRegistered)
    for wanted in (b"", incarnation(9)):
        assert replace_it(bench, wanted, repeated=True) == first
    other = replace_it(bench, incarnation(8), repeated=True)
    assert isinstance(other, Failed), "that was never said"
    assert "t1 is live" in other.message
    fresh = replace_it(bench)
    assert isinstance(fresh, Failed), "that is another question"


def test_nothing_is_replaced_blindly(bench: Bench) -> None:
    live = replace_it(bench)
    assert isinstance(live, Failed)
    assert "t1 is live, from d/t1" in live.message
    assert live.hint == "it has no need of that: no other directory asks for its place"
    bench.stop("t2")
    bench.tick(LEASE_S * 1.1)
    refused(bench, replace(bench.targets[TargetId("t2")], incarnation=incarnation(7)))
    other = replace_it(bench)
    assert isinstance(other, Failed)
    assert other.hint.endswith("asks for its place, one asks for that of t2")
    refused(bench, replace(bench.targets[T1], incarnation=incarnation(8), boot=BootId(99)))
    meant = replace_it(bench)
    assert isinstance(meant, Failed)
    assert meant.hint.startswith("end it first, for good: kill ")
    bench.start("t2")
    bench.stop("t1")
    bench.tick(20)
    nobody = replace_it(bench)
    assert isinstance(nobody, Failed)
    assert nobody.code == "not_found"
    for number in (8, 9):
        refused(bench, replace(copy_of(bench, f"p{number}"), incarnation=incarnation(number)))
    several = replace_it(bench)
    assert isinstance(several, Failed)
    assert incarnation(8).hex() in several.message
    assert incarnation(9).hex() in several.message
    one = replace_it(bench, incarnation(9))
    assert isinstance(one, TargetReplaced)
    assert one.incarnation == incarnation(9)


def test_a_directory_under_another_name_is_refused_also_when_the_first_is_away(
    bench: Bench,
) -> None:
    bench.stop("t1")
    bench.tick(60)
    renamed = replace(copy_of(bench), id=TargetId("t9"))
    told = refused(bench, renamed)
    assert "is the directory of target t1, or a copy of it, under the name t9" in told.message
    assert checks(bench)["DIRECTORY_COPIED"]["command"] == "ssh a kill 77"
    assert TargetId("t9") not in bench.machine.members.targets


def test_a_directory_of_another_target_never_replaces_one(bench: Bench) -> None:
    """Else one directory would be two targets, and each column of the one a column of both."""
    bench.stop("t1", "t2")
    bench.tick(60)
    stolen = replace(copy_of(bench), id=TargetId("t2"), place="elsewhere")
    assert "of target t1" in refused(bench, stolen).message
    assert "DIRECTORY_UNKNOWN" not in checks(bench)
    answered = bench.tell(bench.session(Role.ADMIN), ReplaceTarget(TargetId("t2")))[0]
    assert isinstance(answered, Failed)
    assert answered.code == "not_found"


def test_a_removed_directory_is_taken_in_under_no_name(bench: Bench) -> None:
    gone = bench.targets[TargetId("t3")]
    bench.stop(gone.id)
    bench.tick(60)
    bench.tell(bench.session(Role.ADMIN), ChangeTarget(gone.id, "removed", force=True))
    bench.tick(1)
    for _ in range(2):
        told = refused(bench, gone)
        assert "t3 was removed from this cluster, for good" in told.message
        assert told.retry_after_us == round(REMOVED_RETRY_S * US_PER_S), "not twice a second"
        other = replace(gone, id=TargetId("t9"))
        assert "is the directory of target t3" in refused(bench, other).message
        bench.restart("t0", "t1", "t2")


def test_who_would_not_fit_the_cluster_s_map_is_refused_and_others_stay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it says the map would fit no frame, and each target was cut off for ever."""
    held = sum(target_bytes(t.id, t.domain, f"d/{t.id}") for t in bench.targets.values())
    monkeypatch.setattr(claims, "TARGETS_BYTES_MAX", held + 10)
    one_more = FakeTarget(TargetId("t9"), "p/r/h9/d9", BootId(9))
    assert "map has no room for target t9: 4 targets" in refused(bench, one_more).message
    bench.stop("t3")
    elsewhere = replace(bench.targets[TargetId("t3")], domain="p/r/" + "h" * 20 + "/d3")
    assert "map has no room for target t3" in refused(bench, elsewhere).message
    bench.start("t3")
    assert bench.machine.members.live_count == 4
    bench.restart(*bench.targets)
    assert bench.machine.members.live_count == 4
    assert "map has no room for target t9" in refused(bench, one_more).message


def test_targets_of_the_version_before_are_taken_in_and_their_first_incarnation_is_noted() -> None:
    bench = Bench()
    bench.start(T1)
    assert is_live(bench)
    grown = replace(bench.targets[T1], boot=BootId(50), incarnation=incarnation(5), place="here")
    assert refused(bench, grown).code == "busy", "a newer daemon on a copy, say"
    bench.stop("t1")
    assert isinstance(answer(bench, grown), TargetRegistered)
    other = replace(grown, boot=BootId(51), incarnation=incarnation(6))
    assert "another directory" in refused(bench, other).message
    # The version before again, on the same directory: it tells nothing.
    bench.tick(LEASE_S * 2.1)
    older = replace(grown, boot=BootId(52), incarnation=b"", place="")
    assert isinstance(answer(bench, older), TargetRegistered)
    refused(bench, replace(other, boot=BootId(53)))


def test_what_is_no_incarnation_is_refused(bench: Bench) -> None:
    assert "16 bytes" in refused(bench, replace(copy_of(bench), incarnation=b"short")).message


def test_a_directory_that_is_refused_vouches_for_nothing_and_proves_nothing(bench: Bench) -> None:
    """Else an emptied one would hide that the real one has obeyed another coordinator."""
    bench.restart("t0", "t2", "t3")
    bench.tick(LEASE_S * 2)
    refused(bench, replace(copy_of(bench), incarnation=incarnation(9)))
    t1 = bench.targets[T1]
    t1.term_seen = bench.term
    told = answer(bench, t1)
    assert isinstance(told, Failed)
    assert told.code == "corrupt", "it obeyed a coordinator of this term, which was not this one"


def test_a_directory_that_was_replaced_proves_nothing_under_another_name(bench: Bench) -> None:
    """It obeyed this very coordinator; nobody is to lose service by it."""
    bench.stop("t1")
    refused(bench, replace(copy_of(bench), incarnation=incarnation(9)))
    replace_it(bench)
    old = replace(bench.targets[T1], id=TargetId("t9"), boot=BootId(101))
    old.term_seen = bench.term
    assert isinstance(answer(bench, old), TargetRegistered)
    assert "CATALOG_OLD" not in checks(bench)
