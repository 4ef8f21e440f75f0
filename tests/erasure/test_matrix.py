"""The field and its matrices are what ISA-L computes with, and no loss pattern is a hole."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
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
    parity = np.frombuffer(b"".join(matrix.coding_matrix(code)[code.k :]), np.uint8)
    parity = parity.reshape(code.m, code.k)
    for size in range(1, code.m + 1):
        if code.k == 1 and size > 1:
            continue  # Only one data column can be lost.
        lost = np.array(list(combinations(range(code.k), size)), np.intp).reshape(-1, size)
        for rows in combinations(parity, size):
            singular = lost[_determinants([row[lost] for row in rows]) == 0]
            assert not singular.size, (code, singular[0])


def test_a_part_without_an_inverse_is_found() -> None:
    parts = [np.array(rows, np.uint8) for rows in ([[1, 2], [1, 2]], [[2, 4], [3, 4]])]
    assert (_determinants(parts) == 0).tolist() == [True, False]


@cache
def _products() -> npt.NDArray[np.uint8]:
    """Of each two elements."""
    flat = bytes(matrix.multiply(a, b) for a in range(256) for b in range(256))
    return np.frombuffer(flat, np.uint8).reshape(256, 256)


def _determinants(parts: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Of many parts at once, by expansion: at most 4 x 4, and quicker than inverting. `parts` are
    their first rows, their second rows, and so on.
    """
    first, rest = parts[0], parts[1:]
    if not rest:
        return first[:, 0]
    total = np.zeros(len(first), np.uint8)
    for column in range(first.shape[1]):
        minors = _determinants([np.delete(row, column, axis=1) for row in rest])
        total ^= _products()[first[:, column], minors]
    return total
