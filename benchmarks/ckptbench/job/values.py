"""How is the text of an option read? One kind for each type, with fio's words and suffixes.

A kind turns text into a value or raises ValueError with the cause; whoever called it adds where
the text stood. Sizes and numbers may be arithmetic: `4*1Gi`, `(2+1)*64k`, `1/1000`.

The one difference to fio: `Ki Mi Gi` are always binary and `KB MB GB` always decimal; fio swaps
them. Bare letters are binary in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Generic, TypeVar

from ckpt.base.units import GiB, KiB, MiB, TiB

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SUFFIXES: Final[Mapping[str, int]] = {
    "": 1, "b": 1,
    "k": KiB, "ki": KiB, "kib": KiB, "kb": 10**3,
    "m": MiB, "mi": MiB, "mib": MiB, "mb": 10**6,
    "g": GiB, "gi": GiB, "gib": GiB, "gb": 10**9,
    "t": TiB, "ti": TiB, "tib": TiB, "tb": 10**12,
    "p": TiB * KiB, "pi": TiB * KiB, "pib": TiB * KiB, "pb": 10**15,
}  # fmt: skip
SECONDS: Final[Mapping[str, Fraction]] = {
    "d": Fraction(86400), "h": Fraction(3600), "m": Fraction(60), "s": Fraction(1),
    "ms": Fraction(1, 1000), "msec": Fraction(1, 1000),
    "us": Fraction(1, 10**6), "usec": Fraction(1, 10**6),
}  # fmt: skip
DEPTH_MAX: Final = 32
"""Of parentheses."""
MATMUL: Final = "matmul"
THINK_S_MAX: Final = 120.0
"""A rank that says nothing for longer is taken for one that hangs (ckptbench.ranks)."""
TIME_S_MAX: Final = 366 * 86_400
"""Nobody waits for longer, and a much longer time is more than a clock can count."""
WHOLE_MAX: Final = 2**63 - 1
"""What a signed integer of 64 bits holds, as in every program that is given the number."""
PERCENTILES_MAX: Final = 20
"""As many as fio takes."""
_TOKEN = re.compile(r"\s*(0x[0-9a-f]+|\d+\.\d+|\.\d+|\d+|[a-z]+|[-+*/()])", re.IGNORECASE)


@dataclass(frozen=True)
class ValueKind(Generic[T_co]):
    """A type of option."""

    name: str
    """As help says it."""
    read: Callable[[str], T_co]
    empty: T_co | None = None
    """What the option means without a value; None: it needs one."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The words that are allowed, with what each means; empty when any text may be one."""
    is_bytes: bool = False
    """The values are numbers of bytes, which help shows as `1MiB`."""


def size_kind(*, least: int = 0) -> ValueKind[int]:
    """Bytes, at least `least`."""

    def read(text: str) -> int:
        return _whole(text, least, "bytes")

    return ValueKind("integer with suffix: k=1Ki=1024, 1KB=1000; arithmetic in parentheses", read,
                is_bytes=True)  # fmt: skip


def count_kind(*, least: int = 0, most: int | None = None) -> ValueKind[int]:
    """A whole number in bounds."""

    def read(text: str) -> int:
        # Half a loop is a slip of the pen; a part of a byte is only how a size was computed.
        if arithmetic(text).denominator != 1:
            raise ValueError("not a whole number")
        value = _whole(text, least, "")
        if most is not None and value > most:
            raise ValueError(f"{value} is more than {most}")
        return value

    bound = f" (opt={least}..{most})" if most is not None else f" (at least {least})"
    return ValueKind(f"integer{bound}", read)


def ratio_kind() -> ValueKind[Fraction]:
    """A positive number, exact: `1/1000`, `0.25`."""

    def read(text: str) -> Fraction:
        value = arithmetic(text)
        if value <= 0:
            raise ValueError("must be more than 0")
        return value

    return ValueKind("number, also as a fraction: 1/1000", read)


def time_kind(unit: str) -> ValueKind[float]:
    """Seconds; a bare number counts in `unit`, which is fio's for that option."""

    def read(text: str) -> float:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
        suffix = (match[2].lower() or unit) if match else ""
        if match is None or suffix not in SECONDS:
            raise ValueError(f"not a time with one of {', '.join(SECONDS)}")
        found = Fraction(match[1]) * SECONDS[suffix]
        if found > TIME_S_MAX:
            raise ValueError(f"longer than {TIME_S_MAX // 86_400} days")
        return float(found)

    return ValueKind(f"time, bare numbers in {unit}; suffixes d h m s ms us", read)


def think_kind() -> ValueKind[float]:
    """Seconds of what is computed beside a save: `matmul:1s`; a time alone means the same."""
    seconds = time_kind("s").read

    def read(text: str) -> float:
        work, mark, length = text.partition(":")
        if mark and work != MATMUL:
            raise ValueError(f"{work!r} is nothing that ranks compute, but {MATMUL} is")
        found = seconds(length if mark else work)
        if found > THINK_S_MAX:
            raise ValueError(f"longer than {THINK_S_MAX:g} s")
        return found

    return ValueKind(f"{MATMUL}:TIME, bare numbers in s; suffixes d h m s ms us", read)


def flag_kind() -> ValueKind[bool]:
    """1 or 0; the bare word is 1."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

    def read(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError("neither 0 nor 1")
        return words[text.lower()]

    return ValueKind("empty or boolean value ([0|1])", read, empty=True)


def choice_kind(
    choices: Mapping[str, str],
    same: Mapping[str, str] | None = None,
    missing: Mapping[str, str] | None = None,
) -> ValueKind[str]:
    """One of the words; `same` maps other spellings to them, `missing` says why there is none."""
    aliases, reasons = dict(same or {}), dict(missing or {})

    def read(text: str) -> str:
        word = aliases.get(text, text)
        if word in reasons:
            raise ValueError(reasons[word])
        if word not in choices:
            raise ValueError(f"not one of {', '.join([*choices, *aliases])}")
        return word

    shown = dict(choices) | {word: f"the same as {to}" for word, to in aliases.items()}
    return ValueKind("string", read, choices=shown)


def text_kind() -> ValueKind[str]:
    """Any text."""

    def read(text: str) -> str:
        if any(ord(sign) < 32 for sign in text):
            raise ValueError("holds a control character")
        return text

    return ValueKind("string", read)


def list_kind() -> ValueKind[tuple[float, ...]]:
    """Percentiles, `50:90:99.9`, ascending."""

    def read(text: str) -> tuple[float, ...]:
        values = sorted({float(_number(part)) for part in text.split(":")})
        if len(values) > PERCENTILES_MAX:
            raise ValueError(f"{len(values)} values, at most {PERCENTILES_MAX}")
        if values[0] <= 0 or values[-1] > 100:
            raise ValueError("percentiles are above 0 and at most 100")
        return tuple(values)

    return ValueKind("list of numbers with colons (opt=50:90:99.9)", read)


def range_kind(*, least: int) -> ValueKind[tuple[int, int]]:
    """Least and greatest size, both inclusive: `1k-64k`, `1k:64k`, or one size."""

    def read(text: str) -> tuple[int, int]:
        low, mark, high = text.replace(":", "-", 1).partition("-")
        found = (_whole(low, least, "bytes"), _whole(high if mark else low, least, "bytes"))
        if found[0] > found[1]:
            raise ValueError(f"the range ends ({found[1]}) below its beginning ({found[0]})")
        return found

    return ValueKind("size or range of sizes (opt=1k-64k)", read, is_bytes=True)


def pair_kind() -> ValueKind[tuple[int, int]]:
    """Bytes per second for reads and writes, `rate=1m,500k`, `,500k`; one value is both.

    0: no limit.
    """

    def read(text: str) -> tuple[int, int]:
        first, mark, second = text.partition(",")
        reads = _whole(first, 0, "bytes/s") if first.strip() else 0
        writes = reads if not mark else _whole(second, 0, "bytes/s") if second.strip() else 0
        return reads, writes

    return ValueKind("bytes/s, or read,write", read)


def arithmetic(text: str) -> Fraction:
    """The exact value of numbers with suffixes, + - * / and parentheses. Raises ValueError."""
    tokens, place = [], 0
    stripped = text.rstrip()
    while place < len(stripped):
        match = _TOKEN.match(stripped, place)
        if match is None:
            raise ValueError(
                f"{stripped[place:]!r} is not a number, a suffix or one of + - * / ( )"
            )
        tokens.append(match[1].lower())
        place = match.end()
    reader = _Arithmetic(tokens)
    value = reader.sum(0)
    if reader.left:
        raise ValueError(f"{reader.left[0]!r} is left over")
    return value


class _Arithmetic:
    """I read an expression by recursive descent; `left` holds the tokens that are not read yet."""

    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.left and self.left[0] in "+-":
            sign = self.left.pop(0)
            other = self._product(depth)
            value = value + other if sign == "+" else value - other
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.left and self.left[0] in "*/":
            sign = self.left.pop(0)
            other = self._factor(depth)
            if sign == "/" and other == 0:
                raise ValueError("division by zero")
            value = value * other if sign == "*" else value / other
        return value

    def _factor(self, depth: int) -> Fraction:
        if depth > DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} parentheses in one another")
        token = self.left.pop(0) if self.left else ""
        if token == "(":
            value = self.sum(depth + 1)
            if not self.left or self.left.pop(0) != ")":
                raise ValueError("a parenthesis is not closed")
        elif token.startswith("0x"):
            value = Fraction(int(token, 16))
        elif token[:1].isdigit() or token.startswith("."):
            value = Fraction(token)
        else:
            raise ValueError(f"a number is missing before {token!r}" if token else "no number")
        if self.left and self.left[0].isalpha():
            suffix = self.left.pop(0)
            if suffix not in SUFFIXES:
                raise ValueError(
                    f"suffix {suffix!r} is none of {', '.join(filter(None, SUFFIXES))}"
                )
            value *= SUFFIXES[suffix]
        return value


def _whole(text: str, least: int, unit: str) -> int:
    value = int(arithmetic(text))
    if value < least:
        raise ValueError(f"{value} {unit}".rstrip() + f" is less than {least}")
    if value > WHOLE_MAX:
        raise ValueError(f"more than {WHOLE_MAX}, which is 8 EiB")
    return value


def _number(text: str) -> Fraction:
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number") from None
