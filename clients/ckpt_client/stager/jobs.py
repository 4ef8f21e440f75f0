"""Work that must not hold up the stager's loop: making memory, fingerprinting.

Results come back in the loop.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from ckpt.base.errors import CkptError
from ckpt.base.system_errors import system_error

Result = TypeVar("Result")
WORKER_COUNT: Final = 2


class Jobs:
    """I run functions on worker threads and hand each result to its `then` when
    `finish` is called.
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        """`before`: each worker calls it before each function."""
        self._before = before
        self._pool = ThreadPoolExecutor(WORKER_COUNT, thread_name_prefix="ckpt-stager")
        #: What ended jobs are followed by. Workers fill it, the loop empties it in `finish`.
        self._done: deque[Callable[[], None]] = deque()
        #: Workers ring it when they have put something into `_done`.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        #: A worker lives from the first work that found a thread.
        self._has_worker = False
        self.pending = 0
        """Jobs that were started and whose follow-up has not begun. Only the loop counts."""

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when a job has ended."""
        return self._bell

    def start(
        self,
        work: Callable[[], Result],
        then: Callable[[Result], None],
        failed: Callable[[CkptError], None],
    ) -> None:
        """Exactly one of `then` and `failed` runs, in `finish`: `failed` also where the system has
        no thread left, and then the work is never begun.
        """
        self.pending += 1
        future: Future[Result] = Future()
        try:
            self._pool.submit(self._do, work, future)
        except RuntimeError as error:  # As CPython says it, which keeps the work for a worker.
            if not self._has_worker:
                future.cancel()
                refused = OSError(errno.EAGAIN, str(error))
                scarce = system_error("no worker of the stager can run", refused)
                self._follow(lambda: failed(scarce))
                return
        self._has_worker = True
        future.add_done_callback(lambda done: self._ended(done, then, failed))

    def finish(self) -> None:
        """Run what follows jobs that have ended."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._done:
            self.pending -= 1
            self._done.popleft()()

    def close(self) -> None:
        self._pool.shutdown()
        os.close(self._bell)

    def _ended(
        self,
        done: Future[Result],
        then: Callable[[Result], None],
        failed: Callable[[CkptError], None],
    ) -> None:
        error = done.exception()
        if error is None:
            result = done.result()
            self._follow(lambda: then(result))
        elif isinstance(error, CkptError):
            self._follow(lambda: failed(error))
        else:
            broken = CkptError(f"the stager broke: {type(error).__name__}: {error}")
            self._follow(lambda: failed(broken))

    def _follow(self, what: Callable[[], None]) -> None:
        self._done.append(what)
        os.eventfd_write(self._bell, 1)

    def _do(self, work: Callable[[], Result], future: Future[Result]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                self._before()
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
