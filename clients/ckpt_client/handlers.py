"""A signal's handler runs between any two steps of the main thread, also inside a call of ours.

That call stands still until the handler returns. It may hold what another call would wait for, for
ever, and may have changed half of what that would read. So what a handler asks for there is
refused. Outside of our calls a handler may do what any code may.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType
from typing import Final

from ckpt.base.errors import Refused

_log = logging.getLogger("ckpt.preemption")
_OURS: Final = frozenset({"ckpt", "ckpt_client", "ckpt_torch", "ckpt_jax", "contextlib"})
_AT_WORK: Final = (
    "ckpt.", "ckpt_client.connection", "ckpt_client.control", "ckpt_client.default",
    "ckpt_client.load.", "ckpt_client.local.", "ckpt_client.save.", "ckpt_client.stager.",
    "ckpt_client.store", "ckpt_jax.state", "ckpt_torch.reading.", "ckpt_torch.saving",
    "ckpt_torch.staging.",
)  # fmt: skip
"""Modules that never call other people's code which calls us. Adapters do: a framework's callback
of ours saves through the framework.
"""


def refuse_inside() -> None:
    """Raise Refused where a signal's handler calls us from inside a call of ours."""
    if threading.get_ident() != threading.main_thread().ident:
        return  # No signal's handler runs there.
    frame: FrameType | None = sys._getframe(1)
    theirs: list[FrameType] = []
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _OURS:
            theirs.append(frame)
        elif theirs and name.startswith(_AT_WORK) and any(map(_is_handler, theirs)):
            refusal = Refused(
                "this signal handler has interrupted a call of ckpt, which cannot go on meanwhile",
                hint="set a flag in the handler and save in the loop, as store.preemption does",
            )
            # It rises through the call that was interrupted, which may take it for its own.
            _log.error("refused: %s", refusal)
            raise refusal
        frame = frame.f_back


def _is_handler(frame: FrameType) -> bool:
    """Whether a signal has called it: then Python has given it the frame that it interrupted, and
    nobody else gives a function its caller's. A method of ours that somebody has wrapped is none.
    """
    below = frame.f_back
    for value in frame.f_locals.values():
        if value is below or (isinstance(value, tuple) and any(one is below for one in value)):
            return below is not None
    return False
