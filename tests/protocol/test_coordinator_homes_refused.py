"""References that cannot be: of a stager that is wrong, or of a peer that means harm."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import Generation, Home, Rank
from ckpt.base.limits import HOMES_MAX
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import HomesRefused, OpenPayload
from ckpt.format.table import Piece
from tests.protocol.coordinating import RUN, Bench, RankFake
from tests.protocol.test_coordinator_deletion import delete
from tests.protocol.test_coordinator_homes import HELD_BYTES, referring, referring_entry


def test_what_cannot_be_referred_to_is_refused_before_anything_is_opened() -> None:
    bench = Bench(5)
    first = bench.save(1)
    never = replace(first, generation=Generation(1, 77))
    other_run = bench.save(1, run="other")
    deleted = bench.save(2)
    bench.tell(bench.session(), delete(2))
    for home in (never, other_run, deleted):
        rank = referring(bench, home)
        before = bench.states()
        (answer,) = rank.open(3)
        assert isinstance(answer, HomesRefused)
        assert answer.homes == (Home.of(home),)
        assert "is not there" in answer.reason
        assert bench.states() == before
        bench.close(rank.session)


def test_a_file_refers_to_nothing() -> None:
    bench = Bench(5)
    home = Home.of(bench.save(1))
    question = OpenPayload(
        RUN, delete(2).step, NO_LAUNCH, Rank(0), 1, "h/file", 100, member="a.bin", homes=(home,)
    )
    before = bench.states()
    (answer,) = bench.tell(bench.session(Role.STAGER), question)
    assert isinstance(answer, Failed)
    assert "a.bin: a file refers to no earlier bytes" in answer.message
    assert bench.states() == before


def test_a_table_may_refer_only_to_bytes_that_its_rank_has_there() -> None:
    bench = Bench(5)
    first = bench.save(1)
    rank = referring(bench, first)
    piece = Piece(0, 10_000 - HELD_BYTES + 1, HELD_BYTES).at(first.generation)
    rank.entries = (replace(referring_entry(first), pieces=(piece,)),)
    rank.open(2)
    rank.seal_all()
    answer = rank.certify()[-1]
    assert isinstance(answer, Failed)
    assert "has no byte 10000 of rank 0" in answer.message
    bench.close(rank.session)
    other = RankFake(bench, 1, 2, key="wider", process="h/wider", payload_bytes=4096)
    other.homes, other.entries = (Home.of(first),), (referring_entry(first),)
    other.open(3)
    other.seal_all()
    answer = other.certify()[-1]
    assert isinstance(answer, Failed)
    assert f"{first} has no byte 9899 of rank 1" in answer.message


def test_a_table_may_refer_only_to_what_its_payload_named() -> None:
    bench = Bench(5)
    first, second = bench.save(1), bench.save(2)
    rank = referring(bench, first)
    rank.entries = (referring_entry(second),)
    rank.open(3)
    rank.seal_all()
    answer = rank.certify()[-1]
    assert isinstance(answer, Failed)
    assert "did not name" in answer.message


def test_who_comes_back_with_too_many_homes_changes_nothing() -> None:
    bench = Bench(5)
    saved = [bench.save(step) for step in range(1, HOMES_MAX + 2)]
    rank = referring(bench, saved[0])
    rank.open(10)
    bench.restart(*bench.targets)
    bench.tick(1)
    rank.reconnect()
    rank.homes = tuple(sorted(map(Home.of, saved)))
    before = bench.states()
    (answer,) = rank.resume(10, rank.payload.checkpoint)
    assert isinstance(answer, Failed)
    assert "may refer to 4 earlier ones" in answer.message
    assert bench.states() == before
