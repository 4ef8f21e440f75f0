"""An upgrade is finished by a word, when nobody is older; until then nothing moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt.base.ids import TargetId
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.layout import usual_cell_bytes
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, TargetChanged
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION, Failed, Role
from ckpt.format.messages.targets import KeepProtocol, Reserve, TargetRegistered
from ckpt.format.messages.upgrading import FinishUpgrade, UpgradeNoted
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.repairing.tasks import NO_ROOM_REST_US
from ckpt.protocol.coordinator.said import UpgradeFinished
from ckpt.protocol.events import Session
from tests.protocol.coordinating import SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_adopting import Scene
from tests.protocol.test_coordinator_repairing import AFTER_S, NOTHING, Worker, holders, wipe

OLDER = PROTOCOL_VERSION - 1


def unfinished(count: int = 4) -> Bench:
    """A catalog that an earlier version made."""
    return Bench(count, protocol=OLDEST_VERSION)


def older(bench: Bench, id: str) -> None:
    """The target is a process of the version before."""
    bench.targets[TargetId(id)].version = OLDER
    bench.stop(id)
    bench.start(id)


def finish(bench: Bench, *, dry_run: bool = False, force: bool = False) -> Message:
    (answer,) = bench.tell(bench.session(Role.ADMIN), FinishUpgrade(dry_run, force))
    return answer


def view(bench: Bench) -> dict[str, Any]:
    found = bench.ask("upgrade")
    assert isinstance(found, dict)
    return found


def checks(bench: Bench) -> list[str]:
    status = bench.ask("status")
    assert isinstance(status, dict)
    return [each["message"] for each in status["checks"] if each["name"] == "UPGRADE_UNFINISHED"]


def may_leave(bench: Bench) -> bool:
    """A target may, and columns move."""
    change = ChangeTarget(TargetId("t0"), "draining", dry_run=True)
    (answer,) = bench.tell(bench.session(Role.ADMIN), change)
    return isinstance(answer, TargetChanged)


def closed(bench: Bench, session: Session) -> bool:
    return session not in bench.machine.upgrading.peers


def test_a_new_cluster_is_finished() -> None:
    bench = Bench()
    assert checks(bench) == []
    assert (view(bench)["finished"], view(bench)["needs"]) == (True, PROTOCOL_VERSION)
    assert all(target.needs == PROTOCOL_VERSION for target in bench.targets.values())
    mark = bench.mark()
    assert finish(bench) == UpgradeNoted(PROTOCOL_VERSION)
    assert bench.story(mark, UpgradeFinished) == [], "nothing is left to say"


def test_it_is_durable_before_it_is_answered_and_on_each_target_before_columns_move() -> None:
    bench = unfinished()
    (text,) = checks(bench)
    assert text.startswith("an earlier version made this cluster: no column moves")
    assert finish(bench, dry_run=True) == UpgradeNoted(PROTOCOL_VERSION)
    assert checks(bench), "that was a question"
    bench.persist_at_once = False
    for target in bench.targets.values():
        assert target.needs == OLDEST_VERSION
        target.silent.add(KeepProtocol)
    session = bench.session(Role.ADMIN)
    assert bench.tell(session, FinishUpgrade()) == []
    assert bench.sent(KeepProtocol) == []
    assert not bench.machine.upgrading.is_finished
    bench.sync()
    assert bench.to(session) == [UpgradeNoted(PROTOCOL_VERSION)]
    assert bench.machine.upgrading.is_finished
    for id in ("t0", "t1", "t2", "t3"):
        assert not may_leave(bench)
        bench.let_answer(id)
        assert bench.targets[TargetId(id)].needs == PROTOCOL_VERSION
    assert may_leave(bench)
    assert checks(bench) == []
    bench.restart("t0", "t1", "t2", "t3")
    assert view(bench)["finished"]
    assert bench.sent(TargetRegistered)[-1].protocol == PROTOCOL_VERSION


def test_who_is_older_stands_against_it_by_name() -> None:
    bench = unfinished()
    older(bench, "t1")
    stager = bench.session(Role.STAGER, OLDER, "host:7")
    worker = bench.session(Role.DRAIN, 1, "drain@host")
    bench.machine.upgrading.colleagues = lambda: {"b": OLDER, "c": PROTOCOL_VERSION}
    wanted = (
        "coordinator b speaks protocol 2, not 3",
        "stager host:7 speaks protocol 2, not 3",
        "target t1 speaks protocol 2, not 3",
        "worker drain@host speaks protocol 1, not 3",
    )
    assert finish(bench, dry_run=True) == UpgradeNoted(PROTOCOL_VERSION, wanted)
    for force in (False, True):
        refusal = finish(bench, force=force)
        assert isinstance(refusal, Failed)
        assert (refusal.code, refusal.message) == ("refused", "; ".join(wanted))
        assert "upgrade these" in refusal.hint
    assert all(text in checks(bench)[0] for text in wanted)
    rows = [(each["kind"], each["name"], each["protocol"]) for each in view(bench)["members"]]
    assert rows[:7] == [
        ("coordinator", "", 3), ("coordinator", "b", 2), ("coordinator", "c", 3),
        ("target", "t0", 3), ("target", "t1", 2), ("target", "t2", 3), ("target", "t3", 3),
    ]  # fmt: skip
    assert ("stager", "host:7", 2) in rows
    bench.close(stager)
    bench.close(worker)
    bench.machine.upgrading.colleagues = lambda: {"c": PROTOCOL_VERSION}
    bench.targets[TargetId("t1")].version = PROTOCOL_VERSION
    bench.stop("t1")
    bench.start("t1")
    assert isinstance(finish(bench), UpgradeNoted)


def test_many_of_a_kind_are_counted() -> None:
    bench = unfinished()
    for number in range(5):
        bench.session(Role.READER, OLDER, f"h:{number}")
    answer = finish(bench, dry_run=True)
    assert isinstance(answer, UpgradeNoted)
    assert answer.against == ("reader h:0, h:1, h:2 and 2 more speaks protocol 2, not 3",)


@pytest.mark.parametrize("spoke", [None, OLDER, PROTOCOL_VERSION])
def test_a_target_that_is_away_is_waited_for_unless_it_was_upgraded(spoke: int | None) -> None:
    """It may be gone for good, and cannot be removed before: so it may be passed over."""
    bench = unfinished()
    if spoke == OLDER:
        older(bench, "t3")
    if spoke is None:
        bench.restart("t0", "t1", "t2")
    else:
        bench.stop("t3")
    answer = finish(bench)
    if spoke == PROTOCOL_VERSION:
        assert answer == UpgradeNoted(PROTOCOL_VERSION)
        return
    why = "and what it speaks is not known" if spoke is None else "and spoke protocol 2"
    assert isinstance(answer, Failed)
    assert answer.message == f"target t3 is away, {why}"
    assert "--force" in answer.hint
    assert finish(bench, force=True) == UpgradeNoted(PROTOCOL_VERSION)
    # It hears what one has to speak before it obeys.
    bench.targets[TargetId("t3")].version = PROTOCOL_VERSION
    bench.start("t3")
    assert bench.targets[TargetId("t3")].needs == PROTOCOL_VERSION


def test_an_older_peer_that_comes_while_it_is_made_durable_is_cut_off() -> None:
    bench = unfinished()
    bench.persist_at_once = False
    bench.tell(bench.session(Role.ADMIN), FinishUpgrade())
    late = bench.session(Role.STAGER, OLDER)
    assert not closed(bench, late)
    bench.sync()
    assert closed(bench, late)
    assert closed(bench, bench.session(Role.STAGER, OLDER)), "and whoever comes after it"


def test_a_target_that_cannot_keep_it_is_no_target_until_it_can() -> None:
    bench = unfinished()
    bad = bench.targets[TargetId("t2")]
    bad.refuses[KeepProtocol] = Failed("unavailable", "EIO")
    assert isinstance(finish(bench), UpgradeNoted)
    assert bad.session is None
    assert may_leave(bench), "nothing moves there"


def test_one_that_leaves_without_an_answer_holds_nothing_up() -> None:
    bench = unfinished()
    bench.targets[TargetId("t2")].silent.add(KeepProtocol)
    finish(bench)
    assert not may_leave(bench)
    bench.stop("t2")
    assert may_leave(bench)


@pytest.mark.parametrize("strange", [0, 1 << 40])
def test_a_target_that_has_kept_more_than_the_catalog_says_teaches_it(strange: int) -> None:
    """The catalog is a copy from before; or was made again where that target was away."""
    bench = unfinished()
    bench.stop("t1")
    bench.targets[TargetId("t1")].needs = PROTOCOL_VERSION + strange
    mark = bench.mark()
    bench.start("t1")
    assert bench.story(mark, UpgradeFinished) == [UpgradeFinished(PROTOCOL_VERSION)]
    assert bench.machine.upgrading.is_finished
    assert all(target.needs >= PROTOCOL_VERSION for target in bench.targets.values())


@pytest.mark.parametrize("standing", ["draining", "out", "removed"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_target_leaves_before(standing: str, dry_run: bool) -> None:
    bench = unfinished(5)
    bench.stop("t4")
    change = ChangeTarget(TargetId("t4"), standing, force=True, dry_run=dry_run)
    (refusal,) = bench.tell(bench.session(Role.ADMIN), change)
    assert isinstance(refusal, Failed)
    assert refusal.message.startswith("the upgrade of this cluster is not finished")
    assert "ckpt upgrade finish" in refusal.hint
    (answer,) = bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId("t4"), "in"))
    assert isinstance(answer, TargetChanged), "what nothing follows from may be said"
    finish(bench, force=True)
    (answer,) = bench.tell(bench.session(Role.ADMIN), change)
    assert isinstance(answer, TargetChanged)


def test_a_right_copy_is_kept_and_not_named_before() -> None:
    scene = Scene(protocol=OLDEST_VERSION)
    lost = scene.holder(1)
    scene.leave(lost)
    scene.copy(1, scene.spare)
    mark = scene.bench.mark()
    scene.come_back(scene.spare)
    scene.bench.tick(5)
    assert scene.bench.story(mark, ColumnsMoved) == []
    assert scene.missing == 1
    assert scene.spare.columns, "but nobody drops it"
    finish(scene.bench)
    scene.bench.tick(5)
    assert len(scene.bench.story(mark, ColumnsMoved)) == 1
    assert scene.missing == 0


def test_a_column_is_made_again_in_its_own_place_alone_before() -> None:
    bench = unfinished()
    id = bench.save(1)
    first, second, third = holders(bench, id)
    worker = Worker(bench)
    bench.stop(first.id)
    bench.tick(AFTER_S + 60)
    assert worker.lease() == NOTHING, "its holder is away: anywhere else would be a move"
    bench.start(first)
    wipe(bench, second)
    assert worker.lease() != NOTHING
    assert worker.places == [second.id]
    mark = bench.mark()
    worker.seal()
    worker.end()
    bench.tick(5)
    assert bench.story(mark, ColumnsMoved) == []
    assert holders(bench, id) == [first, second, third]
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    assert bench.machine.checkpoints.redundancy(checkpoint).columns_missing == 0
    # What its holder does not take stays missing until it is finished.
    wipe(bench, first)
    first.refuses[Reserve] = Failed("no_space", "full")
    assert worker.lease() == NOTHING
    assert isinstance(finish(bench), UpgradeNoted)
    bench.tick(NO_ROOM_REST_US / SECOND_US)
    assert worker.lease() != NOTHING
    (place,) = worker.places
    assert place not in (first.id, second.id, third.id)


def cell_bytes(bench: Bench, payload_bytes: int) -> int:
    """Of a new payload."""
    rank = RankFake(bench, run=f"of-{payload_bytes}")
    rank.payload_bytes = payload_bytes
    rank.open(1)
    assert rank.plan is not None
    return rank.plan.cell_bytes


def test_cells_that_0_1_0_refuses_come_with_the_end_of_the_upgrade() -> None:
    bench, large = unfinished(), 1 << 30
    assert cell_bytes(bench, large) == 4 * MiB
    assert isinstance(finish(bench), UpgradeNoted)
    assert cell_bytes(bench, large + 1) == 8 * MiB


def test_only_what_fills_several_large_stripes_has_large_cells() -> None:
    bench, enough = Bench(), 4 * 2 * 8 * MiB
    assert cell_bytes(bench, enough - 1) == 4 * MiB
    assert cell_bytes(bench, enough) == 8 * MiB
    assert usual_cell_bytes(Code(8, 2), 1 << 40) == 8 * MiB
    assert usual_cell_bytes(Code(9, 2), 1 << 40) == 4 * MiB, "a stripe takes 64 MiB at most"


def test_cells_that_were_asked_for_are_taken_as_they_are() -> None:
    bench = Bench()
    bench.policy = replace(bench.policy, cell_bytes=2 * MiB)
    bench.restart(*bench.targets)
    assert cell_bytes(bench, 1 << 30) == 2 * MiB


def test_a_process_with_several_sessions_is_one_member() -> None:
    bench = Bench()
    for name in ("host:7", "host:7", "host:8"):
        bench.session(Role.STAGER, name=name)
    named = [each["name"] for each in view(bench)["members"] if each["kind"] == "stager"]
    assert named == ["host:7", "host:8"]
