"""Ranks that read together: each byte is granted to one of them, the others are sent to it."""

from __future__ import annotations

import random

from ckpt.base.ids import BootId, CheckpointId, Generation, Rank, RunName, Step, TargetId
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.sharing import LeaveReads, NextReads, ReadsShared, ShareReads
from ckpt.format.spans import OURS, PayloadSpan, decode_spans, encode_spans
from ckpt.protocol.coordinator.reading.sharing import GRANT_BYTES, PATIENCE_US
from ckpt.protocol.events import Send
from tests.protocol.coordinating import SECOND_US, Bench

CHECKPOINT = CheckpointId(RunName("run"), Step(1), Generation(1, 1))
LEAST = GRANT_BYTES[0]
Spans = list[tuple[int, int, int]]
"""(rank, start, end)."""


class Reader:
    """One rank that reads, over a session of its own."""

    def __init__(self, bench: Bench, name: str, wanted: Spans, key: str = "job") -> None:
        self.bench = bench
        self.session = bench.session()
        self.peer = TargetAddress(TargetId(name), BootId(7), f"{name}:1")
        self.wanted = wanted
        self.key = key

    def share(self) -> None:
        rows = encode_spans(PayloadSpan(OURS, Rank(r), a, b) for r, a, b in self.wanted)
        self.bench.tell(self.session, ShareReads(CHECKPOINT, self.key, self.peer, 1 * MiB), rows)

    def next(self) -> None:
        self.bench.tell(self.session, NextReads())

    def leave(self, timeout_us: int = 30 * SECOND_US) -> None:
        self.bench.tell(self.session, LeaveReads(timeout_us))

    @property
    def answers(self) -> list[tuple[Spans, dict[str, Spans]]]:
        """(mine, theirs by peer) of each answer."""
        found = []
        for action in self.bench.log:
            if isinstance(action, Send) and action.session == self.session:
                assert isinstance(action.message, ReadsShared), action.message
                mine: Spans = []
                theirs: dict[str, Spans] = {}
                for span in decode_spans(action.bulk):
                    row = (int(span.rank), span.start, span.end)
                    if span.peer == OURS:
                        mine.append(row)
                    else:
                        peer = action.message.peers[span.peer]
                        theirs.setdefault(peer.target, []).append(row)
                found.append((mine, theirs))
        return found


ALL: Spans = [(0, 0, 4 * LEAST)]
HALVES = ([(0, 0, LEAST)], [(0, LEAST, 2 * LEAST)])
DONE: tuple[Spans, dict[str, Spans]] = ([], {})


def two(wanted: Spans | None = None) -> tuple[Bench, Reader, Reader]:
    bench = Bench()
    spans = [(0, 0, 2 * LEAST)] if wanted is None else wanted
    a, b = Reader(bench, "a", spans), Reader(bench, "b", spans)
    a.share()
    b.share()
    return bench, a, b


def test_two_ranks_read_a_half_each_and_are_sent_to_each_other() -> None:
    bench, a, b = two()
    assert a.answers == [(HALVES[0], {})]
    assert b.answers == [(HALVES[1], {})]
    a.next()
    assert len(a.answers) == 1, "the other half is being read"
    b.next()
    assert b.answers[1:] == [([], {"a": HALVES[0]})]
    assert a.answers[1:] == [([], {"b": HALVES[1]})]
    for one in (a, b):
        one.next()
        assert one.answers[-1] == DONE
    a.leave()
    assert len(a.answers) == 3, "b may still be reading from a"
    b.leave()
    assert a.answers[-1] == b.answers[-1] == DONE
    assert not bench.machine.sharing._groups


def test_other_keys_and_other_bytes_are_not_shared() -> None:
    bench = Bench()
    first = Reader(bench, "a", ALL)
    foreign = Reader(bench, "b", ALL, key="another job")
    beside = Reader(bench, "c", [(1, 0, LEAST)])
    for one in (first, foreign, beside):
        one.share()
    assert first.answers == foreign.answers == [([(0, 0, LEAST)], {})]
    assert beside.answers == [([(1, 0, LEAST)], {})]
    foreign.next()
    assert foreign.answers[1][1] == {}


def test_what_a_rank_read_in_part_is_shared_in_part() -> None:
    bench = Bench()
    a, b = Reader(bench, "a", [(0, 100, 300)]), Reader(bench, "b", [(0, 0, 200), (0, 250, 400)])
    a.share()
    b.share()
    assert a.answers == [([(0, 100, 300)], {})]
    assert b.answers == [([(0, 0, 100), (0, 300, 400)], {})]
    a.next()
    b.next()
    assert b.answers[1] == ([], {"a": [(0, 100, 200), (0, 250, 300)]})


def test_a_large_grant_ends_at_a_cell() -> None:
    bench = Bench()
    one = Reader(bench, "a", [(0, 5, 400 * MiB + 7)])
    one.share()
    (((_, start, end),), _) = one.answers[0]
    assert (start, end) == (5, 64 * MiB + 1 * MiB)


def test_what_a_dead_rank_was_reading_goes_to_who_waits_for_it() -> None:
    bench, a, b = two()
    b.next()
    assert len(b.answers) == 1
    bench.close(a.session)
    assert b.answers[1] == (HALVES[0], {})
    b.next()
    assert b.answers[2] == DONE


def test_nobody_waits_for_a_hung_rank_for_long() -> None:
    bench, _, b = two()
    b.next()
    bench.tick(PATIENCE_US / SECOND_US - 1)
    assert len(b.answers) == 1
    bench.tick(2)
    assert b.answers[1] == (HALVES[0], {})
    b.next()
    assert b.answers[2] == DONE


def test_who_has_everything_goes_after_its_own_timeout() -> None:
    bench, a, b = two()
    a.leave(2 * SECOND_US)
    assert len(a.answers) == 1
    bench.tick(3)
    assert a.answers[1] == DONE
    b.next()
    assert b.answers[-1] == (HALVES[0], {}), "a is gone, its half is read again"


def test_who_has_everything_does_not_stay_for_a_silent_rank() -> None:
    bench, a, _ = two()
    a.leave(60 * SECOND_US)
    bench.tick(PATIENCE_US / SECOND_US - 1)
    assert len(a.answers) == 1
    bench.tick(2)
    assert a.answers[1] == DONE


def test_who_leaves_at_once_is_let_go_at_once() -> None:
    _, a, b = two()
    a.leave(0)
    assert a.answers[1] == DONE
    b.next()
    assert b.answers[1] == (HALVES[0], {})


def test_a_session_that_does_not_share_is_refused_and_may_leave() -> None:
    bench = Bench()
    session = bench.session()
    (answer,) = bench.tell(session, NextReads())
    assert isinstance(answer, Failed)
    assert answer.code == "refused"
    assert bench.tell(session, LeaveReads(1)) == [ReadsShared()]


def test_spans_that_overlap_are_refused_and_nothing_is_noted() -> None:
    for rows in ([(0, 0, 10), (0, 5, 20)], [(1, 0, 10), (0, 0, 10)]):
        bench = Bench()
        one = Reader(bench, "a", rows)
        bulk = encode_spans(PayloadSpan(OURS, Rank(r), a, b) for r, a, b in rows)
        question = ShareReads(CHECKPOINT, "job", one.peer, 1)
        for bad in (bulk, b"12345", bulk[:32] + bytes(32)):
            (answer,) = bench.tell(one.session, question, bad)
            assert isinstance(answer, Failed)
        assert not bench.machine.sharing._groups


def test_every_byte_is_granted_once_whatever_the_order_and_the_deaths() -> None:
    for seed in range(60):
        _play(seed)


def _play(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    sharing = bench.machine.sharing
    cuts = sorted(rng.sample(range(200 * MiB), 8))
    spans = [(n % 3, a, b) for n, (a, b) in enumerate(zip(cuts[::2], cuts[1::2], strict=True))]
    wanted = sorted(spans)
    readers = [Reader(bench, f"r{n}", wanted) for n in range(rng.randint(2, 5))]
    alive, read, seen = list(readers), 0, {}
    dead = rng.random() < 0.5
    for one in readers:
        one.share()
    for _ in range(2000):
        sharing.check()
        ready = [one for one in alive if len(one.answers) > seen.get(one.peer.target, 0)]
        if not ready:
            break
        one = rng.choice(ready)
        mine, theirs = one.answers[-1]
        seen[one.peer.target] = len(one.answers)
        read += sum(end - start for _, start, end in mine)
        if dead and len(alive) > 1 and rng.random() < 0.05:
            alive.remove(one)
            bench.close(one.session)
        elif mine or theirs:
            one.next()
    assert all(one.answers[-1] == DONE for one in alive), seed
    unique = sum(end - start for _, start, end in wanted)
    assert read == unique or len(alive) < len(readers), seed
    got = [_total(one.answers) for one in alive]
    assert got == [unique] * len(alive), (seed, got, unique)


def _total(answers: list[tuple[Spans, dict[str, Spans]]]) -> int:
    rows = [row for mine, theirs in answers for part in (mine, *theirs.values()) for row in part]
    return sum(end - start for _, start, end in rows)
