"""The field GF(2^8) and the matrices over it, in plain Python.

This is the definition that the fast libraries are held against, and where decode matrices come
from: they are small, and computed once for each pattern of losses. The field's polynomial is
x^8 + x^4 + x^3 + x^2 + 1 (0x11D), its generator 2. A matrix is a tuple of rows, a row is `bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ckpt.erasure.code import Code

Matrix = tuple[bytes, ...]

_POLYNOMIAL: Final = 0x11D


def _power_table() -> bytes:
    """`table[i]` is 2**i in the field, twice over, so that sums of two logarithms need no
    modulo."""
    powers = [1]
    while len(powers) < 255:
        doubled = powers[-1] << 1
        powers.append(doubled ^ _POLYNOMIAL if doubled & 0x100 else doubled)
    return bytes(powers * 2)


_POWER: Final = _power_table()
_LOGARITHM: Final = {_POWER[exponent]: exponent for exponent in range(255)}


def multiply(a: int, b: int) -> int:
    """The product of two field elements."""
    return _POWER[_LOGARITHM[a] + _LOGARITHM[b]] if a and b else 0


def inverse(a: int) -> int:
    """The element whose product with `a` is 1; `a` is not 0."""
    assert a
    return _POWER[255 - _LOGARITHM[a]]


def _product_table() -> tuple[bytes, ...]:
    """The row of 2a is that of a, doubled: every daemon pays for this when it starts."""
    doubled = bytes(multiply(2, b) for b in range(256))
    rows = [bytes(256)] * 256
    row = bytes(range(256))
    for exponent in range(255):
        rows[_POWER[exponent]] = row
        row = row.translate(doubled)
    return tuple(rows)


_PRODUCTS: Final = _product_table()
"""`_PRODUCTS[a][b] == multiply(a, b)`; a row is a table for `bytes.translate`."""


def coding_matrix(code: Code) -> Matrix:
    """n rows of k: the identity, then one row for each parity column (matrix 1 of the manifests).

    Parity row i, column j holds 1 / (i ^ j), as ISA-L's `gf_gen_cauchy1_matrix` does: every square
    part of such a matrix has an inverse, so any k columns suffice. For k = 1 the rows are scaled to
    ones: the code is plain replication, and each column is the data itself.
    """
    identity = tuple(_unit_row(code.k, index) for index in range(code.k))
    if code.k == 1:
        return identity + (b"\x01",) * code.m
    return identity + tuple(
        bytes(inverse(row ^ column) for column in range(code.k)) for row in range(code.k, code.n)
    )


def invert(matrix: Sequence[bytes]) -> Matrix | None:
    """The inverse of a square matrix by Gauss-Jordan elimination; None when it is singular."""
    size = len(matrix)
    assert all(len(row) == size for row in matrix)
    # Each row carries its part of the result after it.
    rows = [row + _unit_row(size, index) for index, row in enumerate(matrix)]
    for column in range(size):
        pivot = next((index for index in range(column, size) if rows[index][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = _scaled(rows[column], inverse(rows[column][column]))
        for index in range(size):
            if index != column and rows[index][column]:
                rows[index] = _added(rows[index], _scaled(rows[column], rows[index][column]))
    return tuple(row[size:] for row in rows)


def recovery_matrix(code: Code, sources: Sequence[int], wanted: Sequence[int]) -> Matrix:
    """One row for each wanted column: its coefficients over the k source columns, in their
    order."""
    assert len(sources) == code.k
    coding = coding_matrix(code)
    if tuple(sources) == tuple(range(code.k)):
        return tuple(coding[column] for column in wanted)
    decoding = invert([coding[column] for column in sources])
    assert decoding is not None, f"columns {sources} of {code}: a Cauchy matrix has no such hole"
    return tuple(combine(coding[column], decoding) for column in wanted)


def combine(coefficients: bytes, cells: Sequence[bytes]) -> bytes:
    """The sum of `cells`, each times its coefficient: one row of a product, or one encoded cell."""
    assert len(coefficients) == len(cells) > 0
    total = bytes(len(cells[0]))
    for coefficient, cell in zip(coefficients, cells, strict=True):
        total = _added(total, _scaled(cell, coefficient))
    return total


def _unit_row(size: int, index: int) -> bytes:
    return bytes(index) + b"\x01" + bytes(size - 1 - index)


def _scaled(row: bytes, factor: int) -> bytes:
    return row.translate(_PRODUCTS[factor])


def _added(a: bytes, b: bytes) -> bytes:
    """Addition is exclusive or; Python's integers do it for a whole row at once."""
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")
