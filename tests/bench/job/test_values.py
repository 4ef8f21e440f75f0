"""Texts become values, with fio's suffixes; what is no value is refused with its cause."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.units import GiB, KiB, MiB
from ckptbench.job.values import (
    THINK_S_MAX,
    arithmetic,
    choice_kind,
    count_kind,
    flag_kind,
    list_kind,
    pair_kind,
    range_kind,
    ratio_kind,
    size_kind,
    think_kind,
    time_kind,
)
from ckptbench.ranks import ANSWER_TIMEOUT_S

NUMBERS = st.integers(0, 10**6).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_arithmetic_is_what_python_makes_of_it(text: str) -> None:
    assert arithmetic(text) == eval(text)  # noqa: S307 (made of digits, signs and parentheses)


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    try:
        assert isinstance(arithmetic(text), Fraction)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096), ("4k", 4 * KiB), ("4ki", 4 * KiB), ("4KiB", 4 * KiB), ("4kb", 4000),
        ("1.5GiB", 3 * GiB // 2), ("0x10", 16), ("0x10k", 16 * KiB), ("8*4m", 32 * MiB),
        ("(1 + 2) * 4k", 12 * KiB), ("1g/4", GiB // 4), (" 7 ", 7), ("1p", 1 << 50),
    ],
)  # fmt: skip
def test_sizes_have_suffixes_and_may_be_worked_out(text: str, value: int) -> None:
    assert size_kind().read(text) == value


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no number"), ("4x", "suffix 'x'"), ("4 4", "left over"), ("(4", "not closed"),
        ("4*", "no number"), ("k", "a number is missing"), ("1/0", "division by zero"),
        ("4$", "is not a number"), ("(" * 40 + "1" + ")" * 40, "parentheses"), ("1-2", "less than 0"),
    ],
)  # fmt: skip
def test_what_is_no_size_says_why(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause.replace("$", r"\$")):
        size_kind().read(text)


@pytest.mark.parametrize(
    ("unit", "text", "seconds"),
    [("s", "5", 5.0), ("s", "2m", 120.0), ("s", "1h", 3600.0), ("us", "250", 250e-6),
     ("us", "5s", 5.0), ("s", "20ms", 0.02), ("s", "1.5d", 129600.0)],
)  # fmt: skip
def test_bare_times_count_in_the_options_own_unit(unit: str, text: str, seconds: float) -> None:
    assert time_kind(unit).read(text) == seconds


def test_other_kinds_read_what_fio_writes() -> None:
    assert list_kind().read("99:50:99.9") == (50.0, 99.0, 99.9)
    assert range_kind(least=1).read("1k-64k") == (KiB, 64 * KiB)
    assert range_kind(least=1).read("1k:64k") == (KiB, 64 * KiB)
    assert range_kind(least=1).read("4k") == (4 * KiB, 4 * KiB)
    assert pair_kind().read("1m,500k") == (MiB, 500 * KiB)
    assert pair_kind().read(",500k") == (0, 500 * KiB)
    assert pair_kind().read("1m") == (MiB, MiB)
    assert ratio_kind().read("1/1000") == Fraction(1, 1000)
    assert flag_kind().empty is True
    assert flag_kind().read("0") is False


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        (list_kind(), "50:101", "at most 100"),
        (list_kind(), ":".join(str(n) for n in range(1, 30)), "at most 20"),
        (range_kind(least=16), "64k-1k", "below its beginning"),
        (count_kind(most=4), "5", "more than 4"),
        (count_kind(least=1), "0", "0 is less than 1"),
        (count_kind(), "1.5", "not a whole number"),
        (count_kind(), "99999999999999999999", "more than 9223372036854775807"),
        (size_kind(), "9999p*9999", "8 EiB"),
        (ratio_kind(), "0", "more than 0"),
        (flag_kind(), "maybe", "neither 0 nor 1"),
        (choice_kind({"a": "", "b": ""}, {"c": "a"}), "d", "not one of a, b, c"),
        (time_kind("s"), "5 parsecs", "not a time"),
        (time_kind("us"), "99999999999999999999", "longer than 366 days"),
        (think_kind(), "matmul:", "not a time"),
        (think_kind(), "matmul:1s:2s", "not a time"),
        (think_kind(), "conv:1s", "'conv' is nothing that ranks compute, but matmul is"),
        (think_kind(), ":1s", "'' is nothing that ranks compute"),
        (think_kind(), "matmul:1h", "longer than 120 s"),
    ],
)
def test_what_is_out_of_bounds_says_so(kind: object, text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        kind.read(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "seconds"), [("matmul:2", 2.0), ("matmul:100ms", 0.1), ("1s", 1.0), ("matmul:0", 0.0)]
)
def test_what_ranks_compute_beside_a_save_has_a_name_and_a_time(text: str, seconds: float) -> None:
    assert think_kind().read(text) == seconds


def test_no_rank_computes_until_it_is_taken_for_one_that_hangs() -> None:
    assert THINK_S_MAX < ANSWER_TIMEOUT_S


def test_another_spelling_is_the_same_choice() -> None:
    assert choice_kind({"save": ""}, {"write": "save"}).read("write") == "save"
