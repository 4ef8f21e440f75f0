"""The codec computes what the definition says, touches nothing else, and refuses wrong buffers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyeclib.ec_iface import ECDriver

from ckpt.base.errors import Refused
from ckpt.erasure import codec as codec_module
from ckpt.erasure.code import Code
from ckpt.erasure.codec import Codec, codec_for
from ckpt.native.isal import Isal, Tables
from tests.erasure.cells import GuardedCell, data_cells, parity_by_tables, views
from tests.landing import IS_LANDING, examples, turn_of

SHIPPED = [
    "1+0",
    "1+1",
    "1+2",
    "1+4",
    "2+1",
    "2+2",
    "3+2",
    "4+1",
    "4+2",
    "5+3",
    "6+3",
    "8+2",
    "8+3",
]
WIDE = ["8+4", "10+4", "12+4", "16+4", "20+4", "28+4"]
LENGTHS = [*range(1, 300), 1000, 4095, 4097]

codes = st.tuples(st.integers(1, 28), st.integers(0, 4)).map(lambda pair: Code(*pair))


def encoded(codec: Codec, data: list[bytes]) -> list[bytes]:
    """The parity cells, written between guards that must stand afterwards."""
    cells = [GuardedCell(len(data[0]), shift=index) for index in range(codec.code.m)]
    codec.encode(views(data), [cell.view for cell in cells])
    assert all(cell.is_intact() for cell in cells), f"overrun at length {len(data[0])}"
    return [bytes(cell.view) for cell in cells]


def decoded(codec: Codec, columns: list[bytes], lost: tuple[int, ...]) -> list[bytes]:
    """The lost columns, computed from all others."""
    cells = {column: GuardedCell(len(columns[0]), shift=column) for column in lost}
    present = {at: memoryview(cell) for at, cell in enumerate(columns) if at not in lost}
    codec.reconstruct(present, {column: cell.view for column, cell in cells.items()})
    assert all(cell.is_intact() for cell in cells.values())
    return [bytes(cells[column].view) for column in lost]


@pytest.mark.parametrize("text", ["2+1", "4+2", "8+3", "16+4"])
def test_parity_equals_pyeclibs_and_the_tables_at_every_length(text: str) -> None:
    code = Code.parse(text)
    driver = ECDriver(k=code.k, m=code.m, ec_type="isa_l_rs_cauchy")
    for length in LENGTHS:
        data = data_cells(code, length)
        parity = encoded(codec_for(code), data)
        assert parity == [cell[80:] for cell in driver.encode(b"".join(data))[code.k :]], length
        assert parity == parity_by_tables(code, data), length


@given(code=codes, length=st.integers(0, 700), seed=st.integers(0, 1 << 32), data=st.data())
@settings(max_examples=examples(150))
def test_any_m_lost_columns_come_back(
    code: Code, length: int, seed: int, data: st.DataObject
) -> None:
    cells = data_cells(code, length, seed)
    columns = cells + encoded(codec_for(code), cells)
    lost = data.draw(st.lists(st.integers(0, code.n - 1), max_size=code.m, unique=True))
    assert decoded(codec_for(code), columns, tuple(lost)) == [columns[column] for column in lost]


@pytest.mark.parametrize("text", [*SHIPPED, *WIDE])
def test_every_pattern_of_losses_decodes(text: str) -> None:
    # The matrices of all patterns are proved regular in test_matrix; here every 7th runs, at a
    # landing every 28th, and all in make soak.
    every = (28 if IS_LANDING else 7) if text in WIDE[2:] else 1
    check_decodes(Code.parse(text), turn_of(1, every), every)


@pytest.mark.slow
@pytest.mark.parametrize("text", WIDE[2:])
def test_every_pattern_of_losses_of_wide_codes_decodes(text: str) -> None:
    check_decodes(Code.parse(text))


def check_decodes(code: Code, first: int = 0, every: int = 1) -> None:
    """Each `every`th pattern of m losses."""
    cells = data_cells(code, 33)
    columns = cells + parity_by_tables(code, cells)
    codec = Codec(code)
    for lost in islice(combinations(range(code.n), code.m), first, None, every):
        assert decoded(codec, columns, lost) == [columns[column] for column in lost], lost


@given(code=codes, length=st.sampled_from([0, 1, 4095, 9001, 300_007]), data=st.data())
@settings(max_examples=60)
def test_checksums_are_those_of_what_was_read_and_written(
    code: Code, length: int, data: st.DataObject
) -> None:
    codec, cells = codec_for(code), data_cells(code, length)
    parity = [memoryview(bytearray(length)) for _ in range(code.m)]
    of_data, of_parity = codec.encode(views(cells), parity)
    assert of_data.tolist() == [zlib.crc32(cell) for cell in cells]
    assert of_parity.tolist() == [zlib.crc32(cell) for cell in parity]
    assert codec.encode_rows(range(code.k, code.n), views(cells), parity).tolist() == [*of_parity]

    lost = data.draw(st.lists(st.integers(0, code.n - 1), max_size=code.m, unique=True))
    columns = dict(enumerate([*views(cells), *parity]))
    wanted = {column: memoryview(bytearray(length)) for column in lost}
    present = {column: cell for column, cell in columns.items() if column not in lost}
    assert codec.reconstruct(present, wanted) == {j: zlib.crc32(columns[j]) for j in lost}


def test_chosen_parity_rows_equal_those_of_a_full_encode() -> None:
    code = Code(5, 4)
    data = data_cells(code, 4097)
    parity = encoded(codec_for(code), data)
    for rows in [(5,), (8,), (6, 8), (8, 5), ()]:
        outputs = [memoryview(bytearray(4097)) for _ in rows]
        codec_for(code).encode_rows(rows, views(data), outputs)
        assert [bytes(cell) for cell in outputs] == [parity[row - code.k] for row in rows]


def test_one_data_column_is_copied_to_each_replica() -> None:
    data = data_cells(Code(1, 3), 100)
    assert encoded(codec_for(Code(1, 3)), data) == data * 3


def test_a_code_without_parity_encodes_nothing() -> None:
    """Nor is it refused; who wrote to the cells, which are read-only, would raise."""
    code = Code(3, 0)
    data = data_cells(code, 100)
    codec_for(code).encode(views(data), [])
    codec_for(code).reconstruct(dict(enumerate(views(data))), {})


def test_one_page_of_zeros_may_stand_for_many_inputs() -> None:
    zeros = memoryview(bytes(4096))
    parity = [memoryview(bytearray(b"\xff" * 4096)) for _ in range(2)]
    codec_for(Code(4, 2)).encode([zeros] * 4, parity)
    assert parity == [zeros, zeros]


def test_buffers_that_cannot_be_served_are_refused_and_nothing_is_written() -> None:
    codec = codec_for(Code(2, 1))
    good, output = memoryview(b"ab" * 8), memoryview(bytearray(16))
    arena = memoryview(bytearray(64))
    wrong = [
        ([good], [output]),  # one data cell is missing
        ([good, good], []),  # no room for the parity
        ([good, good[:15]], [output]),  # lengths differ
        ([good, good], [memoryview(bytearray(15))]),  # too short an output
        ([good, good], [good]),  # a read-only output
        ([good, arena[0:32:2]], [output]),  # not contiguous
        ([good, arena[:16]], [arena[15:31]]),  # one byte shared
    ]
    for data, parity in wrong:
        with pytest.raises(ValueError, match=r"cell|output|cannot"):
            codec.encode(data, parity)
    assert bytes(output) == bytes(16)
    assert bytes(arena) == bytes(64)


def test_outputs_that_overlap_each_other_are_refused() -> None:
    shared = memoryview(bytearray(31))
    with pytest.raises(ValueError, match="overlaps"):
        codec_for(Code(2, 2)).encode([memoryview(bytes(16))] * 2, [shared[:16], shared[15:]])


def test_columns_that_cannot_be_computed_are_refused() -> None:
    codec = codec_for(Code(2, 1))
    cell, output = memoryview(bytes(16)), memoryview(bytearray(16))
    for present, wanted in [
        ({0: cell}, {1: output}),  # fewer than k
        ({0: cell, 1: cell}, {1: output}),  # wanted and present
        ({0: cell, 1: cell}, {3: output}),  # no such column
    ]:
        with pytest.raises(ValueError, match="2\\+1"):
            codec.reconstruct(present, wanted)
    for rows in [(1,), (3,)]:
        with pytest.raises(ValueError, match="cannot encode"):
            codec.encode_rows(rows, [cell, cell], [output])


def test_tables_are_made_once_for_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    tables = Isal.tables

    def counted(isal: Isal, rows: Sequence[bytes]) -> Tables:
        made.append(len(rows))
        return tables(isal, rows)

    monkeypatch.setattr(Isal, "tables", counted)
    code = Code(4, 2)
    data = data_cells(code, 16)
    codec = Codec(code)
    columns = data + encoded(codec, data)
    for _ in range(3):
        decoded(codec, columns, (1, 4))
    assert made == [2, 2]

    monkeypatch.setattr(codec_module, "PATTERNS_CACHED_MAX", 1)
    bounded = Codec(code)
    made.clear()
    for lost in [(0,), (1,), (0,)]:
        decoded(bounded, columns, lost)
    assert made == [1, 1, 1]


def test_threads_share_a_codec() -> None:
    code = Code(6, 3)
    work = [data_cells(code, 9000, seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda data: encoded(codec_for(code), data), work))
    assert results == [parity_by_tables(code, data) for data in work]


@pytest.mark.parametrize("text", ["4+5", "29+4", "33+0", "0+2"])
def test_a_code_beyond_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        Code.parse(text)


@pytest.mark.parametrize("text", ["28+4", "32+0", "1+4"])
def test_a_code_at_its_bounds_is_one(text: str) -> None:
    assert str(Code.parse(text)) == text
