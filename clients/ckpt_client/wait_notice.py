"""Who waits for a coordinator or a cluster for more than two seconds reads why in the log, once."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

from ckpt.base.printable import printable

QUIET_S: Final = 2.0
"""Who waits longer hears why."""
_log = logging.getLogger("ckpt.store")


class WaitNotice:
    """I say once, as a warning in the log, what is waited for, and why. One for each wait."""

    def __init__(self, what: str) -> None:
        """what: a sentence that goes on with a colon and the reason, if there is one."""
        self._what = what
        self._speaks_at_s = time.monotonic() + QUIET_S

    def say(self, why: str = "") -> None:
        """It goes on. Nothing happens within the first two seconds, or once it is said."""
        if time.monotonic() >= self._speaks_at_s:
            self._speaks_at_s = math.inf
            _log.warning("%s", printable(f"{self._what}{why and ': '}{why}"))
