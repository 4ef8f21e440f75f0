"""Is the device well? What it refused, by kind, and when it is tried again.

    WELL --DEVICE_FAILURES_MAX refusals--> FAILING --probe succeeded--> WELL
      ^ `--- DEVICE_CALM_US without one: forgotten    `-- probe failed: the next one twice as late

I count and say when a probe is due; that a failing device gets no new columns is the coordinator's
decision, by the same limit. A relapse goes on with the pause that the last spell ended with, so
that a device that takes a small file and no column is tried ever more rarely. A device that is full
has not failed; nor has one on which a single file is gone, or may not be read or removed.
"""

from __future__ import annotations

from ckpt.base.limits import (
    DEVICE_CALM_US,
    DEVICE_FAILURES_MAX,
    DEVICE_PROBE_LAST_US,
    DEVICE_PROBE_US,
)
from ckpt.format.messages.targets import DEVICE_ERROR_KINDS, DeviceReport
from ckpt.protocol.target.disk_events import FULL_ERRNOS, DiskFailed

PROBE = "probe"
"""The kind of a failed probe, which counts as no failure of its own."""


class DeviceHealth:
    """I hear of every operation that failed, and of every probe's end."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        """Since boot, by kind."""
        self.failures = 0
        """Since the device was last proved well."""
        self.latest = ""
        """What the latest failure was."""
        self.failing_since_us: int | None = None
        """None while it is well."""

        #: When the latest failure was; a probe's does not count.
        self._failed_us = 0
        #: When a probe succeeded last.
        self._well_us = -DEVICE_CALM_US
        #: How long the next probe waits; doubles with each, up to DEVICE_PROBE_LAST_US.
        self._pause_us = DEVICE_PROBE_US
        #: When a probe is due; None while none is, or while one is under way.
        self._next_us: int | None = None

    @property
    def is_failing(self) -> bool:
        return self.failures >= DEVICE_FAILURES_MAX

    @property
    def report(self) -> DeviceReport | None:
        """As a renewal tells it; None while nothing was refused."""
        if not self.errors:
            return None
        return DeviceReport(dict(self.errors), self.failures, self.latest)

    def failed(self, event: DiskFailed) -> None:
        """Note that an operation failed, a probe's included."""
        full = event.errno_name in FULL_ERRNOS
        if event.kind != PROBE:
            kind = "space" if full else "create" if event.kind == "remove" else event.kind
            assert kind in DEVICE_ERROR_KINDS
            self.errors[kind] = self.errors.get(kind, 0) + 1
        if full or event.is_of_one_file:
            return
        self.latest = f"{event.kind}: {event.errno_name}: {event.message}".rstrip(": ")
        if event.kind == PROBE:
            return
        if not self.is_failing and event.now_us - self._failed_us >= DEVICE_CALM_US:
            self.failures = 0
        self._failed_us = event.now_us
        self.failures += 1
        if self.failures == DEVICE_FAILURES_MAX:
            self.failing_since_us = event.now_us
            if event.now_us - self._well_us >= DEVICE_CALM_US:
                self._pause_us = DEVICE_PROBE_US
            self._next_us = event.now_us + self._pause_us

    def begin_probe(self, now_us: int) -> bool:
        """Whether to probe now; then `probed` is to follow."""
        if self._next_us is None or now_us < self._next_us:
            return False
        self._next_us = None
        return True

    def probed(self, now_us: int, failure: DiskFailed | None) -> None:
        """Note the end of a probe. One for which there was no room proves no failure."""
        self._pause_us = min(2 * self._pause_us, DEVICE_PROBE_LAST_US)
        if failure is None or failure.errno_name in FULL_ERRNOS:
            self.failures, self._well_us, self.failing_since_us = 0, now_us, None
        else:
            self._next_us = now_us + self._pause_us
