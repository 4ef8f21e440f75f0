"""The shape of a code: k data and m parity columns, written `4+2`."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.limits import CODE_COLUMNS_MAX, CODE_PARITY_MAX

_TEXT = re.compile(r"(\d{1,2})\+(\d{1,2})")


class Code(Struct, frozen=True, order=True, gc=False):
    """Reed-Solomon k+m over GF(2^8). k = 1 is replication, m = 0 has no protection."""

    k: int
    m: int

    def __post_init__(self) -> None:
        n = self.k + self.m
        if not (self.k >= 1 and 0 <= self.m <= CODE_PARITY_MAX and n <= CODE_COLUMNS_MAX):
            raise Refused(
                f"code {self.k}+{self.m}: "
                f"k >= 1, m <= {CODE_PARITY_MAX} and k + m <= {CODE_COLUMNS_MAX}"
            )

    def __str__(self) -> str:
        return f"{self.k}+{self.m}"

    @property
    def n(self) -> int:
        """Columns in all."""
        return self.k + self.m

    @property
    def floor(self) -> int:
        """Fewest sealed columns that may commit: min(n, k + 1)."""
        return self.k + 1 if self.m else self.k

    @staticmethod
    def parse(text: str) -> Code:
        """`K+M`; raises Refused when the text or the numbers are not a code."""
        return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Code:
    """Every column that is begun names its code by this text, and there are few of them."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise Refused(f"code {text!r} is not of the form K+M, such as 4+2")
    return Code(int(match[1]), int(match[2]))
