"""What of a run's committed steps stays: as people say it, and how it is said to the coordinator.

The catalog keeps a `Retention` as the JSON of it. A rule that a version does not know is refused,
never passed over: without it more would be deleted.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import RunName
from ckpt.format.messages.metrics import check_metric_name

COUNT_MAX: Final = (1 << 63) - 1
AGE_S_MAX: Final = 100 * 366 * 86_400
"""A century: what must never expire by its age needs no rule."""


class Better(Enum):
    """Which values of a metric are the good ones."""

    MIN = "min"
    MAX = "max"


class Best(Struct, frozen=True, forbid_unknown_fields=True):
    """The `count` steps with the best values of a metric, as it was given to their saves."""

    metric: str
    better: Better
    count: int


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """The union of these stays, and always the newest step. Without any rule everything stays."""

    last: int | None = None
    """How many of the newest steps stay."""
    every: int | None = None
    """Steps that it divides stay."""
    best: Best | None = None
    age_s: int | None = None
    """Steps stay whose commit is at most this old, by the coordinator's clock."""


ALL_STAYS: Final = Retention()
"""Also in force for a run whose rules were lost."""


class KeepSteps(Struct, frozen=True, gc=False):
    """Set a run's rules. Idempotent. With `dry_run` nothing is changed."""

    run: RunName
    retention: Retention | None = None
    """None: the run has no rules of its own, and the cluster's apply."""
    dry_run: bool = False
    """Answered by Answer: what would stay, what would go, and why."""


class StepsKept(Struct, frozen=True, gc=False):
    """The rules are durable, and what they leave over is going."""

    run: RunName
    retention: Retention | None = None


def check_retention(retention: Retention) -> Retention:
    """The same, or Refused with what is no rule."""
    if retention == ALL_STAYS:
        raise Refused("no rule says what stays", hint="such as last=5")
    numbers = (("last", retention.last), ("every", retention.every))
    for name, number in numbers:
        if number is not None and not 1 <= number <= COUNT_MAX:
            raise Refused(f"{name}={number}: a whole number from 1")
    if retention.age_s is not None and not 1 <= retention.age_s <= AGE_S_MAX:
        raise Refused(f"age={retention.age_s} s: 1 s to 100 years are allowed")
    if retention.best is not None:
        check_metric_name(retention.best.metric)
        if not 1 <= retention.best.count <= COUNT_MAX:
            raise Refused(f"best {retention.best.count}: a whole number from 1")
    return retention


def encode_retention(retention: Retention) -> bytes:
    """As the catalog keeps it: JSON."""
    return msgspec.json.encode(retention)


def decode_retention(document: bytes) -> Retention:
    """The inverse. Raises Corrupt, also for what a later version wrote."""
    try:
        return _RETENTION.decode(document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"rules of retention cannot be read: {error}") from None


_RETENTION: Final = msgspec.json.Decoder(Retention)
