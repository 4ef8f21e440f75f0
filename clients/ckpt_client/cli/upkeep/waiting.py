"""Wait until `ckptd repair` has done what is due, and say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt_client.cli.cluster import Conversation
from ckpt_client.cli.output import Output, counted

LOOK_S: Final = 1.0
RECORD_S: Final = 5.0
"""Between two lines of progress in JSON."""


def wait_for_repair(
    talk: Conversation, output: Output, what: str, left: Callable[[RepairView], str]
) -> RepairView:
    """Wait until `left(view)` is empty, and return that view.

    Until then the text of `left` is shown as progress. Ctrl-C ends the waiting, not the repair.
    """
    view, said_s = talk.repair(), time.monotonic()
    with output.waiting(what, lambda: f"{left(view)}{held_up(view)}"):
        while left(view):
            if time.monotonic() - said_s >= RECORD_S:
                said_s = time.monotonic()
                output.record("progress", asdict(view))
            time.sleep(LOOK_S)
            view = talk.repair()
    output.record("summary", asdict(view))
    return view


def held_up(view: RepairView) -> str:
    """What holds repair up, to stand after the progress: a pause, or no worker; else empty."""
    if view.paused_at_s is not None:
        return "; paused: ckpt repair resume"
    if view.worker_heard_s is None:
        return "; no worker was heard: run ckptd repair"
    return ""


def copies_held(count: int) -> str:
    """Why a target still has columns that are all elsewhere."""
    return (
        f"{counted(count, 'column')} left there, elsewhere as well: they go once no load is left"
        " that may read them"
    )
