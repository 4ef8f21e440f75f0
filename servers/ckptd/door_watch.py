"""What does a daemon say of those who come to its port and cannot stay? In its log.

Strangers that were sent away for others, and peers for which there was no descriptor, are counted
by the server. A flood of them must not become a flood of lines: there is one a period, with counts.
"""

from __future__ import annotations

from typing import Final

from ckpt.aio.net.serving.server import Server
from ckpt.aio.net.serving.server_limits import Pressure
from ckpt.base.limits import DESCRIPTORS_REMEDY
from ckpt.base.units import US_PER_S
from ckptd.log import Reporter

PERIOD_US: Final = 10 * US_PER_S


class DoorWatch:
    """I look at the state of one server's port now and then."""

    def __init__(self, server: Server, report: Reporter) -> None:
        self._server = server
        self._report = report
        self._logged = Pressure()
        self._logged_us: int | None = None

    def look(self, at_us: int) -> Pressure:
        """Look at the port, and log what is new, at most once a period."""
        now = self._server.pressure()
        if self._logged_us is not None and at_us - self._logged_us < PERIOD_US:
            return now
        before = self._logged
        evicted = now.evicted - before.evicted
        shortages, turned_away = (
            now.shortages - before.shortages,
            now.turned_away - before.turned_away,
        )
        if now.need or shortages or turned_away:
            counts = {"connections": shortages, "turned_away": turned_away}
            why = {"why": now.need, "hint": DESCRIPTORS_REMEDY}
            self._report("warning", "no room for peers", {**why, **counts})
        if evicted:
            self._report(
                "warning", "strangers took all seats, older ones were sent away", {"count": evicted}
            )
        if now != before:
            self._logged, self._logged_us = now, at_us
        return now
