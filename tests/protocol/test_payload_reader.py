"""PayloadReader with real bytes and real checks, in virtual time: the bytes as written, or the
right error."""

from __future__ import annotations

import random

import pytest

from ckpt.erasure.code import Code
from ckpt.format.manifest import RankManifest
from ckpt.protocol.reader.columns import STRIKES_MAX, WRONG_CELLS_MAX
from ckpt.protocol.reader.events import ReadCompleted, ReadFailed, ReadLimits
from ckpt.protocol.runs.run_sets import total
from ckpt.transfer.assembly import Checks
from tests.landing import in_turn
from tests.protocol.reading import BLOCK, Behaviour, Columns, Reading

CODE = Code(4, 2)
CELL = 4096
WHOLE = 10 * CELL * CODE.k + 5000
SMALL_WINDOWS = ReadLimits(window_bytes=4 * CELL, ask_bytes=CELL, scratch_bytes=8 * CELL)


def data(code: Code = CODE, size: int = WHOLE) -> Columns:
    return Columns.make(code, size, CELL, seed=1)


def good(count: int = CODE.n) -> list[Behaviour]:
    return [Behaviour() for _ in range(count)]


def read(
    behaviours: list[Behaviour], spans: list[tuple[int, int]] | None = None, **more: object
) -> Reading:
    reading = Reading(data(), behaviours, spans or [(0, WHOLE)], **more)  # type: ignore[arg-type]
    reading.run()
    return reading


def test_a_healthy_read_takes_data_columns_only_and_decodes_nothing() -> None:
    reading = read(good())
    assert reading.last == ReadCompleted()
    assert reading.right()
    assert {ask.column for ask in reading.asked} == {0, 1, 2, 3}
    found = reading.reader.statistics()
    assert (found.rebuilt_bytes, found.columns_out) == (0, ())
    assert found.extra_bytes < CODE.k * 4096, "the padding of the last stripe"
    assert found.done_bytes == found.wanted_bytes == WHOLE


@pytest.mark.parametrize("spared", [(0,), (1, 3), (4, 5)])
def test_what_is_spared_is_not_read_while_the_others_suffice(spared: tuple[int, ...]) -> None:
    reading = read(good(), spared=spared)
    assert reading.last == ReadCompleted()
    assert reading.right()
    assert {ask.column for ask in reading.asked} == set(range(CODE.n)) - set(spared)


@pytest.mark.parametrize("kind", ["dead", "silent", "slow", "not_found", "stale"])
def test_what_is_spared_makes_up_for_what_fails(kind: str) -> None:
    behaviours = good()
    behaviours[2] = Behaviour(kind)
    reading = read(behaviours, spared=(0, 1))
    assert reading.last == ReadCompleted()
    assert reading.right()


def test_damage_in_what_is_read_is_mended_from_what_is_spared() -> None:
    behaviours = good()
    behaviours[2].damaged = behaviours[3].damaged = {3}
    assert read(behaviours, spared=(0, 1)).right()


def test_only_the_wanted_bytes_are_asked_for() -> None:
    reading = read(good(), [(100, 200), (CELL + 50, CELL + 60), (9 * CELL, 9 * CELL + 10)])
    assert reading.right()
    assert sum(total(ask.runs) for ask in reading.asked) == 120


def test_runs_at_one_distance_are_asked_for_and_come_as_one() -> None:
    size = 32 * 64 * 1024
    spans = [(at, at + 100) for at in range(64, size - 2000, 1000)]
    columns = Columns.make(CODE, size, 64 * 1024, seed=3)
    reading = Reading(columns, good(), spans, sociable=0.99)
    assert reading.run() == ReadCompleted()
    assert reading.right()
    assert sum(total(ask.runs) for ask in reading.asked) == 100 * len(spans)
    names = sum(len(ask.runs) for ask in reading.asked)
    assert names <= 3 * 32, "of each cell a comb, and what its borders cut"


@pytest.mark.parametrize(
    "kind", ["absent", "away", "dead", "silent", "not_found", "busy", "stale", "other"]
)
@pytest.mark.parametrize("column", range(CODE.n))
def test_one_column_that_gives_nothing_costs_parity_and_no_byte(kind: str, column: int) -> None:
    behaviours = good()
    behaviours[column] = Behaviour(kind)
    reading = read(behaviours)
    assert reading.last == ReadCompleted()
    assert reading.right()
    lost = column < CODE.k and kind != "other"
    assert (reading.reader.statistics().rebuilt_bytes > 0) >= lost


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 4), (2, 5), (4, 5)])
def test_m_columns_may_be_gone(first: int, second: int) -> None:
    behaviours = good()
    behaviours[first], behaviours[second] = Behaviour("dead"), Behaviour("silent")
    reading = read(behaviours)
    assert reading.last == ReadCompleted()
    assert reading.right()


def test_a_damaged_block_is_mended_from_parity_and_the_column_serves_the_rest() -> None:
    behaviours = good()
    behaviours[1].damaged = {9}
    reading = read(behaviours)
    assert reading.right()
    found = reading.reader.statistics()
    assert (found.rebuilt_bytes, found.damaged_bytes) == (BLOCK, BLOCK)
    assert found.received_bytes[4] == BLOCK


def test_a_column_with_many_damaged_blocks_is_reported_once() -> None:
    """Of a dead disk a trainer wrote a line for each block."""
    behaviours = good()
    behaviours[1].damaged, behaviours[2].damaged = {3, 9, 14}, {5}
    reading = read(behaviours)
    assert reading.right()
    assert sorted(dict(one.fields)["column"] for one in reading.reports) == [1, 2]


def test_damage_in_more_than_m_columns_of_a_stripe_is_mended_where_the_blocks_differ() -> None:
    behaviours = good()
    for column, how in enumerate(behaviours):
        how.damaged = {column}
    reading = read(behaviours)
    assert reading.last == ReadCompleted()
    assert reading.right()


def test_damage_in_more_than_m_columns_at_one_place_is_lost_and_said_so() -> None:
    behaviours = good()
    for column in (0, 2, 5):
        behaviours[column].damaged = {3}
    reading = read(behaviours)
    assert isinstance(reading.last, ReadFailed)
    assert (reading.last.code, reading.last.damaged) == ("lost", True)


def test_columns_out_of_reach_are_never_called_lost() -> None:
    behaviours = good()
    for column in (0, 1, 2):
        behaviours[column] = Behaviour("dead")
    reading = read(behaviours)
    assert isinstance(reading.last, ReadFailed)
    assert (reading.last.code, reading.last.damaged) == ("unavailable", False)
    assert reading.now_us >= ReadLimits().timeout_us


def test_columns_whose_targets_are_not_live_are_not_waited_for() -> None:
    reading = read([Behaviour("away") if j < 3 else Behaviour() for j in range(CODE.n)])
    assert isinstance(reading.last, ReadFailed)
    assert reading.last.code == "unavailable"
    assert reading.now_us < 1_000_000


def test_a_suspect_is_asked_only_when_the_others_do_not_suffice() -> None:
    spared = read([Behaviour("suspect"), *good(5)])
    assert spared.right()
    assert spared.ask_counts[0] == 0
    needed = read([Behaviour("suspect"), *good(3), Behaviour("absent"), Behaviour("dead")])
    assert needed.right()
    assert needed.ask_counts[0] > 0


def test_a_column_that_comes_back_is_read_again() -> None:
    behaviours = good()
    for column in (0, 1, 2):
        behaviours[column] = Behaviour("dead", back_at_us=3_000_000)
    reading = read(behaviours)
    assert reading.last == ReadCompleted()
    assert reading.right()


def test_a_column_that_stops_in_the_middle_is_cut_and_replaced() -> None:
    behaviours = good()
    behaviours[2].silent_after = 3
    reading = read(behaviours, limits=SMALL_WINDOWS)
    assert reading.last == ReadCompleted()
    assert reading.right()
    assert [column for column, _ in reading.cut] == [2]
    assert ReadLimits().hedge_us <= reading.now_us < 2 * ReadLimits().hedge_us


def test_a_column_whose_target_serves_another_payload_first_is_waited_for() -> None:
    behaviours = good()
    behaviours[2] = Behaviour("silent", busy_until_us=7_000_000)
    reading = read(behaviours)
    assert reading.right()
    assert [column for column, _ in reading.cut] == [2]
    hedge_us = ReadLimits().hedge_us
    assert 7_000_000 + hedge_us <= reading.now_us + 100_000 < 7_200_000 + hedge_us


def test_a_slow_column_is_left_although_it_is_never_silent() -> None:
    columns = Columns.make(CODE, 64 << 20, 1 << 19, seed=2)
    behaviours = good()
    behaviours[1].delay_us = 1000 * 300
    reading = Reading(columns, behaviours, [(0, 64 << 20)])
    reading.run()
    assert reading.right()
    assert [column for column, _ in reading.cut] == [1]
    assert reading.reader.statistics().extra_bytes <= (64 << 20) // 10


@pytest.mark.parametrize(("wanted_bytes", "left"), [(256 << 10, [1]), (64 << 10, [])])
def test_a_column_that_is_some_times_slower_is_waited_for_where_parity_takes_as_many_times_more(
    wanted_bytes: int, left: list[int]
) -> None:
    columns = Columns.make(CODE, 64 << 20, 1 << 19, seed=2)
    behaviours = [Behaviour(delay_us=30_000) for _ in range(CODE.n)]
    behaviours[1].delay_us *= 8
    spans = [(at, at + wanted_bytes) for at in range(0, 64 << 20, 256 << 10)]
    limits = ReadLimits(window_bytes=1 << 19, ask_bytes=1 << 19, slow_after_us=200_000)
    reading = Reading(columns, behaviours, spans, limits=limits)
    reading.run()
    assert reading.right()
    assert [column for column, _ in reading.cut] == left
    assert left or reading.reader.statistics().extra_bytes == 0


def test_bytes_damaged_on_their_way_are_asked_again() -> None:
    behaviours = good()
    behaviours[0].wire_errors = 2
    reading = read(behaviours)
    assert reading.right()
    assert reading.reader.statistics().rebuilt_bytes == 0


def test_without_the_check_of_received_cells_stale_bytes_would_get_through() -> None:
    class Blind(Checks):
        def fragment_is_right(
            self, crc: int, manifest: RankManifest, stripe: int, column: int
        ) -> bool:
            return True

    behaviours = good()
    behaviours[1] = Behaviour("stale")
    assert not read(behaviours, checks=Blind()).right()


def test_without_the_check_after_decoding_wrong_sources_would_get_through() -> None:
    class Blind(Checks):
        def fragment_is_right(
            self, crc: int, manifest: RankManifest, stripe: int, column: int
        ) -> bool:
            return True

        def decoded_is_right(
            self, crc: int, manifest: RankManifest, stripe: int, column: int
        ) -> bool:
            return True

    behaviours = good()
    behaviours[0], behaviours[4] = Behaviour("absent"), Behaviour("stale")
    behaviours[5] = Behaviour("absent")
    assert not read(behaviours, checks=Blind()).right()


@pytest.mark.parametrize("wrong_cells", [1, 2, 3])
def test_a_column_is_left_for_its_third_wrong_cell_and_not_before(wrong_cells: int) -> None:
    """Its target's checksums fit the bytes, which the manifest knows better."""
    columns = data()
    for stripe in range(wrong_cells):
        columns.columns[1][stripe * CELL + 7] ^= 1
    reading = Reading(columns, good(), [(0, WHOLE)])
    assert reading.run() == ReadCompleted()
    assert reading.right()
    told = [column for column, reason in reading.cut if "not what the manifest says" in reason]
    assert told == ([1] if wrong_cells == WRONG_CELLS_MAX else [])


def test_a_lying_source_of_a_part_is_found_by_reading_sources_whole() -> None:
    behaviours = good()
    behaviours[0].damaged = {2}
    behaviours[4] = Behaviour("stale")
    reading = read(behaviours, [(0, CELL)])
    assert reading.last == ReadCompleted()
    assert reading.right()


@pytest.mark.parametrize(
    "code", [Code(1, 0), Code(1, 2), Code(2, 1), Code(4, 2), Code(8, 3)], ids=str
)
def test_an_empty_read_asks_nothing(code: Code) -> None:
    reading = Reading(data(code), good(code.n), [])
    assert reading.run() == ReadCompleted()
    assert reading.asked == []


KINDS = ["good"] * 6 + [
    "absent",
    "away",
    "suspect",
    "dead",
    "silent",
    "slow",
    "not_found",
    "busy",
    "other",
]


@pytest.mark.parametrize("seed", in_turn(range(400), every=4))
def test_any_mixture_gives_the_bytes_or_the_right_error(seed: int) -> None:
    dice = random.Random(seed)
    code = dice.choice([Code(1, 1), Code(2, 1), Code(4, 2), Code(5, 3), Code(3, 0)])
    size = dice.randint(1, 12 * CELL * code.k)
    columns = Columns.make(code, size, CELL, seed)
    # Only whole cells can be compared with the manifest: parts of cells trust their target's own
    # checks.
    kinds = [*KINDS, "stale"] if seed % 2 else KINDS
    behaviours = [Behaviour(dice.choice(kinds)) for _ in range(code.n)]
    for how in behaviours:
        how.delay_us = dice.choice([10, 300, 3000])
        how.wire_errors = dice.choice([0, 0, 0, 1, 2])
        how.silent_after = dice.choice([None] * 8 + [1, 3])
        blocks = columns.layout.column_bytes // BLOCK
        how.damaged = {dice.randrange(blocks) for _ in range(dice.choice([0, 0, 0, 1, 4]))}
    cuts = sorted(dice.sample(range(size + 1), min(size + 1, 2 * dice.randint(1, 5))))
    parts = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    if dice.random() < 0.5:  # As columns of a tensor are.
        step = dice.randint(2, 300)
        parts = [(a, a + step // 2) for at, end in parts for a in range(at, end - step, step)]
    spans = [(0, size)] if seed % 2 else parts
    limits = SMALL_WINDOWS if dice.random() < 0.5 else ReadLimits(stripes_max=3)
    sociable = dice.choice([0.0, 0.5, 0.95])
    reading = Reading(columns, behaviours, spans, seed=seed, limits=limits, sociable=sociable)
    last = reading.run()
    maybe = [how.kind not in ("absent", "not_found", "stale", "other") for how in behaviours]
    if isinstance(last, ReadCompleted):
        assert reading.right()
    else:
        assert not reading.readable([how.gives_bytes for how in behaviours]), last
        if last.code == "lost":
            assert not reading.readable(maybe), last


def test_a_column_whose_bytes_always_come_damaged_is_given_up_and_parity_takes_its_place() -> None:
    behaviours = good()
    behaviours[0].wire_errors = 1_000_000
    reading = read(behaviours, limits=SMALL_WINDOWS)
    assert reading.last == ReadCompleted()
    assert reading.right()
    assert [column for column, _ in reading.cut] == [0]
    assert behaviours[0].wire_errors == 1_000_000 - STRIKES_MAX - 1
