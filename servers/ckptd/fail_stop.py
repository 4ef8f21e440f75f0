"""A defect ends the process: a machine that broke its own rules must not go on deciding.

asyncio only logs what a callback raises. A coordinator whose `handle` failed half-way would keep
its sessions and answer nobody; dead, it is started again from what is durable, which is what every
peer is made for. What the network does to a transport (OSError) is no defect.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

from ckpt.base.errors import CkptError
from ckptd.log import Reporter


class FailStop:
    """I watch a loop. After the daemon has stopped, `check` raises what made it stop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, report: Reporter, stop: Callable[[], None]
    ) -> None:
        self._report = report
        self._stop = stop
        self._defect: BaseException | None = None
        loop.set_exception_handler(self._handle)

    def check(self) -> None:
        """Raises CkptError (exit code 1) when a defect ended the daemon."""
        if self._defect is not None:
            raise CkptError(
                f"stopped by a defect: {type(self._defect).__name__}: {self._defect}",
                hint="nothing durable is harmed; start it again and report the logged traceback",
            )

    def _handle(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        text = str(context.get("message", "callback failed"))
        if not isinstance(error, BaseException) or isinstance(error, OSError):
            self._report("warning", text, {"error": str(error)})
            return
        lines = "".join(traceback.format_exception(error))
        self._report("error", f"defect: {text}", {"traceback": lines})
        self._defect = self._defect or error
        self._stop()
