"""How does fio write numbers? Four digits and a unit, binary first, then decimal."""

from __future__ import annotations

from typing import Final

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")
_DIGITS: Final = 4


def scaled(value: float, unit: str, *, base: int) -> str:
    """`8192KiB`, `20.5MiB`, `1.97GiB`: at most four digits; no decimals where it is exact."""
    prefixes = _BINARY if base == 1024 else _DECIMAL
    index = 0
    while value >= 10**_DIGITS - 0.5 and index < len(prefixes) - 1:
        value /= base
        index += 1
    whole = len(str(int(value)))
    decimals = 0 if value == int(value) else max(0, _DIGITS - whole - 1)
    return f"{value:.{decimals}f}{prefixes[index]}{unit}"


def size(count: float) -> str:
    """Bytes, binary."""
    return scaled(count, "B", base=1024)


def both_sizes(count: float) -> str:
    """`8192KiB (8389kB)`."""
    return f"{size(count)} ({scaled(count, 'B', base=1000)})"


def rate(bytes_per_s: float) -> str:
    """`242MiB/s`."""
    return f"{size(bytes_per_s)}/s"


def both_rates(bytes_per_s: float) -> str:
    """`242MiB/s (254MB/s)`."""
    return f"{rate(bytes_per_s)} ({scaled(bytes_per_s, 'B', base=1000)}/s)"


def time_unit(least_ns: float, most_ns: float) -> tuple[str, int]:
    """(name, nanoseconds) of the unit in which a line of latencies is written."""
    if least_ns > 2_000_000 and most_ns > 99_999_999:
        return "msec", 1_000_000
    if least_ns > 2_000 and most_ns > 99_999:
        return "usec", 1_000
    return "nsec", 1


def msec(seconds: float) -> str:
    """Milliseconds with three digits that count."""
    value = seconds * 1000
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
