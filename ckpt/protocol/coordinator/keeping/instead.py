"""Which checkpoint may have been meant by who names one that is not there? Pure."""

from __future__ import annotations

from typing import Final

from ckpt.base.ids import RunName
from ckpt.base.near import did_you_mean
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints

STEPS_NAMED_MAX: Final = 8


def instead(checkpoints: Checkpoints, run: RunName) -> str:
    """The next step, as a hint: which steps the run has, or which run has nearly that name."""
    held = checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
    steps = sorted({one.id.step for one in held})
    if not steps:
        return did_you_mean(run, checkpoints.runs(), "see ckpt ls")
    which = "its steps" if len(steps) <= STEPS_NAMED_MAX else "its newest steps"
    return f"{which}: {', '.join(map(str, steps[-STEPS_NAMED_MAX:]))}"
