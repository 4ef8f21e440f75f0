"""A local cluster that was killed is started again while a save waits for it.

Its supervisor is nobody's child, so nobody sees that the kernel's out-of-memory killer took it. A
trainer looks at each call, but one that only waits for its save makes none.
"""

from __future__ import annotations

from pathlib import Path

from ckpt.base.errors import CkptError
from ckpt_client.local.cluster import has_fallen, revive
from ckpt_client.stager.jobs import Jobs
from ckpt_client.stager.log import log


class Reviving:
    """I start the cluster of one directory, on a worker, one try at a time."""

    def __init__(self, directory: str, jobs: Jobs) -> None:
        """`directory`: empty for a cluster that is not local; then I do nothing."""
        self._directory = directory
        self._jobs = jobs
        self._trying = False

    def look(self) -> None:
        """Start the cluster if it was killed. One that somebody has stopped stays stopped."""
        if self._directory and not self._trying and has_fallen(Path(self._directory)):
            self._trying = True
            log("warning", "the cluster was killed, it is started again", cluster=self._directory)
            self._jobs.start(self._start, self._started, self._failed)

    def _start(self) -> None:
        revive(Path(self._directory))

    def _started(self, _: None) -> None:
        self._trying = False
        log("info", "the cluster serves again", cluster=self._directory)

    def _failed(self, error: CkptError) -> None:
        self._trying = False
        log("warning", "the cluster was not started", why=str(error))
