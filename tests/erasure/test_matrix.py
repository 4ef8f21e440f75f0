"""The field and its matrices are what ISA-L computes with, and no loss pattern is a hole."""

from __future__ import annotations

import ctypes
from itertools import combinations

import pytest

from ckpt.erasure import matrix
from ckpt.erasure.code import Code
from ckpt.native.isal import Isal, find_isal

CODES = [Code(k, m) for k in range(1, 32) for m in range(5) if k + m <= 32]


@pytest.fixture
def isal() -> Isal:
    return find_isal()


def test_products_equal_isals_for_all_pairs(isal: Isal) -> None:
    assert all(matrix.multiply(a, b) == isal.multiply(a, b) for a in range(256) for b in range(256))


def test_every_element_but_zero_has_an_inverse() -> None:
    assert all(matrix.multiply(a, matrix.inverse(a)) == 1 for a in range(1, 256))


def test_coding_matrices_equal_isals_cauchy_matrices(isal: Isal) -> None:
    library = ctypes.CDLL(isal.path)
    for code in CODES:
        if code.k > 1:
            theirs = ctypes.create_string_buffer(code.n * code.k)
            library.gf_gen_cauchy1_matrix(theirs, code.n, code.k)
            assert b"".join(matrix.coding_matrix(code)) == theirs.raw, code


def test_a_code_of_one_data_column_replicates() -> None:
    assert matrix.coding_matrix(Code(1, 4)) == (b"\x01",) * 5


def test_inverses_equal_isals(isal: Isal) -> None:
    rows = matrix.coding_matrix(Code(8, 4))
    for chosen in combinations(range(12), 8):
        part = [rows[index] for index in chosen]
        inverse = matrix.invert(part)
        assert inverse is not None
        assert b"".join(inverse) == isal.invert(b"".join(part), 8)


def test_a_singular_matrix_has_no_inverse(isal: Isal) -> None:
    singular = [b"\x01\x02", b"\x02\x04"]
    assert matrix.invert(singular) is None
    assert isal.invert(b"".join(singular), 2) is None


@pytest.mark.parametrize("code", CODES, ids=str)
def test_every_square_part_of_the_parity_rows_has_an_inverse(code: Code) -> None:
    # A pattern that loses the data columns L and keeps the parity rows P is solvable exactly when
    # the part P x L is; that is far fewer and smaller matrices than all C(n, k) of size k.
    parity = matrix.coding_matrix(code)[code.k :]
    for size in range(1, code.m + 1):
        if code.k == 1 and size > 1:
            continue  # Only one data column can be lost.
        for rows in combinations(parity, size):
            for columns in combinations(range(code.k), size):
                part = [bytes(row[column] for column in columns) for row in rows]
                assert _is_regular(part), (code, columns)


def _is_regular(part: list[bytes]) -> bool:
    """Whether the determinant is not 0, by expansion: at most 4 x 4, and quicker than inverting."""
    return _determinant(part) != 0


def _determinant(part: list[bytes]) -> int:
    if len(part) == 1:
        return part[0][0]
    total = 0
    for column, factor in enumerate(part[0]):
        minor = [row[:column] + row[column + 1 :] for row in part[1:]]
        total ^= matrix.multiply(factor, _determinant(minor))
    return total
