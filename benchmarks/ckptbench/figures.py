"""The arithmetic of the benchmarks: bounds from costs, ratios, medians. Pure, so that tests can
hold it.

Units: GB is 1e9 bytes; a cost is CPU seconds (user and kernel) for each GB that passes that
stage. "User" bytes are what the trainer handed over; the network and the disks carry n/k of them.

    G* = cores / (copy + ec + share·fingerprint + 2(n/k)·crc + (n/k)(tx + rx))        a save
    R* = cores / (read + 2·crc + tx + rx + touch + copy)                              a restore
    B* = cores / (k(read + 2·crc + tx + rx + ec) + 2·crc + tx + rx)          a column made again
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code

GB: Final = 1e9

ETA_MAX: Final = 1.05
"""Nothing is faster than its bound by more than the noise: then the measurement is wrong."""
BYTES_RATIO_MAX: Final = 1.05
"""Wire and device bytes against n/k of the user's bytes."""
COLUMN_SLACK_BYTES: Final = 64 * 1024
"""What each column may add to them: header, trailer, manifest, frames. Counts for small payloads
only.
"""
DISK_DRIFT_MAX: Final = 0.15
"""A repetition between two raw disk runs that differ by more is thrown away."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest. Raises Refused when there is nothing to take it of."""
    if not values:
        raise Refused("no repetition is left to take a median of", hint="raise --repetitions")
    return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds per GB of one machine, as `ckptbench roofline` measures them."""

    copy: float
    """A warm copy, as many processes at once as there are ranks."""
    ec: float
    """Parity of user bytes that lie in memory."""
    fingerprint: float
    """xxh3-128."""
    crc: float
    """CRC-32 of bytes that are in the cache."""
    tx: float
    """Sending over the transport in use."""
    rx: float
    """Receiving over it."""
    read: float
    """O_DIRECT reads."""
    touch: float
    """First touch of the memory that a restore fills."""


def gb_per_s(byte_count: float, seconds: float) -> float:
    """GB/s; 0 when no time passed."""
    return byte_count / GB / seconds if seconds > 0 else 0.0


def save_bound(costs: Costs, code: Code, cores: int, fingerprint_share: float = 0.0) -> float:
    """G*: user GB/s at which all cores are busy with what cannot be left out.

    `fingerprint_share` is the part of the user's bytes that are replicas; only these are
    fingerprinted.
    """
    spare = code.n / code.k
    seconds = (
        costs.copy
        + costs.ec
        + fingerprint_share * costs.fingerprint
        + 2 * spare * costs.crc
        + spare * (costs.tx + costs.rx)
    )
    return cores / seconds


def restore_bound(costs: Costs, cores: int) -> float:
    """R*: user GB/s of a healthy restore at which all cores are busy."""
    seconds = costs.read + 2 * costs.crc + costs.tx + costs.rx + costs.touch + costs.copy
    return cores / seconds


def rebuild_bound(costs: Costs, code: Code, cores: int) -> float:
    """B*: GB/s of lost columns, one of each payload, at which all cores are busy with what cannot
    be left out: k columns are read, checked on both sides and sent, parity follows, and the one
    that was lost is sent and checked on both sides. The windows are warm memory.
    """
    moved = 2 * costs.crc + costs.tx + costs.rx
    return cores / (code.k * (costs.read + moved + costs.ec) + moved)


def cpu_eta(bound_gb_per_s: float, cores: int, cpu_s_per_gb: float) -> float:
    """The CPU seconds that a GB must cost against those it did cost.

    What eta would be if every core had been ours: the figure to compare on a machine that others
    use as well.
    """
    return cores / bound_gb_per_s / cpu_s_per_gb


def disk_eta(user_bytes: int, seconds: float, code: Code, raw_gb_per_s: Sequence[float]) -> float:
    """The tier's rate on the device against the raw rate (mean of the runs before and after)."""
    raw = statistics.fmean(raw_gb_per_s)
    return gb_per_s(user_bytes * code.n / code.k, seconds) / raw


def drift(before: float, after: float) -> float:
    """How much two measurements of one thing differ, as a part of the larger."""
    return abs(before - after) / max(before, after)


def stored_bytes(payload_bytes: int, code: Code) -> float:
    """What n columns of one payload hold, without headers."""
    return payload_bytes * code.n / code.k


def bytes_fit(found: float, payload_bytes: int, ranks: int, code: Code) -> bool:
    """Whether counted bytes are n/k of all ranks' payload, no less and at most 5% more."""
    expected = stored_bytes(payload_bytes, code)
    slack = ranks * code.n * COLUMN_SLACK_BYTES
    return expected * 0.999 <= found <= expected * BYTES_RATIO_MAX + slack


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and what was found."""

    name: str
    found: float
    limit: float
    at_least: bool
    """True: found should be >= limit; False: <=."""
    next_limit: float | None = None
    """A later goal; to miss it is no error."""

    @property
    def met(self) -> bool:
        return self._meets(self.limit)

    def _meets(self, limit: float) -> bool:
        return self.found >= limit if self.at_least else self.found <= limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "met   " if self.met else "MISSED"
        text = f"{verdict} {self.name}: {self.found:.3g} {sign} {self.limit:g}"
        if self.next_limit is None:
            return text
        reached = "met" if self._meets(self.next_limit) else "not yet"
        return f"{text}; next {sign} {self.next_limit:g}: {reached}"


@dataclass(frozen=True, slots=True)
class JudgedRule:
    """A rule of `ckptbench rules`, and what one run found of it."""

    name: str
    found: Spread | None
    """None: nothing could be measured, or it was skipped."""
    limit: float
    at_least: bool
    """True: the median should be >= limit; False: <=."""
    sections: tuple[str, ...]
    """The jobs whose figures it is about, first the one that is judged."""
    state: str = ""
    """Of the first of them: ranks x bytes of each."""
    skipped: str = ""
    """Why none of its jobs ran; empty where they did."""

    @property
    def met(self) -> bool:
        if self.found is None:
            return False
        median = self.found.median
        return median >= self.limit if self.at_least else median <= self.limit

    @property
    def passes(self) -> bool:
        """Whether --strict lets it pass: a rule that was to be measured and was not does not."""
        return self.met or bool(self.skipped)
