"""What a trainer says of a step when it saves it, such as its loss: names and finite numbers.

They travel with OpenPayload and lie in the commit record, which has one page: so they are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import check_text

METRICS_MAX: Final = 64
"""Most metrics of one step."""
METRIC_NAME_BYTES_MAX: Final = 128
METRIC_NAMES_BYTES_MAX: Final = 1792
"""Most bytes of all names of one step together."""


def check_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """By name, ascending; or Refused with the rule that one breaks."""
    if len(metrics) > METRICS_MAX:
        raise Refused(f"{len(metrics)} metrics: {METRICS_MAX} are allowed for one step")
    for name, value in metrics.items():
        check_metric_name(name)
        if not isfinite(value):
            raise Refused(f"metric {name!r} is {value}: a finite number is needed")
    size = sum(len(name.encode()) for name in metrics)
    if size > METRIC_NAMES_BYTES_MAX:
        text = f"names of metrics of {size} bytes: {METRIC_NAMES_BYTES_MAX} are allowed for a step"
        raise Refused(text, hint="shorten them, or give fewer")
    return dict(sorted(metrics.items()))


def check_metric_name(name: str) -> str:
    """The name, or Refused with the rule that it breaks: 1 to 128 bytes, no control characters."""
    check_text("metric name", name, METRIC_NAME_BYTES_MAX)
    return name
