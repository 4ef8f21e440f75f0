"""How many targets must vouch for a catalog, who waits meanwhile, and what targets are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import (
    TargetId,
)
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.targets import Attest, LeaseRenewed
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.cluster import vouching
from ckpt.protocol.coordinator.cluster.vouching import CatalogStanding
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.events import CloseSession
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinating import Bench, RankFake
from tests.protocol.old_catalogs import (
    EMPTY,
    GATHERING_S,
    RECORD,
    Copy,
    assert_old,
    assert_serves,
    begin_from,
    checks,
    copy_of,
    newest,
    newest_id,
)

# --------------------------------------------------------------------------- how many vouch


def test_a_new_cluster_is_served_as_soon_as_a_code_could_be_read() -> None:
    bench = Bench(6, "4+2", targets_live=False)
    for id in ("t0", "t1", "t2"):
        bench.start(id)
    session = bench.session()
    assert newest(bench, session) == []
    assert checks(bench)["CATALOG_UNPROVED"].startswith("start them on their hosts; where")
    bench.start("t3")
    (failed,) = bench.to(session)
    assert isinstance(failed, Failed)
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
        ids.sort(key=lambda id: (RECORD, newest_id(bench)) not in bench.targets[id].documents)
        bench.restart(*ids[: come - 1])
        bench.tick(waits)
        session = bench.session()
        assert newest(bench, session) == [], (come, "is more than that")
        bench.start(ids[come - 1])
        bench.tick()
        assert bench.machine.vouching.serves, (come, waits)


def test_targets_that_could_not_store_the_term_are_asked_again_while_they_stay() -> None:
    """Their disks were full when they came; found by the simulator's seed 1360732."""
    bench = Bench(4)
    bench.save(1)
    full = Failed("no_space", "no space left on device")
    for target in bench.targets.values():
        target.refuses[Attest] = full
    bench.restart(*bench.targets)
    bench.tick(GATHERING_S + 1)
    assert not bench.machine.vouching.serves
    for target in bench.targets.values():
        target.refuses.clear()
    bench.tick()
    assert_serves(bench, 1)


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
    holders = {t.id for t in bench.targets.values() if (RECORD, newest_id(bench)) in t.documents}
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
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert "2 of 3 have vouched" in failed.message
    assert "away: t1, t3" in failed.message
    assert rank.heard == []
    bench.start("t1")
    bench.tick()
    assert isinstance(rank.heard[0], LaunchJoined)
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
    assert "CATALOG_UNPROVED" in checks(bench)
    for id in ("t0", "t1"):
        bench.let_answer(id)
    bench.tick(1)
    assert "CATALOG_UNPROVED" in checks(bench)
    bench.let_answer("t2")
    assert isinstance(bench.to(session)[-1], Resolved)


def test_who_has_the_term_and_is_away_vouches_for_nobody() -> None:
    """As many as are needed have it, and as many are here, but not the same ones."""
    bench = Bench()
    bench.save(1)
    bench.restart("t0")
    bench.stop("t0")
    bench.start("t1")
    bench.start("t2")
    assert "CATALOG_UNPROVED" in checks(bench)
    bench.targets[TargetId("t3")].silent.add(Attest)
    bench.start("t3")
    bench.tick(1)
    assert "CATALOG_UNPROVED" in checks(bench)
    bench.let_answer("t3")
    assert_serves(bench, 1)


def test_a_target_that_comes_again_in_one_life_is_taken_in_again() -> None:
    bench = Bench()
    bench.save(1)
    bench.tick(1)
    bench.stop("t0")
    assert bench.targets[TargetId("t0")].catalog == bench.machine.vouching.position
    bench.start("t0")
    bench.tick()
    assert_serves(bench, 1)


def test_a_process_that_began_the_same_term_from_a_copy_is_told_from_this_one() -> None:
    """The original and the copy start at the same time: each takes the next term."""
    bench = Bench()
    bench.save(1)
    bench.process = b"the original one"
    bench.restart(*bench.targets)
    bench.stop("t0")
    bench.start("t0")
    assert_serves(bench, 1)
    bench.term -= 1
    bench.process = b"that of the copy"
    bench.restart(*bench.targets)
    assert_old(bench)


def test_who_was_told_the_term_by_two_vouches_for_the_one_that_it_obeys() -> None:
    """It changed over while the first one's term was on its way to the disk."""
    bench = Bench()
    bench.save(1)
    bench.process = b"the original one"
    bench.restart(*bench.targets)
    target = bench.targets[TargetId("t0")]
    bench.stop("t0")
    target.coordinator = b"that of the copy"
    bench.start("t0")
    assert_old(bench)


def test_a_catalog_that_was_made_of_targets_waits_for_as_many_as_were_named() -> None:
    """It does not know where they stand, nor who they are: one alone would be all there is."""
    bench = Bench(7)
    bench.save(1)
    bench.durable = [e for e in bench.durable if not isinstance(e, catalog.TargetSeen)]
    bench.rebuilt_from = 7
    bench.restart("t0", "t1", "t2", "t3", "t4")
    bench.tick()
    session = bench.session()
    assert newest(bench, session) == []
    bench.start("t5")
    assert [type(each) for each in bench.to(session)] == [Resolved]
    assert_serves(bench, 1)


def test_a_catalog_that_was_made_of_targets_is_not_served_by_a_majority_before_it_has_served() -> (
    None
):
    """Its position is above all that the coordinator before it may have told targets meanwhile: who
    is away may hold what that one announced behind the rebuild (seed 750 of two coordinators).
    """
    bench = Bench(7)
    bench.save(1)
    bench.rebuilt_from, bench.term = 7, 1000
    bench.durable.append(catalog.CatalogReached(catalog.CatalogPosition(bench.term, 0)))
    bench.restart("t0", "t1", "t2", "t3", "t4")
    bench.tick(GATHERING_S + 1)
    assert bench.machine.vouching.standing is CatalogStanding.GATHERING
    bench.start("t5")
    assert_serves(bench, 1)
    bench.save(2)
    bench.restart("t0", "t1", "t2", "t3", "t4")
    bench.tick(GATHERING_S + 1)
    assert_serves(bench, 2)


def test_a_term_above_proves_the_catalog_old_without_anything_else() -> None:
    bench = Bench(targets_live=False)
    bench.targets[TargetId("t0")].term_seen = 40
    bench.start("t0")
    assert_old(bench)


def test_a_target_that_came_again_vouches_only_once_it_has_answered_again() -> None:
    bench = Bench()
    bench.save(1)
    bench.restart("t0", "t1")
    bench.stop("t0")
    bench.targets[TargetId("t0")].silent.add(Attest)
    bench.start("t0")
    bench.targets[TargetId("t3")].refuses[Attest] = Failed("unavailable", "its disk fails")
    bench.start("t3")
    bench.start("t2")
    bench.tick()
    session = bench.session()
    assert newest(bench, session) == []
    assert "CATALOG_UNPROVED" in checks(bench)
    bench.let_answer("t0")
    assert isinstance(bench.to(session)[-1], Resolved)


def test_of_one_domain_alone_no_target_is_spared() -> None:
    """More columns may lie in a domain than the code survives: then targets count."""
    bench = Bench(4, hosts=1, max_per_domain=3)
    bench.save(1)
    bench.restart("t0", "t1")
    bench.tick(GATHERING_S + 1)
    assert "CATALOG_UNPROVED" in checks(bench)


def test_who_asks_for_more_than_can_wait_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "HELD_COUNT_MAX", 2)
    bench = Bench()
    bench.save(1)
    bench.restart()
    session = bench.session()
    mark = bench.mark()
    for _ in range(3):
        assert newest(bench, session) == []
    assert [type(action) for action in bench.log[mark:]] == [CloseSession]


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
    image = apply_all(CatalogImage(1), bench.durable)  # type: ignore[arg-type]
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
    image = apply_all(CatalogImage(1), bench.durable)  # type: ignore[arg-type]
    position = image.position
    bench.targets[TargetId("t2")].catalog = replace(position, ticket=position.ticket + ahead)
    bench.restart("t2")
    assert (bench.machine.vouching.standing is CatalogStanding.OLD) == bool(ahead)
