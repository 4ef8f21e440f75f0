"""Nobody is served before the targets vouch for the catalog; one proof that it is old is enough."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.documents.record import decode_record, encode_record
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinated_target import SECRET
from tests.protocol.coordinating import RUN, Bench, RankFake
from tests.protocol.old_catalogs import (
    EMPTY,
    GATHERING_S,
    INDEX,
    RECORD,
    TOMBSTONE,
    assert_old,
    begin_from,
    checks,
    copy_of,
    newest,
    newest_id,
)

# --------------------------------------------------------------------------- who is old


@pytest.mark.parametrize("others", [(), ("t1",), ("t1", "t2", "t3")])
def test_an_empty_catalog_beside_one_target_with_records_serves_nobody(
    others: tuple[str, ...],
) -> None:
    bench = Bench()
    bench.save(1)
    begin_from(bench, EMPTY, "t0", *others)
    bench.tick(1)
    assert_old(bench)


def test_an_empty_catalog_to_which_nobody_came_says_that_another_one_may_be_missing() -> None:
    """As on a directory whose disk is not mounted, while its targets are away as well."""
    bench = Bench(targets_live=False)
    session = bench.session()
    assert newest(bench, session) == []
    bench.tick(GATHERING_S + 1)
    (failed,) = bench.to(session)
    assert isinstance(failed, Failed)
    assert "the catalog is new and empty, and no target has come" in failed.message
    assert "if it had a catalog" in failed.hint
    assert "ckpt catalog rebuild DIR" in failed.hint
    assert checks(bench)["CATALOG_UNPROVED"] == failed.hint
    bench.start("t0")
    assert checks(bench)["CATALOG_UNPROVED"].startswith("start them on their hosts")


@pytest.mark.parametrize("lives", [0, 1, 2, 5])
def test_a_copy_is_old_however_many_lives_were_behind_it(lives: int) -> None:
    """With one, the copy's next term is the one that its targets obey."""
    bench = Bench()
    bench.save(1)
    copy = copy_of(bench)
    bench.save(2)
    for _ in range(lives):
        bench.restart("t0", "t1", "t2", "t3")
    begin_from(bench, copy, "t0", "t1", "t2", "t3")
    bench.tick(1)
    assert_old(bench)


def test_over_one_start_a_term_is_not_used_twice_though_nothing_was_saved_in_it() -> None:
    bench = Bench()
    bench.save(1)
    copy = copy_of(bench)
    bench.restart("t0", "t1", "t2", "t3")
    term = bench.term
    begin_from(bench, copy, "t3")
    assert bench.term == term
    assert_old(bench)


def test_what_is_proved_once_is_noted_and_does_not_fade_with_more_starts() -> None:
    bench = Bench()
    bench.save(1)
    begin_from(bench, EMPTY, "t0")
    assert [e for e in bench.durable if isinstance(e, catalog.CatalogOutdated)]
    for _ in range(5):
        bench.restart()
        bench.tick()
        assert_old(bench)


def test_starts_without_any_target_do_not_outgrow_the_proof() -> None:
    """Each takes a term; the position that targets were told stays above the copy's."""
    bench = Bench()
    bench.save(1)
    copy = copy_of(bench)
    session = bench.session()
    bench.tell(session, JoinLaunch(RUN, "another", Rank(0), 1, "p"))
    bench.tick(1)
    begin_from(bench, copy)
    for _ in range(5):
        bench.restart()
        bench.tick(1)
    assert bench.term > max(target.term_seen for target in bench.targets.values())
    bench.start("t2")
    bench.tick()
    assert_old(bench)


def test_a_deletion_that_the_copy_does_not_know_proves_it_old() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    copy = copy_of(bench)
    mark = bench.mark()
    bench.stop("t3")
    bench.tell(bench.session(), DeleteStep(RUN, Step(1)))
    assert bench.sent(StepDeleted, mark)
    for target in bench.targets.values():
        target.catalog, target.term_seen = None, 0  # Of a version that kept neither.
    begin_from(bench, copy, "t0", "t1", "t2")
    bench.tick(1)
    assert_old(bench)


def test_a_proof_that_comes_late_ends_the_service() -> None:
    bench = Bench()
    bench.save(1)
    copy = copy_of(bench)
    bench.save(2)
    holders = [t.id for t in bench.targets.values() if (RECORD, newest_id(bench)) in t.documents]
    for target in bench.targets.values():
        target.catalog, target.term_seen = None, 0
    others = [id for id in bench.targets if id not in holders]
    for id in others:
        bench.targets[id].columns = {
            c: p for c, p in bench.targets[id].columns.items() if c.payload.checkpoint.step == 1
        }
        bench.targets[id].documents.pop((INDEX, newest_id(bench)), None)
    # More than m targets are away, which nobody promised to survive.
    begin_from(bench, copy, *others)
    rank = RankFake(bench, key="k2")
    assert rank.heard == []
    bench.start(holders[0])
    bench.tick()
    (failed,) = rank.heard
    assert isinstance(failed, Failed)
    assert_old(bench)


def test_a_save_under_way_is_not_said_to_have_failed_by_an_old_catalog() -> None:
    """It may be committed: its stager waits for a coordinator that knows."""
    bench = Bench()
    bench.save(1)
    copy = copy_of(bench)
    rank = RankFake(bench)
    rank.open(2)
    rank.seal_all()
    rank.certify()
    assert rank.commits()
    begin_from(bench, copy, "t0", "t1")
    rank.reconnect()
    bench.tick(GATHERING_S + 2)
    rank.resume(2, rank.payload.checkpoint)
    bench.tick(GATHERING_S + 2)
    assert rank.heard == []
    rank.certify()
    bench.tick(GATHERING_S + 2)
    assert rank.heard == []
    new = RankFake(bench, key="new")
    bench.tick(GATHERING_S + 2)
    assert [type(heard) for heard in new.heard] == [Failed]


# --------------------------------------------------------------------------- each proof

NEW = CheckpointId(RunName("run"), Step(9), Generation(1, 900))
FORGOTTEN = CheckpointId(RunName("run"), Step(5), Generation(1, 5))
PASSED_OVER = CheckpointId(RunName("run"), Step(6), Generation(1, 890))


class Known(Bench):
    """A catalog that was rebuilt at term 3 from targets that held PASSED_OVER, and what came of
    seven generations since."""

    ROWS = ("open", "decided", "committed", "damaged", "tombstoned", "deleted", "aborted")

    def _new_machine(self) -> CoordinatorMachine:
        image = apply_all(CatalogImage(self.term), self.durable)  # type: ignore[arg-type]
        image.passed_over, image.rebuilt_term = {PASSED_OVER}, 3
        return CoordinatorMachine(self.policy, image, secret=SECRET, wall_s=lambda: 1.5)


def known() -> tuple[Bench, dict[str, CheckpointId]]:
    """A bench whose targets vouched, and its generations by state."""
    bench = Known()
    ids = {"committed": bench.save(1), "damaged": bench.save(2), "tombstoned": bench.save(3)}
    ids["deleted"] = bench.save(4)
    record = next(e for e in bench.durable if isinstance(e, catalog.AttemptDecided))
    for number, name in enumerate(("open", "decided", "aborted"), 100):
        ids[name] = CheckpointId(RunName("other"), Step(number), Generation(4, number))
        bench.durable.append(catalog.AttemptOpened(ids[name], LaunchNumber(1), "k", 1))
    decided = decode_record(record.record)
    decided = replace(decided, info=replace(decided.info, checkpoint=ids["decided"]))
    bench.durable += [
        catalog.AttemptDecided(ids["decided"], encode_record(decided)),
        catalog.RowAborted(ids["aborted"], "aborted", "a rank died"),
        catalog.CheckpointDamaged(ids["damaged"], "rotten"),
        catalog.CheckpointTombstoned(ids["tombstoned"], "expired"),
        catalog.CheckpointTombstoned(ids["deleted"], "expired"),
        catalog.CheckpointDeleted(ids["deleted"]),
        catalog.RowForgotten(FORGOTTEN),
    ]
    bench.term = 4
    ids |= {"forgotten": FORGOTTEN, "passed over": PASSED_OVER}
    ids["new"] = NEW
    ids["new since"] = CheckpointId(RunName("run"), Step(9), Generation(4, 900))
    return bench, ids


PROVES = {
    # "passed over": a record that a rebuild has seen.
    RECORD: {"open", "aborted", "new", "new since"},
    TOMBSTONE: {"open", "decided", "committed", "damaged", "new", "new since"},
    INDEX: {"new since"},
    None: {"new since"},
}
STATES = (*Known.ROWS, "forgotten", "passed over", "new", "new since")


@pytest.mark.parametrize("kind", PROVES)
@pytest.mark.parametrize("state", STATES)
def test_what_a_target_holds_proves_the_catalog_old_or_does_not(
    kind: DocumentKind | None, state: str
) -> None:
    bench, ids = known()
    target = bench.targets[TargetId("t0")]
    if kind is None:
        column = ColumnId(PayloadId(ids[state], Rank(0)), ColumnNumber(0))
        bench.restart()
        target.columns = {column: target.proof(column, "2+1", 10_000)}
    else:
        bench.restart()
        target.columns = {}
        target.documents = {(kind, ids[state]): b"document"}
    for id in ("t0", "t1", "t2"):
        bench.start(id)
    # Not one tick: what is done for those that vouched is another matter.
    old = "older than its targets" in str(newest(bench))
    assert old == (state in PROVES[kind]), bench.machine.vouching.reason


def test_who_was_absent_when_the_catalog_was_made_is_waited_for_once_it_has_come() -> None:
    """Three of five are gone: the catalog was made of the two that are left."""
    bench = Bench(5, targets_live=False)
    known = [TargetSeen(id, t.domain, "d", b"") for id, t in bench.targets.items()]
    for seen in known[2:]:
        bench.durable.append(dataclasses.replace(seen, standing=TargetStanding.ABSENT))
    bench.durable += known[:2]
    bench.rebuilt_from = 2
    bench.restart("t0", "t1")
    bench.tick(10)
    assert bench.machine.vouching.serves, "both that were named"
    bench.start(TargetId("t4"))
    bench.tick(1)
    seats = bench.machine.members.seats
    standings = [seats.standing_of(id) for id in bench.targets]
    assert standings[2:] == [TargetStanding.ABSENT, TargetStanding.ABSENT, TargetStanding.IN]
    bench.restart("t0")
    bench.tick(10)
    assert not bench.machine.vouching.serves, "of three, two have to vouch"
    assert "t1, t4" in str(bench.machine.vouching.problem())
    bench.start(TargetId("t4"))
    bench.tick(1)
    assert bench.machine.vouching.serves
