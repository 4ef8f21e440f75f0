"""What stays of a run: rules as programs and people write them, and how they are said and asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName
from ckpt.base.units import parse_age
from ckpt.format.messages.asking import Answer
from ckpt.format.messages.keeping import (
    ALL_STAYS,
    Best,
    Better,
    KeepSteps,
    Retention,
    StepsKept,
    check_retention,
)
from ckpt.protocol.coordinator.reading.answers import RetentionView
from ckpt_client.control import Control

TIMEOUT_S: Final = 30.0
Mode = Literal["min", "max"]
Age = int | str | timedelta
_decoder = msgspec.json.Decoder(RetentionView)


def rules_of(
    last: int | None,
    every: int | None,
    best: tuple[str, int] | None,
    mode: Mode | None,
    age: Age | None,
) -> Retention | None:
    """None without any. Raises Refused for what is no rule."""
    found = Retention(
        _whole("last", last), _whole("every", every), _best(best, mode),
        None if age is None else _seconds(age),
    )  # fmt: skip
    return None if found == ALL_STAYS else check_retention(found)


def parse_best(text: str) -> Best:
    """METRIC:min:COUNT or METRIC:max:COUNT. Raises Refused."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or parts[1] not in ("min", "max") or not parts[2].isdecimal():
        raise Refused(f"best {text!r} is not METRIC:min:COUNT", hint="such as loss:min:3")
    return Best(parts[0], Better(parts[1]), int(parts[2]))


def say(control: Control, run: RunName, rules: Retention | None) -> None:
    """Set a run's rules; None: the cluster's apply. Raises Refused, Unavailable."""
    control.call(KeepSteps(run, rules), StepsKept, timeout_s=TIMEOUT_S)


def would_stay(control: Control, run: RunName, rules: Retention | None) -> RetentionView:
    """What would stay and what would go under these rules. Changes nothing."""
    _, bulk = control.call(KeepSteps(run, rules, dry_run=True), Answer, timeout_s=TIMEOUT_S)
    return _decoder.decode(bulk)


def stays(control: Control, run: RunName) -> RetentionView:
    """What stays and what will go under the rules in force."""
    return _decoder.decode(control.ask("retention", run))


def _best(best: tuple[str, int] | None, mode: Mode | None) -> Best | None:
    if best is None:
        if mode is not None:
            raise Refused(f"mode={mode!r} without best", hint='best=("loss", 3), mode="min"')
        return None
    if mode not in ("min", "max"):
        hint = f'best={best!r}, mode="min" or mode="max"'
        raise Refused(f"best={best!r} does not say which values are good", hint=hint)
    if not (isinstance(best, tuple) and len(best) == 2 and isinstance(best[0], str)):
        raise Refused(f"best={best!r} is not (metric, count)", hint='such as ("loss", 3)')
    count = _whole("best", best[1])
    assert count is not None
    return Best(best[0], Better(mode), count)


def _whole(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Refused(f"{name}={value!r}: a whole number from 1")
    return value


def _seconds(age: Age) -> int:
    match age:
        case str():
            return parse_age(age)
        case timedelta():
            return int(age.total_seconds())
    seconds = _whole("age", age)
    assert seconds is not None
    return seconds
