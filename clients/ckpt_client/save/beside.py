"""Staging beside the training: one thread, one save after the other, never two at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress


def _nothing() -> None:
    """Comes after all that was given before."""


def _run_once(work: list[Callable[[], None]]) -> None:
    while work:
        work.pop()()


class Beside:
    """I run what I am given in order, on a thread that starts with the first job. Jobs that were
    given still run at the interpreter's end.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` after all that was given before. `work` raises nothing."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ckpt-staging")
        once = [work]
        try:
            self._last = self._thread.submit(_run_once, once)
        except RuntimeError:
            # Once the main thread has ended Python lets no pool begin anything: it is done here.
            # Where no thread could be started, the pool keeps it for the next one.
            self.drain()
            _run_once(once)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to run; False when the time is over first."""
        if self._thread is None:
            return True
        # A Ctrl-C in `run` may have taken the job from us, not from the thread.
        with suppress(RuntimeError):
            self._last = self._thread.submit(_nothing)
        return self._last is None or not wait_for([self._last], timeout_s).not_done

    def close(self) -> None:
        """`drain`, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()
