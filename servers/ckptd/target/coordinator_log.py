"""What a target logs of its way to the coordinator.

    no session --opened--> a session --taken in--> its target
        ^                      |                       |
        +------- refused ------+-------- lost ---------+

A target dials again twice a second for as long as it runs, once a minute when it was removed. So
each reason for which it is out is logged once, until the coordinator takes it in or the reason is
another one: else a target that is refused for days would fill its disk with one line.
"""

from __future__ import annotations

from ckpt.base.errors import CkptError
from ckptd.log import Reporter


class CoordinatorLog:
    """I log how the sessions with the coordinator begin and end."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        #: Why no session could be had, as it was logged last.
        self._unreached = ""
        #: Why a session ended before this target was taken in, as it was logged last.
        self._refused = ""
        #: The cluster of the session that stands, whose beginning is not logged yet.
        self._unsaid = ""

    def opened(self, cluster: str) -> None:
        """The session stands."""
        self._unsaid = cluster
        if not self._refused:
            self._say_reached()

    def taken_in(self) -> None:
        """The coordinator has this target among its own."""
        self._unreached = self._refused = ""
        self._say_reached()

    def closed(self, reason: str, *, was_in: bool) -> None:
        """The session ended; `was_in`: the target had been taken in."""
        self._unsaid = ""
        if was_in:
            self._unreached = self._refused = ""
        elif reason == self._refused:
            return
        else:
            self._refused = reason
        self._report("warning", "coordinator lost", {"why": reason})

    def failed(self, error: CkptError) -> None:
        """An attempt or a session ended so."""
        if str(error) != self._unreached:
            self._unreached = str(error)
            level = "warning" if error.retryable else "error"
            self._report(level, "coordinator out of reach", {"why": self._unreached})

    def _say_reached(self) -> None:
        if self._unsaid:
            self._report("info", "coordinator reached", {"cluster": self._unsaid})
            self._unsaid = ""
