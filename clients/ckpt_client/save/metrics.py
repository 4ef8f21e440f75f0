"""What `save(metrics=...)` takes: numbers of Python, numpy, torch or JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat

from ckpt.base.errors import Refused
from ckpt.format.messages.metrics import check_metrics


def given_metrics(metrics: Mapping[str, SupportsFloat] | None) -> dict[str, float]:
    """The metrics as they are saved; empty for none. Raises Refused, which names what is not a
    finite number.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise Refused(f"metrics={metrics!r}: a dict is needed", hint='such as {"loss": 0.3}')
    return check_metrics({name: _number(name, value) for name, value in metrics.items()})


def _number(name: object, value: SupportsFloat) -> float:
    if not isinstance(name, str):
        raise Refused(f"metric {name!r}: its name is no text")
    why = Refused(f"metric {name!r} is {value!r}: a number is needed")
    if isinstance(value, str | bytes):
        raise why
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise why from None
