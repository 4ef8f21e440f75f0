"""The second count at commit: what counts now, what is streamed again, and when that ends."""

from __future__ import annotations

import pytest

from ckpt.base.ids import BootId, ColumnId, ColumnNumber, TargetId
from ckpt.erasure.code import Code
from ckpt.format.documents.record import decode_record
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import ColumnsLost
from ckpt.format.messages.targets import (
    DropColumn,
    PutDocument,
    RegisterTarget,
    Reserve,
)
from tests.protocol.coordinating import Bench, RankFake, ready

INDEX, RECORD = DocumentKind.INDEX, DocumentKind.RECORD


def test_columns_that_no_longer_count_are_streamed_again_onto_other_targets() -> None:
    bench = Bench(4)
    first, second = ready(bench, 2)
    first.certify()
    lost = first.places()[ColumnNumber(0)].target
    bench.stop(lost)
    mark = bench.mark()
    second.places()
    second.certify()
    (again,) = [x for x in bench.to(first.session, mark) if isinstance(x, ColumnsLost)]
    assert (again.payload, again.columns) == (first.payload, (0,))
    assert bench.states() == {"run@1#1.1": "open"}
    first.seal(0, again.places[0])
    others = [x for x in bench.to(second.session, mark) if isinstance(x, ColumnsLost)]
    for more in others:
        for column, place in zip(more.columns, more.places, strict=True):
            second.seal(column, place)
    first.certify()
    second.certify()
    assert bench.states() == {"run@1#1.1": "committed"}
    index = decode_index(
        next(d for t in bench.targets.values() for (k, _), d in t.documents.items() if k is INDEX)
    )
    assert lost not in {t for payload in index.payloads for t in payload.columns}


def test_a_proof_of_an_earlier_boot_does_not_count() -> None:
    bench = Bench(5)
    first, second = ready(bench, 2)
    first.certify()
    lost = first.places()[ColumnNumber(0)].target
    bench.stop(lost)
    target = bench.targets[lost]
    target.columns.clear()
    target.boot = BootId(99)
    bench.start(target)
    second.certify()
    columns = {c for each in first.heard if isinstance(each, ColumnsLost) for c in each.columns}
    assert columns == {0}


def test_what_a_stager_brings_of_an_earlier_boot_does_not_count() -> None:
    """The target came back without the column before the stager had told of it."""
    bench = Bench()
    (rank,) = ready(bench)
    lost = rank.places()[ColumnNumber(0)].target
    bench.stop(lost)
    bench.targets[lost].columns.clear()
    bench.targets[lost].reboot()
    bench.start(lost)
    rank.certify()
    assert rank.commits() == []
    (again,) = [each for each in rank.heard if isinstance(each, ColumnsLost)]
    assert again.columns == (0,)


def test_columns_on_one_target_count_once() -> None:
    """Whatever a domain may hold: that target may be lost."""
    bench = Bench(3, hosts=1, max_per_domain=3)
    (rank,) = ready(bench)
    places = rank.places()
    bench.targets[places[ColumnNumber(1)].target].columns.clear()
    rank.seal(1, places[ColumnNumber(0)])
    rank.certify()
    assert rank.commits() == []
    (again,) = [each for each in rank.heard if isinstance(each, ColumnsLost)]
    assert again.columns == (1,)
    assert [place.target for place in again.places] == [places[ColumnNumber(1)].target]


def test_what_counted_for_the_index_is_counted_again_when_that_is_stored() -> None:
    """A target went with its column meanwhile."""
    bench = Bench()
    (rank,) = ready(bench)
    held = {place.target for place in rank.places().values()}
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    rank.certify()
    lost = min(held)
    bench.stop(lost)
    for id in sorted(set(bench.targets) - {lost}):
        bench.let_answer(id)
    assert bench.states() == {"run@1#1.1": "open"}, "the floor is three of three"


def test_a_target_that_attests_its_columns_after_a_reboot_counts_again() -> None:
    bench = Bench(4)
    (rank,) = ready(bench)
    for id in bench.targets:
        bench.stop(id)
        bench.targets[id].reboot()
        bench.start(id)
    rank.certify()
    assert bench.states() == {"run@1#1.1": "committed"}


def test_a_save_waits_for_places_that_come_one_by_one_then_streams_to_all_of_them() -> None:
    bench = Bench(5)
    first, second = ready(bench, 2)
    spare = next(iter(set(bench.targets) - {p.target for p in first.places().values()}))
    gone = [first.places()[ColumnNumber(j)].target for j in (0, 1)]
    first.certify()
    idle = sorted(set(bench.targets) - {p.target for p in first.places().values()})
    bench.stop(*gone, *idle)
    second.certify()
    mark = bench.mark()
    bench.tick(1)
    bench.start(idle[0])
    bench.tick(1)
    assert bench.sent(ColumnsLost, mark) == []
    bench.start(idle[1])
    bench.tick(1)
    lost = [x for x in bench.to(first.session, mark) if isinstance(x, ColumnsLost)]
    assert [each.columns for each in lost[:1]] == [(0, 1)]
    assert sorted(place.target for place in lost[0].places) == idle
    assert spare in idle


def test_places_are_asked_for_once_however_often_it_is_counted_meanwhile() -> None:
    bench = Bench(5)
    first, second = ready(bench, 2)
    first.certify()
    bench.stop(first.places()[ColumnNumber(0)].target)
    for target in bench.targets.values():
        target.silent.add(Reserve)
    second.certify()
    mark = bench.mark()
    for _ in range(3):
        first.certify()
    assert bench.sent(Reserve, mark) == []
    for id in bench.targets:
        bench.let_answer(id)
    lost = [x for x in bench.to(first.session, mark) if isinstance(x, ColumnsLost)]
    assert [each.columns for each in lost] == [(0,)]


def test_a_payload_that_stays_below_the_floor_ends_the_attempt_and_names_the_count() -> None:
    bench = Bench(3)
    first, second = ready(bench, 2)
    first.certify()
    bench.stop(first.places()[ColumnNumber(0)].target)
    second.certify()
    bench.tick(8)
    assert first.aborts() == []
    # Its target was there a moment ago: it is waited for as long as its lease.
    bench.tick(3 + 3)
    assert "2 columns can count, 3 are needed for 2+1; 2 targets are live" in (
        first.aborts()[0].message
    )


def test_what_is_streamed_again_in_vain_is_asked_once_a_tick_and_ends_within_the_grace() -> None:
    """Coordinator and stager told each other the same for ever, without time passing."""
    bench = Bench(4)
    first, second = ready(bench, 2)
    first.certify()
    bench.stop(first.places()[ColumnNumber(0)].target)
    second.certify()
    for _ in range(12):
        mark = bench.mark()
        for _ in range(3):
            first.certify()
        asked = [x for x in bench.to(first.session, mark) if isinstance(x, ColumnsLost)]
        assert asked == [], "nothing new counts"
        if first.aborts():
            break
        bench.tick(1)
        asked = [x for x in bench.to(first.session, mark) if isinstance(x, ColumnsLost)]
        assert len(asked) <= 1
    aborted = first.aborts()[0]
    assert "2 columns can count, 3 are needed for 2+1; 3 targets are live" in aborted.message


def test_a_domain_counts_only_as_many_columns_as_the_policy_allows() -> None:
    bench = Bench(4)
    (rank,) = ready(bench)
    places = rank.places()
    for place in places.values():
        bench.stop(place.target)
        bench.targets[place.target].domain = "p/r/same/d"
        bench.start(place.target)
    rank.certify()
    bench.tick(10)
    assert rank.commits() == []


@pytest.mark.parametrize(("code", "allowed"), [("2+1", 1), ("2+1", 2), ("4+1", 3)])
@pytest.mark.parametrize("too_many", [False, True])
def test_of_a_domain_s_columns_the_count_at_commit_takes_what_is_allowed_and_not_one_more(
    code: str, allowed: int, too_many: bool
) -> None:
    """Hosts were moved while it streamed. All columns are there and proved, and all are needed."""
    bench = Bench(Code.parse(code).n, code, max_per_domain=allowed)
    (rank,) = ready(bench)
    for place in list(rank.places().values())[: allowed + too_many]:
        target = bench.targets[place.target]
        bench.stop(target.id)
        target.domain = f"p/r/same/{target.id}"
        bench.start(target)
    rank.certify()
    bench.tick(12)
    assert len(rank.commits()) == (not too_many)
    if too_many:
        assert f"{Code.parse(code).n - 1} columns can count" in rank.aborts()[0].message


def test_a_target_of_a_domain_that_is_none_is_told_so_and_is_no_member() -> None:
    bench = Bench(3)
    session = bench.session(Role.TARGET)
    register = RegisterTarget(
        TargetId("t9"), BootId(9), "t9:1", "", "host-without-levels", "d/t9", 1, 1 << 40, 1 << 40,
        0, 0, (),
    )  # fmt: skip
    (failed,) = bench.tell(session, register)
    assert isinstance(failed, Failed)
    assert "host-without-levels" in failed.message
    assert sorted(bench.machine.members.targets) == ["t0", "t1", "t2"]


def test_a_missing_column_is_stated() -> None:
    bench = Bench(5, "3+2")
    rank = RankFake(bench)
    rank.open(1)
    for column, place in list(rank.places().items())[:4]:
        rank.seal(column, place)
    rank.certify()
    (commit,) = rank.commits()
    info = commit.info
    assert (info.columns_missing, info.targets_survivable, info.domains_survivable) == (1, 1, 1)


def test_no_more_is_promised_than_the_copies_of_its_index_outlive() -> None:
    """A target went with its column while these were stored: its columns are enough."""
    bench = Bench(3, "1+2")
    (rank,) = ready(bench)
    bench.tick(10)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    rank.certify()
    bench.stop("t2")
    bench.let_answer("t0")
    bench.let_answer("t1")
    (commit,) = rank.commits()
    assert (commit.info.targets_survivable, commit.info.domains_survivable) == (1, 1)
    record = next(d for (k, _), d in bench.targets[TargetId("t0")].documents.items() if k is RECORD)
    kept = decode_record(record).info
    assert (kept.targets_survivable, kept.domains_survivable) == (1, 1)


def test_a_column_that_its_target_is_about_to_drop_does_not_count() -> None:
    """Its proof is older than the command; the drop would take away what was counted."""
    bench = Bench()
    (rank,) = ready(bench)
    place = rank.places()[ColumnNumber(1)]
    target = bench.targets[place.target]
    target.silent.add(DropColumn)
    column = ColumnId(rank.payload, ColumnNumber(1))
    bench.machine.deleter.drop_column(bench.machine.members.targets[target.id], column)
    rank.certify()
    assert rank.commits() == [], "the floor is three of three"
    bench.let_answer(target.id)
    assert column not in target.columns
