"""What does `fault=` ask for? Pure.

KIND:target=N[:AMOUNT][@WHEN], several with commas

kill       SIGKILL; started again after the checkpoint
stop       SIGSTOP; continued after the checkpoint
slow       runs 1/20 of the time with :20x
device     its disk takes 100 times as long with :100x: each write, sync and name
netem      packets to and from it are treated as tc-netem says: :delay=10ms, :loss=1%, :rate=1gbit
targets=N  so many, others in each checkpoint, in the place of target=N (the one called tN)
@50%       when so much of the burst's bytes have reached the targets; @0% at its beginning
@200ms     so long after its beginning
@before    1 s before it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ckpt.base.errors import Refused
from ckptbench.job.values import time_kind

SLOW_DEFAULT: Final = 20.0
DEVICE_DEFAULT: Final = 100.0
BEFORE_S: Final = 1.0
_WORD = re.compile(
    r"(?P<kind>[a-z]+):(?P<who>targets?)=(?P<number>\d+)(?::(?P<amount>[^@]+))?(?:@(?P<when>.+))?"
)
_NETEM = re.compile(r"(delay|loss|rate|corrupt|reorder|duplicate|limit)=([\w.%]+(?:\s[\w.%]+)*)")


class FaultKind(Enum):
    """What happens to a target."""

    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    DEVICE = "device"
    NETEM = "netem"


_TIMES = (FaultKind.SLOW, FaultKind.DEVICE)
"""They take how many times."""


@dataclass(frozen=True, slots=True)
class Before:
    """`BEFORE_S` before the checkpoint begins."""


@dataclass(frozen=True, slots=True)
class After:
    """A moment: so many seconds after the checkpoint began."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AtShare:
    """When this part (0 to 1) of its bytes have reached the targets."""

    share: float


When = Before | After | AtShare


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as a word of `fault=` describes it."""

    kind: FaultKind
    target: int | None
    """None: `count` targets, others in each checkpoint."""
    count: int
    slow_factor: float
    netem: str
    """tc-netem's own arguments."""
    when: When

    def targets(self, total: int, loop: int) -> tuple[int, ...]:
        """Numbers of the targets that it strikes in this checkpoint."""
        if self.target is not None:
            return (self.target,)
        return tuple((loop + place) % total for place in range(self.count))

    def __str__(self) -> str:
        who = f"targets={self.count}" if self.target is None else f"target={self.target}"
        amount = f":{self.slow_factor:g}x" if self.kind in _TIMES else ""
        amount = f":{self.netem}" if self.netem else amount
        match self.when:
            case Before():
                when = "before"
            case After(seconds):
                when = f"{seconds:g}s"
            case AtShare(share):
                when = f"{100 * share:g}%"
        return f"{self.kind.value}:{who}{amount}@{when}"


def parse_faults(text: str, targets: int) -> tuple[Fault, ...]:
    """All words. Raises Refused naming the one that cannot be."""
    # A comma within netem's arguments is theirs: only one before a kind begins a word.
    words = re.split(r",(?=[a-z]+:targets?=)", text.strip())
    return tuple(_parse(word.strip(), targets) for word in words if word.strip())


def _parse(word: str, targets: int) -> Fault:
    match = _WORD.fullmatch(word)
    kinds = {kind.value: kind for kind in FaultKind}
    if match is None or match["kind"] not in kinds:
        raise Refused(
            f"fault {word!r} is not understood",
            hint="like kill:target=2@50%, slow:target=1:20x, stop:targets=2@200ms",
        )
    kind, number, many = kinds[match["kind"]], int(match["number"]), match["who"] == "targets"
    if number > targets or (number == targets and not many) or (many and not number):
        raise Refused(f"fault {word!r}: there are {targets} targets, t0 to t{targets - 1}")
    amount = match["amount"] or ""
    if amount and kind not in (*_TIMES, FaultKind.NETEM):
        raise Refused(f"fault {word!r}: {kind.value} takes no amount")
    return Fault(
        kind,
        None if many else number,
        number if many else 1,
        _factor(word, kind, amount) if kind in _TIMES else 1.0,
        _netem(word, amount) if kind is FaultKind.NETEM else "",
        _when(word, match["when"] or "0%"),
    )


def _factor(word: str, kind: FaultKind, amount: str) -> float:
    if not amount:
        return SLOW_DEFAULT if kind is FaultKind.SLOW else DEVICE_DEFAULT
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x", amount)
    if match is None or float(match[1]) <= 1:
        raise Refused(f"fault {word!r}: {kind.value} takes how many times, like :20x")
    return float(match[1])


def _netem(word: str, amount: str) -> str:
    parts = amount.split(",")
    matches = [_NETEM.fullmatch(part.strip()) for part in parts]
    if not amount or None in matches:
        raise Refused(f"fault {word!r}: netem takes delay=, loss=, rate=, like :delay=10ms,loss=1%")
    return ",".join(part.strip() for part in parts)


def _when(word: str, text: str) -> When:
    if text == "before":
        return Before()
    try:
        if text.endswith("%"):
            share = float(text[:-1]) / 100
            if not 0 <= share < 1:
                raise ValueError("from 0% to less than 100%")
            return AtShare(share)
        return After(time_kind("s").read(text))
    except ValueError as error:
        raise Refused(f"fault {word!r}: when is {text!r}: {error}") from None
