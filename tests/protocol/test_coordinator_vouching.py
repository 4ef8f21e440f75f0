"""Nobody is served before the targets vouch for the catalog; one proof that it is old is enough."""

from __future__ import annotations

from dataclasses import dataclass

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
from ckpt.format import messages as m
from ckpt.format.target_messages import Attest, DocumentKind, LeaseRenewed
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine
from ckpt.protocol.coordinator.membership import GATHERING_US
from ckpt.protocol.coordinator.vouching import Standing
from ckpt.protocol.events import Session
from tests.protocol.coordinated_target import SECRET
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake

RECORD, INDEX, TOMBSTONE = DocumentKind.RECORD, DocumentKind.INDEX, DocumentKind.TOMBSTONE
GATHERING_S = GATHERING_US // SECOND_US


@dataclass(frozen=True)
class Copy:
    """Of a catalog, as a backup has it."""

    durable: tuple[object, ...]
    term: int


def copy_of(bench: Bench) -> Copy:
    return Copy(tuple(bench.durable), bench.term)


def begin_from(bench: Bench, copy: Copy, *targets: str) -> None:
    """A coordinator starts on it; these targets come."""
    bench.durable, bench.term = list(copy.durable), copy.term
    bench.restart(*targets)


def newest(bench: Bench, session: Session | None = None) -> list[m.Message]:
    """What a job is told that asks for the newest step; nothing while it has to wait."""
    session = bench.session() if session is None else session
    return bench.tell(session, m.Resolve(RUN, None))


def checks(bench: Bench) -> dict[str, str]:
    """Of the status, which is told always: remedy by name."""
    status = bench.ask("status")
    assert isinstance(status, dict)
    return {check["name"]: check["remedy"] for check in status["checks"]}


def assert_old(bench: Bench) -> None:
    (failed,) = newest(bench)
    assert isinstance(failed, m.Failed)
    assert failed.code == "corrupt"
    assert "older than its targets" in failed.message
    assert "run: ckpt catalog rebuild" in failed.hint
    assert "CATALOG_OLD" in checks(bench)


def assert_serves(bench: Bench, step: int) -> None:
    """And the newest step is this one."""
    (resolved,) = newest(bench)
    assert isinstance(resolved, m.Resolved), resolved
    runs = bench.ask("runs")
    assert isinstance(runs, list)
    assert [run["latest"] for run in runs] == [step]
    assert checks(bench).keys().isdisjoint({"CATALOG_OLD", "CATALOG_UNPROVED"})


EMPTY = Copy((), 0)

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
    bench.tell(session, m.JoinLaunch(RUN, "another", Rank(0), 1, "p"))
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
    bench.tell(bench.session(), m.DeleteStep(RUN, Step(1)))
    assert bench.sent(m.StepDeleted, mark)
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
    holders = [t.id for t in bench.targets.values() if (RECORD, _newest(bench)) in t.documents]
    for target in bench.targets.values():
        target.catalog, target.term_seen = None, 0
    others = [id for id in bench.targets if id not in holders]
    for id in others:
        bench.targets[id].columns = {
            c: p for c, p in bench.targets[id].columns.items() if c.payload.checkpoint.step == 1
        }
        bench.targets[id].documents.pop((INDEX, _newest(bench)), None)
    # More than m targets are away, which nobody promised to survive.
    begin_from(bench, copy, *others)
    rank = RankFake(bench, key="k2")
    assert rank.heard == []
    bench.start(holders[0])
    bench.tick()
    (failed,) = rank.heard
    assert isinstance(failed, m.Failed)
    assert_old(bench)


def _newest(bench: Bench) -> CheckpointId:
    return max(id for target in bench.targets.values() for _, id in target.documents)


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
    new = RankFake(bench, key="new")
    bench.tick(GATHERING_S + 2)
    assert [type(heard) for heard in new.heard] == [m.Failed]


# --------------------------------------------------------------------------- each proof

NEW = CheckpointId(RunName("run"), Step(9), Generation(1, 900))
FORGOTTEN = CheckpointId(RunName("run"), Step(5), Generation(1, 5))
PASSED_OVER = CheckpointId(RunName("run"), Step(6), Generation(1, 890))


class Known(Bench):
    """A catalog that was rebuilt at term 3 from targets that held PASSED_OVER, and what came of
    seven generations since."""

    ROWS = ("open", "decided", "committed", "damaged", "tombstoned", "deleted", "aborted")

    def _new_machine(self) -> CoordinatorMachine:
        image = catalog.apply_all(CatalogImage(self.term), self.durable)  # type: ignore[arg-type]
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
    bench.durable += [
        catalog.AttemptDecided(ids["decided"], record.record, record.placement),
        catalog.AttemptAborted(ids["aborted"], "aborted", "a rank died"),
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


# --------------------------------------------------------------------------- how many vouch


def test_a_new_cluster_is_served_as_soon_as_a_code_could_be_read() -> None:
    bench = Bench(6, "4+2", targets_live=False)
    for id in ("t0", "t1", "t2"):
        bench.start(id)
    session = bench.session()
    assert newest(bench, session) == []
    assert checks(bench)["CATALOG_UNPROVED"] == "start the targets"
    bench.start("t3")
    (failed,) = bench.to(session)
    assert isinstance(failed, m.Failed)
    assert failed.code == "not_found"


@pytest.mark.parametrize(("count", "code", "at_once", "patient"), [
    (7, "4+2", 5, 4), (4, "2+1", 3, 3), (2, "1+1", 1, 1), (12, "4+2", 10, 7), (1, "1+0", 1, 1),
    (5, "1+0", 5, 3),
])  # fmt: skip
def test_all_but_m_vouch_at_once_and_a_majority_behind_the_time_to_gather(
    count: int, code: str, at_once: int, patient: int
) -> None:
    """A catalog that was never copied back is served whoever is away for good, up to that."""
    for come, waits in ((at_once, 0), (patient, GATHERING_S + 1)):
        bench = Bench(count, code)
        bench.save(1)
        ids = [str(id) for id in bench.targets]
        # Those that have the record are the ones that are here.
        ids.sort(key=lambda id: (RECORD, _newest(bench)) not in bench.targets[id].documents)
        bench.restart(*ids[: come - 1])
        bench.tick(waits)
        session = bench.session()
        assert newest(bench, session) == [], (come, "is more than that")
        bench.start(ids[come - 1])
        bench.tick()
        assert bench.machine.vouching.serves, (come, waits)


def test_all_domains_but_m_vouch_at_once_however_many_targets_each_has() -> None:
    """As many may be lost as a commit's answer states, and the coordinator may start again."""
    bench = Bench(6, "1+1", hosts=2)
    bench.save(1)
    bench.restart("t1", "t3")
    bench.tick(GATHERING_S + 1)
    assert "CATALOG_UNPROVED" in checks(bench), "a target of this host may have the record"
    bench.start("t5")
    bench.tick()
    assert_serves(bench, 1)
    bench.restart("t0", "t2", "t4")
    bench.tick()
    assert_serves(bench, 1)


def test_a_catalog_without_a_checkpoint_counts_targets_and_not_domains() -> None:
    bench = Bench(6, "1+1", hosts=2)
    bench.save(1)
    for target in bench.targets.values():
        target.term_seen, target.catalog = 0, None
    holders = {t.id for t in bench.targets.values() if (RECORD, _newest(bench)) in t.documents}
    begin_from(bench, EMPTY)
    bench.tick(1)
    assert "CATALOG_UNPROVED" in checks(bench)
    bench.start(holders.pop())
    bench.tick()
    assert_old(bench)


def test_readers_that_waited_in_vain_are_told_who_is_away_and_stagers_wait_on() -> None:
    bench = Bench()
    bench.save(1)
    bench.restart("t0", "t2")
    reader, rank = bench.session(), RankFake(bench, key="k2")
    assert newest(bench, reader) == []
    bench.tick(GATHERING_S + 1)
    (failed,) = bench.to(reader)
    assert isinstance(failed, m.Failed)
    assert failed.code == "unavailable"
    assert "2 of 3 have vouched" in failed.message
    assert "away: t1, t3" in failed.message
    assert rank.heard == []
    bench.start("t1")
    bench.tick()
    assert isinstance(rank.heard[0], m.LaunchJoined)
    assert_serves(bench, 1)


def test_a_target_does_not_vouch_before_it_has_the_term_on_stable_storage() -> None:
    bench = Bench()
    bench.save(1)
    for target in bench.targets.values():
        target.silent.add(Attest)
    bench.restart("t0", "t1", "t2", "t3")
    bench.tick(1)
    session = bench.session()
    assert newest(bench, session) == []
    for id in ("t0", "t1", "t2"):
        bench.let_answer(id)
    assert isinstance(bench.to(session)[-1], m.Resolved)


def test_requests_of_a_session_that_ended_are_not_done_when_the_targets_come() -> None:
    bench = Bench()
    bench.save(1)
    bench.restart()
    gone = RankFake(bench, key="gone")
    bench.close(gone.session)
    mark = bench.mark()
    for id in bench.targets:
        bench.start(str(id))
    assert bench.story(mark, catalog.LaunchNumbered) == []


def test_nothing_is_dropped_or_rolled_forward_by_an_old_catalog() -> None:
    bench = Bench()
    first = bench.save(1)
    copy = copy_of(bench)
    bench.save(2)
    old = Copy((*copy.durable, catalog.CheckpointTombstoned(first, "expired")), copy.term)
    held = {id: (dict(t.columns), dict(t.documents)) for id, t in bench.targets.items()}
    begin_from(bench, old, "t0", "t1", "t2", "t3")
    bench.tick(20)
    assert_old(bench)
    assert held == {id: (t.columns, t.documents) for id, t in bench.targets.items()}


# --------------------------------------------------------------------------- what targets are told


def test_targets_are_told_only_what_is_durable_in_the_catalog() -> None:
    bench = Bench()
    bench.tick(1)
    target = bench.targets[TargetId("t0")]
    before = target.catalog
    assert before is not None
    bench.persist_at_once = False
    RankFake(bench, key="k2")
    bench.tick(1)
    assert target.catalog == before
    bench.sync()
    bench.tick(1)
    assert target.catalog is not None
    assert target.catalog > before
    image = catalog.apply_all(CatalogImage(1), bench.durable)  # type: ignore[arg-type]
    assert image.position == target.catalog


def test_nothing_is_told_before_the_targets_vouched() -> None:
    bench = Bench()
    bench.restart("t0")
    mark = bench.mark()
    bench.tick(2)
    assert {renewed.catalog for renewed in bench.sent(LeaseRenewed, mark)} == {None}


def test_targets_of_before_which_keep_no_position_vouch_as_well() -> None:
    bench = Bench()
    bench.save(1)
    for target in bench.targets.values():
        target.catalog = None
    bench.restart("t0", "t1", "t2")
    bench.tick()
    assert_serves(bench, 1)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_position_above_the_catalogs_own_proves_it_old(ahead: int) -> None:
    bench = Bench()
    bench.save(1)
    image = catalog.apply_all(CatalogImage(1), bench.durable)  # type: ignore[arg-type]
    position = image.position
    bench.targets[TargetId("t2")].catalog = replace(position, ticket=position.ticket + ahead)
    bench.restart("t2")
    assert (bench.machine.vouching.standing is Standing.OLD) == bool(ahead)
