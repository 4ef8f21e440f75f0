"""The event loop of one simulated process: asyncio's own tasks and futures, in virtual time.

    what is due at once --> one turn --> what is due then --> ...      later, by the world's clock

A process has a clock that runs at its own rate. One that is stopped does nothing until it goes on,
and finds then that it is late; one that is killed never does anything again.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from tests.sim.clockwork import Clockwork

UNWINDINGS_MAX = 50
"""A task that was cancelled so often waits for nothing that it could be told."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """I am one incarnation's."""

    def __init__(self, clock: Clockwork, owner: object, rate: float) -> None:
        self.owner = owner
        """The process that runs here."""
        self.wall_jump_s = 0.0
        """By so much its wall clock is wrong."""
        self.ended = False
        self.is_unwinding = False
        self.stopped = False
        self._clock, self._rate, self._born_us = clock, rate, clock.now_us
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        #: Raised by what ran, with nobody to take it.
        self._failure: BaseException | None = None
        #: In their order, so that what is left is ended in one order.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.signals: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        elapsed_us = self._clock.now_us - self._born_us
        return (self._born_us + elapsed_us * self._rate) / 1e6

    @property
    def now_us(self) -> int:
        """As the process reads its monotonic clock."""
        return int(self.time() * 1e6)

    def wall_s(self) -> float:
        """As it reads the other one."""
        return self._clock.now_us / 1e6 + self.wall_jump_s

    # ----------------------------------------------------------------------- running

    def within(self, action: Callable[..., Any], *arguments: object) -> Any:
        """Call it as something that runs here."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return action(*arguments)
        finally:
            events._set_running_loop(before)
            self._raise()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None and not self.is_unwinding:
            raise failure

    def _turn(self) -> None:
        self._is_due = False
        if self.ended or self.stopped:
            return
        self.within(self._run_ready)
        self._wake()

    def _run_ready(self) -> None:
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _wake(self) -> None:
        if self._ready and not (self._is_due or self.stopped or self.ended):
            self._is_due = True
            self._clock.after(0, self._turn)

    def stop_for_now(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self._wake()

    def kill(self) -> None:
        """Nothing that was begun here has an effect from now on; what is left of it is unwound, so
        that no coroutine stays behind.
        """
        self.ended, self.is_unwinding = True, True
        for _ in range(UNWINDINGS_MAX):
            left = [task for task in self._tasks if not task.done()]
            if not (left or self._ready):
                break
            for task in left:
                task.cancel()
            while self._ready:
                self.within(self._run_ready)
        self._tasks.clear()

    # ----------------------------------------------------------------------- asyncio's side

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.ended:
            rest_us = max(0.0, (when - self.time()) * 1e6 / self._rate)
            self._clock.after(int(rest_us) + 1, self._fire, timer)
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if not (self.ended or timer.cancelled()):
            self._ready.append(timer)
            self._wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It finds out when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:  # fmt: skip
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """On no thread: the order of things follows from the seed."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.signals[sig] = callback

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failure = self._failure or context.get("exception")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


def running() -> Any:
    """The process whose code runs now."""
    return cast(ProcessLoop, asyncio.get_running_loop()).owner
