"""Wait until `ckptd repair` has done what is due, and say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import asdict

from ckpt.base.units import counted, format_seconds
from ckpt.protocol.coordinator.reading.checks import WORKER_HEARD_S
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt_client.cli.cluster import Conversation
from ckpt_client.cli.output import Output

LOOK_S: Final = 1.0
RECORD_S: Final = 5.0
"""Between two lines of progress in JSON."""


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Ctrl-C ends the waiting inside, not what is waited for: the command ends with that word."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what) from None


def wait_for_repair(
    talk: Conversation, output: Output, what: str, left: Callable[[RepairView], str]
) -> RepairView:
    """Wait until `left(view)` is empty, and return that view.

    Until then the text of `left` is shown as progress. Ctrl-C ends the waiting, not the repair.
    """
    view, said_s = talk.repair(), time.monotonic()
    said = f"{what} goes on; ckpt repair shows how far it is"
    with going_on(said), output.waiting(what, lambda: f"{left(view)}{held_up(view)}"):
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
    if view.worker_heard_s >= WORKER_HEARD_S:
        return f"; no worker was heard for {format_seconds(view.worker_heard_s)}: run ckptd repair"
    return ""


def copies_held(count: int) -> str:
    """Why a target still has columns that are all elsewhere."""
    return (
        f"{counted(count, 'column')} left there, elsewhere as well: they go once no load is left"
        " that may read them"
    )
