"""What a trainer has measured by itself, as much of it as a save takes as `metrics`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import SupportsFloat, cast

from ckpt.base.errors import Refused
from ckpt_client.save.metrics import given_metrics


def collected(measured: Mapping[str, object], first: Collection[str] = ()) -> dict[str, float]:
    """The finite numbers in it, by name. The names in `first` take precedence if there are more
    than a step has room for.

    The rest is left out: nobody gave it for this, so it is no reason to refuse a save.
    """
    found: dict[str, float] = {}
    for name in sorted(measured, key=lambda name: (name not in first, name)):
        try:
            found = given_metrics({**found, name: cast(SupportsFloat, measured[name])})
        except Refused:
            continue
    return found
