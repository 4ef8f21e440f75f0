"""Sizes and times: constants, and how people read and write them."""

from __future__ import annotations

import re
from typing import Final, SupportsFloat

from ckpt.base.errors import Refused

KiB: Final = 1 << 10
MiB: Final = 1 << 20
GiB: Final = 1 << 30
TiB: Final = 1 << 40

US_PER_S: Final = 1_000_000

_SUFFIX_BYTES: Final = {
    "": 1, "b": 1,
    "k": KiB, "ki": KiB, "kib": KiB, "kb": 10**3,
    "m": MiB, "mi": MiB, "mib": MiB, "mb": 10**6,
    "g": GiB, "gi": GiB, "gib": GiB, "gb": 10**9,
    "t": TiB, "ti": TiB, "tib": TiB, "tb": 10**12,
}  # fmt: skip
_UNIT_S: Final = {"d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1, "": 1}
_SIZE_BYTES_MAX: Final = (1 << 63) - 1
"""The largest size of a file, and the largest that every peer can be sent."""
SECONDS_MAX: Final = 1_000_000_000
"""Thirty years; in microseconds a peer can be sent it, and every lock can wait for so long."""
_NO_EXPONENT_BELOW: Final = 999.5
"""Python writes three significant digits of a larger number as `1e+03`."""
_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*([a-zA-Z]*)")


def parse_bytes(text: str) -> int:
    """Bytes from `4096`, `64k`, `1.5GiB`, `2GB`: bare letters and -iB are binary, -B decimal."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3].lower() not in _SUFFIX_BYTES:
        raise Refused(f"size {text!r} is not a number with a suffix like k, MiB or GB")
    # Not by a float: it holds 53 bits.
    decimals = match[2] or ""
    size: int = int(match[1] + decimals) * _SUFFIX_BYTES[match[3].lower()] // 10 ** len(decimals)
    if size > _SIZE_BYTES_MAX:
        raise Refused(f"size {text!r} is 8 EiB or more")
    return size


def format_number(value: float) -> str:
    """Three significant digits, or all before the point: `0.0123`, `4.56`, `81,920`."""
    return f"{value:.3g}" if abs(value) < _NO_EXPONENT_BELOW else f"{value:,.0f}"


def format_bytes(count: float) -> str:
    """Three significant digits with a binary unit: `512 KiB`, `1.25 GiB`."""
    for unit, size in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(count) >= size:
            return f"{format_number(count / size).replace(',', '')} {unit}"
    return f"{count:.0f} B"


def counted(count: int, noun: str, one: str = "", more: str = "") -> str:
    """`1 target`, `2 targets`; with verbs for one and for more `1 target is`, `2 targets are`."""
    text = f"{count} {noun}" if count == 1 else f"{count} {noun}s"
    verb = one if count == 1 else more
    return f"{text} {verb}" if verb else text


def exact_bytes(count: int) -> str:
    """The count as `parse_bytes` reads it back: `32MiB`, `1536KiB`, `1000`."""
    for unit, size in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def format_seconds(seconds: float) -> str:
    """`850 us`, `12.3 ms`, `4.56 s`, `3 min 20 s`, `2 h 5 min`, `12 d 3 h`."""
    if seconds * 1e6 < _NO_EXPONENT_BELOW:
        return f"{seconds * 1e6:.0f} us"
    if seconds * 1e3 < _NO_EXPONENT_BELOW:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes = round(seconds) // 60
    hours = minutes // 60
    if minutes < 120:
        return _two(minutes, "min", round(seconds) % 60, "s")
    if hours < 48:
        return _two(hours, "h", minutes % 60, "min")
    return _two(hours // 24, "d", hours % 24, "h")


def _two(count: int, unit: str, rest: int, smaller: str) -> str:
    return f"{count} {unit} {rest} {smaller}" if rest else f"{count} {unit}"


def check_seconds(what: str, seconds: SupportsFloat) -> float:
    """Seconds that a caller gives, which may be infinite; a time that is over is 0. Raises Refused
    for what is no number.
    """
    if isinstance(seconds, SupportsFloat) and not isinstance(seconds, bool):
        value = float(seconds)
        # A NaN is neither.
        if value >= 0 or value < 0:
            return min(max(value, 0.0), SECONDS_MAX)
    raise Refused(f"{what}={seconds!r} is not a number of seconds")


def parse_age(text: str) -> int:
    """Seconds from `7d`, `12h`, `30min` (or `30m`), `90s`, `90`."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip(), re.ASCII)
    if match is None or match[2] not in _UNIT_S:
        raise Refused(f"age {text!r} is not a whole number with d, h, min or s")
    return int(match[1]) * _UNIT_S[match[2]]


def format_age(seconds: int) -> str:
    """As `parse_age` reads it back: `7d`, `36h`, `90s`."""
    unit = next(unit for unit, size in _UNIT_S.items() if seconds % size == 0)
    return f"{seconds // _UNIT_S[unit]}{unit}"


def align_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def align_down(value: int, unit: int) -> int:
    """The largest multiple of `unit` that is not above `value`."""
    return value // unit * unit
