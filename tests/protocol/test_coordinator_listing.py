"""What a target lists when it comes: it counts when all is listed, and by its own word alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import BootId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.hello import MOVES_VERSION
from ckpt.format.messages.saving import ColumnsLost
from ckpt.format.messages.targets import (
    ColumnsListed,
    HoldingsListed,
    ListColumns,
    ListHoldings,
    decode_holdings,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.cluster.holdings import ProvedColumns
from ckpt.protocol.events import CloseSession, Received
from ckpt.protocol.proofs import holdings_mac, make_proof, proof_key
from tests.deep import too_deep
from tests.protocol.coordinated_target import CLUSTER, DIGEST, SECRET, FakeTarget, page_of
from tests.protocol.coordinating import Bench, RankFake, ready

EARLIER = MOVES_VERSION - 1


def starts_and_lists(bench: Bench, id: str) -> Callable[[Message, bytes], None]:
    """The target comes back; its listing is answered page by page with what this is given."""
    target = bench.targets[TargetId(id)]
    target.silent |= {ListColumns, ListHoldings}
    bench.start(target)

    def page(answer: Message, bulk: bytes = b"") -> None:
        question = target.unanswered.pop(0)
        assert isinstance(question.message, ListColumns | ListHoldings)
        bench.feed(Received(bench.now_us, question.session, question.request, answer, bulk))

    return page


def signed(target: FakeTarget, page: bytes, cursor: str = "", *, after: str = "") -> HoldingsListed:
    """As the target says it."""
    key = proof_key(SECRET, target.id, target.boot)
    return HoldingsListed(target.boot, cursor, holdings_mac(key, CLUSTER, after, page))


def is_cut_off(bench: Bench, mark: int) -> bool:
    closed = [one.reason for one in bench.log[mark:] if isinstance(one, CloseSession)]
    return any("cannot list its columns" in reason for reason in closed)


def lost_columns(rank: RankFake) -> set[int]:
    """What it was told to stream again."""
    return {c for each in rank.heard if isinstance(each, ColumnsLost) for c in each.columns}


def rebooted(bench: Bench, rank: RankFake) -> tuple[FakeTarget, ColumnProof]:
    """The holder of its first column, which has started again and not come yet."""
    target = bench.targets[rank.places()[ColumnNumber(0)].target]
    bench.stop(target.id)
    target.reboot()
    (proof,) = target.columns.values()
    return target, proof


@pytest.mark.parametrize(
    "change", ["nothing", "boot", "key", "cluster", "place", "bytes", "sense", "depth"]
)
def test_a_page_counts_only_when_this_boot_signed_it_with_the_cluster_s_key(change: str) -> None:
    """A page of another boot, of another place in a list, or with other bytes is no word of it."""
    bench = Bench(4)
    (rank,) = ready(bench)
    target, proof = rebooted(bench, rank)
    page = page_of([proof]) if change != "sense" else b"no page"
    if change == "depth":
        page = b"\x93" + page[1:] + too_deep(4 << 20)
    boot = target.boot if change != "boot" else BootId(target.boot - 1000)
    secret = b"of another cluster, of 32 bytes." if change == "key" else SECRET
    cluster, after = (
        ("c2" if change == "cluster" else CLUSTER),
        ("c/x" if change == "place" else ""),
    )
    mac = holdings_mac(proof_key(secret, target.id, boot), cluster, after, page)
    other = page_of([target.proof(proof.column, "2+1", 1, b"o" * 16)])
    mark = bench.mark()
    say = starts_and_lists(bench, target.id)
    say(HoldingsListed(boot, "", mac), other if change == "bytes" else page)
    assert is_cut_off(bench, mark) is (change != "nothing")
    rank.certify()
    assert lost_columns(rank) == (set() if change == "nothing" else {0})
    assert len(rank.commits()) == (change == "nothing")


@pytest.mark.parametrize("change", ["nothing", "boot", "key", "cluster"])
def test_a_listed_proof_counts_only_when_this_boot_made_it_with_the_cluster_s_key(
    change: str,
) -> None:
    """A disk may hold what an earlier boot, or another cluster's target, said of that column."""
    bench = Bench(4, protocol=EARLIER)
    (rank,) = ready(bench)
    target, known = rebooted(bench, rank)
    target.version = EARLIER
    boot = target.boot if change != "boot" else BootId(target.boot - 1000)
    secret = b"of another cluster, of 32 bytes." if change == "key" else SECRET
    proof = make_proof(
        proof_key(secret, target.id, boot), "c2" if change == "cluster" else CLUSTER,
        column=known.column, target=target.id, boot=boot, code="2+1",
        payload_bytes=rank.payload_bytes, column_crc=7, manifest_digest=DIGEST,
    )  # fmt: skip
    starts_and_lists(bench, target.id)(ColumnsListed((proof,), (), ""))
    rank.certify()
    assert lost_columns(rank) == (set() if change == "nothing" else {0})
    assert len(rank.commits()) == (change == "nothing")


def test_a_target_counts_only_when_it_has_listed_to_the_end() -> None:
    bench = Bench(3)
    (rank,) = ready(bench)
    target, proof = rebooted(bench, rank)
    page = page_of([proof])
    say = starts_and_lists(bench, target.id)
    say(signed(target, page, "more"), page)
    rank.certify()
    assert rank.commits() == [], "what else it holds is not known yet"
    assert bench.asked(target.id, ListHoldings)[-1] == ListHoldings("more")
    nothing = page_of([])
    say(signed(target, nothing, after="more"), nothing)
    bench.tick(1)
    (again,) = (each for each in rank.heard if isinstance(each, ColumnsLost))
    rank.seal(0, again.places[0])
    rank.certify()
    assert len(rank.commits()) == 1


def test_a_target_of_an_earlier_version_is_asked_for_a_proof_of_each_column() -> None:
    bench = Bench(3, protocol=EARLIER)
    (rank,) = ready(bench)
    target, proof = rebooted(bench, rank)
    target.version = EARLIER
    say = starts_and_lists(bench, target.id)
    say(ColumnsListed((), (), "more"))
    assert bench.asked(target.id, ListColumns)[-1] == ListColumns("more")
    say(ColumnsListed((proof,), (), ""))
    rank.certify()
    assert len(rank.commits()) == 1
    assert bench.asked(target.id, ListHoldings) == []


def test_what_any_page_of_a_listing_names_counts() -> None:
    bench = Bench(3)
    (rank,) = ready(bench)
    target, proof = rebooted(bench, rank)
    say = starts_and_lists(bench, target.id)
    for after, cursor, columns in (("", "more", []), ("more", "", [proof])):
        page = page_of(columns)
        say(signed(target, page, cursor, after=after), page)
    rank.certify()
    assert len(rank.commits()) == 1


def test_columns_of_one_generation_on_two_pages_count_all() -> None:
    payload = PayloadId(Bench().save(1), Rank(0))
    columns = [ColumnId(payload, ColumnNumber(number)) for number in range(3)]
    target = FakeTarget(TargetId("t"), "p/r/h/d", BootId(7))
    proved = ProvedColumns()
    for column in columns[:2]:
        (one,) = decode_holdings(page_of([target.proof(column, "2+1", 1)])).generations
        proved.add_listed(payload.checkpoint, one.columns)
    assert len(proved) == 2
    proved.add(target.proof(columns[2], "2+1", 1))
    assert dict(proved.of(payload.checkpoint)) == dict.fromkeys(columns, DIGEST)
    assert (sorted(proved), len(proved)) == (columns, 3)
    (late,) = decode_holdings(page_of([target.proof(columns[0], "2+1", 1, b"n" * 16)])).generations
    proved.add_listed(payload.checkpoint, late.columns)
    assert proved.digest(columns[0]) == b"n" * 16
    for column in columns:
        proved.discard(column)
    assert (proved.checkpoints(), len(proved)) == (set(), 0)
