"""`--status-interval`: what is done so far, cumulative, every so often, of each job that has begun.

One JSON object in a line when the report is JSON, else one line for people, on stderr.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

from ckpt.base.printable import printable
from ckptbench.report.numbers import both_rates, size
from ckptbench.results import CheckpointFigures


class Progress:
    """The jobs' threads report each checkpoint to me, and I print from a thread of my own."""

    def __init__(self, interval_s: float, *, as_json: bool) -> None:
        self._interval_s = interval_s
        self._as_json = as_json
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        #: By job that has begun, in that order: the checkpoints it has done. Its thread adds to
        #: them and mine reads them, under the lock.
        self._done: dict[str, list[CheckpointFigures]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        if self._interval_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._interval_s:
            self._thread.join()

    def begin(self, jobs: Sequence[str]) -> None:
        """These begin now; the others of the run have no line yet."""
        with self._lock:
            for name in jobs:
                self._done.setdefault(name, [])

    def note(self, job: str, checkpoint: CheckpointFigures) -> None:
        """One more."""
        with self._lock:
            self._done[job].append(checkpoint)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            for line in self._lines():
                print(printable(line), file=sys.stdout if self._as_json else sys.stderr, flush=True)

    def _lines(self) -> list[str]:
        with self._lock:
            done = {name: list(found) for name, found in self._done.items()}
        return [self._line(name, found) for name, found in done.items()]

    def _line(self, name: str, found: list[CheckpointFigures]) -> str:
        moved = sum(one.bytes for one in found)
        seconds = sum(one.seconds for one in found if not one.error)
        failed = sum(bool(one.error) for one in found)
        elapsed_s = time.monotonic() - self._began_s
        if self._as_json:
            return json.dumps(
                {
                    "message_type": "status",
                    "jobname": name,
                    "elapsed": round(elapsed_s, 1),
                    "checkpoints": len(found),
                    "failed": failed,
                    "io_bytes": moved,
                    "bw_bytes": round(moved / seconds) if seconds else 0,
                }
            )
        rate = both_rates(moved / seconds) if seconds else "0"
        return (
            f"{name}: {elapsed_s:.0f}s, {len(found)} checkpoints ({failed} failed), "
            f"{size(moved)}, {rate}"
        )
