"""From certified to committed: what is refused, what counts, in which order facts are durable."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from msgspec.structs import replace

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank, Step, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    BoxesCompared,
    BoxQuery,
    Certified,
    CompareBoxes,
    PayloadGivenUp,
    PayloadPlanned,
    ReplicaPolicy,
)
from ckpt.format.messages.targets import PutDocument
from ckpt.format.table import Piece
from ckpt.protocol.coordinator import catalog
from tests.protocol.coordinating import (
    Bench,
    RankFake,
    every,
    own_entry,
    ready,
    replica_entry,
    shard_entry,
    team,
)

INDEX, RECORD = DocumentKind.INDEX, DocumentKind.RECORD


def holders(bench: Bench, kind: DocumentKind) -> list[str]:
    return [t.id for t in bench.targets.values() if any(k is kind for k, _ in t.documents)]


# --------------------------------------------------------------------------- certificates


def test_a_proof_that_its_target_did_not_make_is_refused() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    good = rank.certificate()
    forged = replace(good.proofs[0], column_crc=8)
    mark = bench.mark()
    (failed,) = rank.certify(replace(good, proofs=(forged, *good.proofs[1:])))
    assert isinstance(failed, Failed)
    assert "is not its target's" in failed.message
    assert len(bench.log) == mark + 1, "nothing else happened"
    assert bench.states() == {"run@1#1.1": "open"}
    rank.certify()
    assert bench.states() == {"run@1#1.1": "committed"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"manifest_digest": b"x" * 16},
        {"payload_bytes": 9_999},
        {"code": "3+1"},
        {"cell_bytes": 4096},
        {"launch": 77},
        {"document_offset": 9_950},
        {"document_offset": -1},
    ],
)
def test_a_certificate_that_does_not_fit_what_was_opened_is_refused(
    wrong: dict[str, object],
) -> None:
    bench = Bench()
    (rank,) = ready(bench)
    (failed,) = rank.certify(replace(rank.certificate(), **wrong))  # type: ignore[arg-type]
    assert isinstance(failed, Failed)
    assert bench.states() == {"run@1#1.1": "open"}


@pytest.mark.parametrize("what", ["another rank's", "a column beyond the code", "another length"])
def test_a_true_proof_of_something_else_is_refused(what: str) -> None:
    bench = Bench()
    (rank,) = ready(bench)
    good = rank.certificate()
    column, size = good.proofs[0].column, rank.payload_bytes
    match what:
        case "another rank's":
            column = replace(column, payload=replace(column.payload, rank=Rank(1)))
        case "a column beyond the code":
            column = replace(column, column=ColumnNumber(3))
        case _:
            size += 1
    foreign = bench.targets[good.proofs[0].target].proof(column, good.code, size)
    (failed,) = rank.certify(replace(good, proofs=(foreign, *good.proofs[1:])))
    assert isinstance(failed, Failed)
    assert "does not belong here" in failed.message


def test_a_table_of_another_rank_or_beyond_the_payload_is_refused() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    rank.entries = (own_entry(rank.payload_bytes + 1),)
    (failed,) = rank.certify()
    assert isinstance(failed, Failed)
    assert "does not fit its payload" in failed.message


def test_a_table_that_does_not_parse_is_refused_and_may_be_sent_again() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    junk = replace(rank.certificate(), table_bytes=4)
    (failed,) = bench.tell(rank.session, junk, b"junk")
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt"
    rank.certify()
    assert len(rank.commits()) == 1


def test_a_table_comes_in_ascending_parts_and_counts_when_it_is_whole() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    table = rank.table()
    whole = replace(rank.certificate(), table_bytes=len(table))
    gap = bench.tell(rank.session, replace(whole, table_offset=10), table[10:])
    assert isinstance(gap[0], Failed)
    assert bench.tell(rank.session, replace(whole, proofs=()), table[:10]) == []
    last = bench.tell(rank.session, replace(whole, table_offset=10), table[10:])
    assert isinstance(last[0], Certified)
    assert bench.states() == {"run@1#1.1": "committed"}


def test_a_certificate_of_an_unknown_attempt_is_told_that_it_is_over() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    other = replace(rank.payload.checkpoint, step=Step(2))
    (aborted,) = rank.certify(replace(rank.certificate(), payload=PayloadId(other, Rank(0))))
    assert isinstance(aborted, AttemptAborted)


# --------------------------------------------------------------------------- agreement


def test_a_hole_aborts_the_save_by_name_for_every_rank() -> None:
    bench = Bench()
    ranks = ready(bench, 2)
    ranks[0].entries = (shard_entry(0, 100, 300),)
    ranks[1].entries = (shard_entry(200, 100, 300),)
    every(ranks, lambda rank: rank.certify())
    for rank in ranks:
        (aborted,) = rank.aborts()
        assert aborted.code == "refused"
        assert "'m'" in aborted.message


def overlapping(bench: Bench) -> list[RankFake]:
    ranks = ready(bench, 2)
    ranks[0].entries = (shard_entry(0, 200, 300),)
    ranks[1].entries = (shard_entry(100, 200, 300),)
    every(ranks, lambda rank: rank.certify())
    return ranks


def test_overlapping_shards_are_fingerprinted_by_their_holders_and_commit_when_they_agree() -> None:
    bench = Bench()
    ranks = overlapping(bench)
    box = BoxQuery("m", (100,), (100,))
    for rank in ranks:
        assert rank.heard[-1] == CompareBoxes(rank.payload, (box,))
    every(ranks, lambda rank: bench.tell(rank.session, BoxesCompared(rank.payload, (b"f" * 16,))))
    assert bench.states() == {"run@1#1.1": "committed"}


def test_overlapping_shards_that_differ_abort_and_name_both_ranks() -> None:
    bench = Bench()
    ranks = overlapping(bench)
    for rank in ranks:
        bench.tell(rank.session, BoxesCompared(rank.payload, (bytes([rank.rank]) * 16,)))
    (aborted,) = ranks[0].aborts()
    assert "'m' on ranks 0 and 1 overlap and differ" in aborted.message


def test_a_comparison_of_the_wrong_count_aborts() -> None:
    bench = Bench()
    ranks = overlapping(bench)
    bench.tell(ranks[0].session, BoxesCompared(ranks[0].payload, ()))
    assert "wrong count" in ranks[1].aborts()[0].message


def test_a_stager_that_comes_back_is_asked_to_compare_again() -> None:
    bench = Bench()
    ranks = overlapping(bench)
    bench.close(ranks[0].session)
    ranks[0].reconnect()
    answer = ranks[0].resume(1, ranks[0].payload.checkpoint)
    assert [type(each) for each in answer] == [PayloadPlanned, CompareBoxes]


def test_a_comparison_that_a_stager_never_answers_ends_the_attempt() -> None:
    bench = Bench()
    ranks = overlapping(bench)
    bench.close(ranks[0].session)
    bench.tick(16)
    assert "stager of rank 0" in ranks[1].aborts()[0].message


def replicated(bench: Bench, policies: list[ReplicaPolicy]) -> list[RankFake]:
    """Two ranks whose replica differs; each stores half."""
    ranks = team(bench, 2)
    for rank, policy in zip(ranks, policies, strict=True):
        rank.replicas = policy
        half = Piece(100 * rank.rank, 0, 100)
        keep = policy is ReplicaPolicy.KEEP
        stored = (Piece(0, 0, 200),) if keep else (half,)
        rank.entries = (replica_entry(200, stored, bytes([rank.rank]) * 16),)
        rank.open(1)
        rank.seal_all()
    every(ranks, lambda rank: rank.certify())
    return ranks


def test_a_replica_that_differs_aborts_by_path_and_rank() -> None:
    bench = Bench()
    ranks = replicated(bench, [ReplicaPolicy.ABORT, ReplicaPolicy.ABORT])
    (aborted,) = ranks[0].aborts()
    assert "'w'" in aborted.message
    assert "rank" in aborted.message


def test_replicas_that_differ_are_kept_apart_with_a_warning_when_every_rank_wants_it() -> None:
    bench = Bench()
    ranks = replicated(bench, [ReplicaPolicy.KEEP, ReplicaPolicy.KEEP])
    (commit,) = ranks[0].commits()
    assert len(commit.info.warnings) == 1
    assert "w" in commit.info.warnings[0]


def test_one_rank_that_wants_no_difference_is_enough_to_abort() -> None:
    bench = Bench()
    ranks = replicated(bench, [ReplicaPolicy.KEEP, ReplicaPolicy.ABORT])
    assert len(ranks[0].aborts()) == 1


# --------------------------------------------------------------------------- facts in order


def test_index_then_decision_then_record_then_commit_then_the_announcement() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    mark = bench.mark()
    rank.certify()
    id = rank.payload.checkpoint
    story = bench.story(
        mark, PutDocument, catalog.AttemptDecided, catalog.RowCommitted, AttemptCommitted
    )
    kinds = [s.kind.value if isinstance(s, PutDocument) else type(s).__name__ for s in story]
    assert kinds == [
        "index", "index", "AttemptDecided", "record", "record", "RowCommitted",
        "AttemptCommitted",
    ]  # fmt: skip
    assert isinstance(story[5], catalog.RowCommitted)
    assert isinstance(story[6], AttemptCommitted)
    assert len(holders(bench, INDEX)) == len(holders(bench, RECORD)) == 2
    assert story[6].info.checkpoint == id


def test_nothing_goes_on_before_the_step_before_it_is_durable() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    bench.persist_at_once = False
    rank.certify()
    assert bench.tickets == []
    for id in bench.targets:
        bench.let_answer(id)
    (decided,) = bench.tickets
    assert isinstance(decided.entries[0], catalog.AttemptDecided)
    assert holders(bench, RECORD) == []
    bench.sync()
    assert len(holders(bench, RECORD)) == 2
    (closed,) = bench.tickets
    assert closed.entries[0] == catalog.RowCommitted(rank.payload.checkpoint)
    assert rank.commits() == []
    assert bench.ask("steps", "run") == []
    bench.sync()
    assert len(rank.commits()) == 1


def test_a_decided_attempt_is_rolled_forward_after_a_restart_with_the_same_bytes() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    for target in bench.targets.values():
        target.refuses[PutDocument] = Failed("unavailable", "its disk fails")
    bench.persist_at_once = False
    for id in ("t0", "t1", "t2", "t3"):
        bench.targets[TargetId(id)].refuses.clear()
    rank.certify()
    decided = bench.tickets[0].entries[0]
    assert isinstance(decided, catalog.AttemptDecided)
    bench.durable.append(decided)
    bench.persist_at_once = True
    bench.restart("t0")
    bench.tick(1)
    assert holders(bench, RECORD) == [], "whether it is decided, the targets know better"
    assert bench.states() == {"run@1#1.1": "decided"}
    for id in ("t1", "t2", "t3"):
        bench.start(id)
    bench.tick(1)
    assert bench.states() == {"run@1#1.1": "committed"}
    records = {
        d for t in bench.targets.values() for (k, _), d in t.documents.items() if k is RECORD
    }
    assert records == {decided.record}
    assert decode_record(decided.record).info.committed_at_s == 1.5
    rank.reconnect()
    assert isinstance(rank.resume(1, rank.payload.checkpoint)[0], AttemptCommitted)


def test_a_decided_attempt_waits_for_m_plus_one_targets_however_long_they_are_away() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    bench.persist_at_once = False
    rank.certify()
    bench.durable.extend(e for t in bench.tickets for e in t.entries)
    bench.persist_at_once = True
    for id in ("t1", "t2"):
        bench.targets[TargetId(id)].refuses[PutDocument] = Failed("unavailable", "it ends")
    bench.restart("t0", "t1", "t2")
    assert bench.states() == {"run@1#1.1": "decided"}, "m + 1 targets, not the first that comes"
    bench.stop("t1", "t2")
    bench.tick(10)
    assert bench.states() == {"run@1#1.1": "decided"}, "another coordinator might not see it"
    bench.targets[TargetId("t1")].refuses.clear()
    bench.start("t1")
    bench.tick()
    assert holders(bench, RECORD) == ["t0", "t1"]
    assert bench.states() == {"run@1#1.1": "decided"}, "two of four may obey another one"
    bench.start("t2")
    bench.tick()
    assert bench.states() == {"run@1#1.1": "committed"}


def _decided_on_four_hosts() -> tuple[Bench, RankFake]:
    """The coordinator died when the decision was durable; of seven targets three are back."""
    bench = Bench(7, "2+2", hosts=4)
    bench.policy = dataclasses.replace(bench.policy, level="host")
    bench.restart(*bench.targets)
    bench.tick(10)
    (rank,) = ready(bench)
    bench.persist_at_once = False
    rank.certify()
    bench.durable.extend(e for t in bench.tickets for e in t.entries)
    bench.persist_at_once = True
    bench.restart("t2", "t6", "t3")
    return bench, rank


def test_a_record_that_is_rolled_forward_lies_in_as_many_domains_as_its_answer_promises() -> None:
    bench, rank = _decided_on_four_hosts()
    bench.tick(1)
    assert bench.states() == {"run@1#2.1": "decided"}, "t2 and t6 share a host, and two may go"
    bench.start("t0")
    bench.tick(1)
    assert bench.states() == {"run@1#2.1": "committed"}
    rank.reconnect()
    (told,) = rank.resume(1, rank.payload.checkpoint)
    assert isinstance(told, AttemptCommitted)
    hosts = {bench.targets[TargetId(id)].domain.split("/")[2] for id in holders(bench, RECORD)}
    assert len(hosts) == 3


def test_a_copy_that_is_on_its_way_to_a_further_domain_is_waited_for() -> None:
    bench, _ = _decided_on_four_hosts()
    bench.targets[TargetId("t0")].silent.add(PutDocument)
    bench.start("t0")
    bench.tick(10)
    assert bench.states() == {"run@1#2.1": "decided"}, "its disk is slow"
    bench.let_answer("t0")
    assert bench.states() == {"run@1#2.1": "committed"}


def test_a_record_waits_for_targets_that_may_still_come_behind_a_restart() -> None:
    """Two are as many as its columns, and too few for all of whom one must know it."""
    bench = Bench(4, "1+3")
    (rank,) = team(bench, 1)
    rank.open(1)
    for column, place in list(rank.places().items())[:2]:
        rank.seal(column, place)
    bench.persist_at_once = False
    rank.certify()
    bench.durable.extend(e for t in bench.tickets for e in t.entries)
    bench.persist_at_once = True
    bench.restart("t0", "t1")
    bench.tick(1)
    assert bench.states() == {"run@1#1.1": "decided"}
    bench.start("t2")
    bench.start("t3")
    bench.tick(1)
    assert bench.states() == {"run@1#1.1": "committed"}
    assert holders(bench, RECORD) == ["t0", "t1", "t2", "t3"]


def test_a_decided_attempt_cannot_be_aborted() -> None:
    bench = Bench()
    (rank,) = ready(bench)
    bench.persist_at_once = False
    rank.certify()
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "aborted", "too late"))
    RankFake(bench, key="newer").open(9)
    while bench.tickets:
        bench.sync()
    assert bench.states()["run@1#1.1"] == "committed"


def test_columns_that_the_index_does_not_name_are_dropped_after_the_commit() -> None:
    bench = Bench(5)
    (rank,) = ready(bench)
    column = ColumnId(rank.payload, ColumnNumber(0))
    spare = next(iter(set(bench.targets) - {p.target for p in rank.places().values()}))
    bench.stop(spare)
    stray = bench.targets[spare]
    stray.columns[column] = stray.proof(column, "2+1", rank.payload_bytes)
    bench.start(spare)
    rank.certify()
    assert stray.columns == {}
    assert len(rank.commits()) == 1


def test_a_stray_goes_from_a_target_that_keeps_another_column_of_the_payload() -> None:
    bench = Bench(4)
    (rank,) = ready(bench)
    places = rank.places()
    target = bench.targets[places[ColumnNumber(0)].target]
    kept, stray = (ColumnId(rank.payload, ColumnNumber(j)) for j in (0, 1))
    bench.stop(target.id)
    target.columns[stray] = target.proof(stray, "2+1", rank.payload_bytes)
    bench.start(target)
    rank.certify()
    assert len(rank.commits()) == 1
    assert set(target.columns) == {kept}
    assert set(bench.targets[places[ColumnNumber(1)].target].columns) == {stray}


def test_a_target_that_comes_back_with_a_stray_beside_its_column_keeps_the_column() -> None:
    bench = Bench(4)
    id = bench.save(1)
    target = next(t for t in bench.targets.values() if t.columns)
    (kept,) = target.columns
    stray = ColumnId(PayloadId(id, Rank(0)), ColumnNumber((kept.column + 1) % 3))
    bench.stop(target.id)
    target.columns[stray] = target.proof(stray, "2+1", 10_000)
    bench.start(target)
    assert set(target.columns) == {kept}


def test_the_answer_states_what_may_be_lost_and_who_was_slowest() -> None:
    bench = Bench(8, "4+2", hosts=4, max_per_domain=2)
    ranks = ready(bench, 3)
    every(ranks, lambda rank: rank.certify())
    info, *others = (commit.info for rank in ranks for commit in rank.commits())
    assert others == [info, info]
    assert (info.targets_survivable, info.domains_survivable, info.domain_level) == (2, 1, "host")
    assert (info.payload_bytes, info.world_size, info.code) == (30_000, 3, "4+2")
    assert (info.stall_us, info.slowest_target) == (7, "t2")


def test_a_large_index_travels_in_parts_of_which_only_the_last_is_answered() -> None:
    bench = Bench(3)
    (rank,) = ready(bench)
    names = (hashlib.shake_256(bytes([n >> 8, n & 255])).hexdigest(2000) for n in range(2300))
    rank.entries = tuple(own_entry(1, name) for name in sorted(names))
    mark = bench.mark()
    rank.certify()
    puts = [p for p in bench.asked("t0", PutDocument, mark) if p.kind is INDEX]
    assert [p.offset for p in puts] == [0, FRAME_BULK_BYTES_MAX]
    assert len({(p.digest, p.total_bytes) for p in puts}) == 1
    assert bench.states() == {"run@1#1.1": "committed"}
