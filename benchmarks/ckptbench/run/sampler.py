"""How far is each writer or reader, over time? For plots and for faults that wait for a share.

One thread reads /proc/PID/io of named processes: bytes that went through their write or read
calls, O_DIRECT too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from ckptbench import proc
from ckptbench.results import Sample

INTERVAL_S: Final = 0.02
SAMPLES_MAX: Final = 20_000
"""Of one checkpoint; the rest is not sampled."""


class Sampler:
    """I sample until `stop`; `moved` is what all together have moved since I began."""

    def __init__(
        self,
        processes: Mapping[str, int],
        direction: str,
        begun_ns: int,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._processes = dict(processes)
        self._reads = direction == "read"
        self._begun_ns = begun_ns
        self._interval_s = interval_s
        self._first = {name: self._bytes(pid) for name, pid in self._processes.items()}
        #: By name: bytes that the process has moved since I began; one that ended keeps its last.
        self._last = dict.fromkeys(self._processes, 0)
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._on_sample: list[Callable[[int], None]] = []
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def moved(self) -> int:
        return sum(self._last.values())

    def start(self, on_sample: Callable[[int], None] | None = None) -> None:
        """`on_sample` is called on my thread with what was moved so far."""
        if on_sample is not None:
            self._on_sample.append(on_sample)
        self._thread.start()

    def stop(self) -> tuple[Sample, ...]:
        """All samples, in order."""
        self._ended.set()
        self._thread.join()
        self._take()
        return tuple(self._samples)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._take()
            for call in self._on_sample:
                call(self.moved)

    def _take(self) -> None:
        now = time.monotonic_ns() - self._begun_ns
        if now < 0:
            return
        for name, pid in self._processes.items():
            moved = self._bytes(pid) - self._first[name]
            if moved > self._last[name]:
                self._last[name] = moved
            if len(self._samples) < SAMPLES_MAX:
                self._samples.append(Sample(name, now, self._last[name]))

    def _bytes(self, pid: int) -> int:
        moved = proc.call_bytes(pid)
        return moved.read if self._reads else moved.written
