"""Who keeps the children running? Start, watch, restart with backoff, stop without remains.

A child's first line on stdout is its ready line (one JSON object); stderr goes to its log file.

    WAITING --start--> STARTING --ready line--> READY --exit--> WAITING (backoff) | DOWN (policy)
                           \\--exit--> WAITING | DOWN

Invariants
- Nothing outlives the supervisor: the kernel kills each child when the supervisor dies
  (`ckptd.local.forked`: with SIGKILL, so that a stopped child goes as well).
- A child that is stopped (SIGSTOP) has not exited and is left alone.
- A held child is not started; when its hold goes, it is.
- One that the system does not let start is tried again, as one that has exited; the first of all
  must start.

Warning: forking is safe because this process has one thread, and the death signal follows that
thread. Do not start threads here.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from ckpt.aio.clock import draw
from ckpt.aio.private import make_private_directory
from ckpt.base.rests import Rests
from ckptd.local.forked import Process, Program, fork
from ckptd.local.logs import Logs
from ckptd.log import Reporter

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 10.0
STEADY_S: Final = 30.0
"""A child that ran for so long starts again with the first backoff."""
HOLD_POLL_S: Final = 0.2
STOP_GRACE_S: Final = 10.0
READY_BYTES_MAX: Final = 64 << 10

JsonObject = dict[str, object]


class RestartPolicy(Enum):
    """Whether a child that has exited is started again."""

    ALWAYS = "always"
    NEVER = "never"


class ChildState(Enum):
    """Where a child stands in the automaton above."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child, as it is to be run."""

    name: str
    argv: Callable[[], Sequence[str]]
    """Asked at each start, so that a restart may insist on the port that the first start got."""
    log: Path
    restart: RestartPolicy = RestartPolicy.ALWAYS
    holds: tuple[Path, ...] = ()
    """While one of these files exists the child is not started."""
    place: Path | None = None
    """Nor while there is no such directory."""

    @property
    def is_held(self) -> bool:
        """Whether it must not be started now."""
        # A device that fails says so of each path: that is no place either.
        is_gone = self.place is not None and not os.path.isdir(self.place)
        return is_gone or any(map(os.path.lexists, self.holds))


class Child:
    """One plan and the process that runs it now, if any."""

    def __init__(self, plan: ChildPlan) -> None:
        self.plan = plan
        self.state = ChildState.WAITING
        self.ready: JsonObject = {}
        """The latest ready line; kept while the child is down, so that its address stays known."""
        self.exit_status: int | None = None
        self.start_count = 0
        self.start_at_s = 0.0
        self.rests = Rests(BACKOFF_FIRST_S, BACKOFF_LAST_S, draw)
        self.started_s = 0.0
        self.process: Process | None = None
        self.line = bytearray()

    @property
    def pid(self) -> int | None:
        """None when no process runs."""
        return None if self.process is None else self.process.pid


class Supervisor:
    """I own child processes. My owner calls `run_once` in a loop and `stop` at the end.

    Each child is `program` with the arguments of its plan. `on_change` is called after one became
    ready or exited; `report(level, text, fields)` takes log lines.
    """

    def __init__(
        self,
        program: Program,
        on_change: Callable[[Child], None],
        report: Reporter,
        *,
        inherited: Sequence[int] = (),
    ) -> None:
        self.children: dict[str, Child] = {}
        self._program = program
        self._on_change = on_change
        self._report = report
        self._inherited = tuple(inherited)
        self._selector = selectors.DefaultSelector()
        self._logs = Logs(report)

    def add(self, plan: ChildPlan) -> Child:
        """Take a child over; it is started by the next `run_once`."""
        assert plan.name not in self.children
        child = self.children[plan.name] = Child(plan)
        return child

    def forget(self, name: str) -> None:
        """Forget a child that does not run."""
        assert self.children[name].process is None
        del self.children[name]

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Wake `run_once` for a descriptor of the owner's, such as a signal wakeup pipe."""
        self._selector.register(descriptor, selectors.EVENT_READ, on_readable)

    def run_once(self, timeout_s: float) -> None:
        """Start what is due, then wait at most `timeout_s` for something to happen."""
        self._logs.look(child.plan.log.parent for child in self.children.values())
        now_s = time.monotonic()
        for child in self.children.values():
            if child.state is ChildState.WAITING and now_s >= child.start_at_s:
                self._start(child)
        for key, _ in self._selector.select(min([timeout_s, *self._due(now_s)])):
            key.data()

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM to all, last added first; SIGKILL after the grace; all are gone on return."""
        for child in reversed(self.children.values()):
            if child.process is not None:
                child.process.signal(signal.SIGTERM)
                # A stopped child takes its SIGTERM only when it goes on.
                child.process.signal(signal.SIGCONT)
        deadline_s = time.monotonic() + grace_s
        for child in reversed(self.children.values()):
            if child.process is not None:
                if not child.process.ends_within(max(0.0, deadline_s - time.monotonic())):
                    self._report("warning", "killed after its grace", {"child": child.plan.name})
                    child.process.signal(signal.SIGKILL)
                self._reap(child)
            child.state = ChildState.DOWN
        self._selector.close()

    def _due(self, now_s: float) -> list[float]:
        return [
            max(0.0, child.start_at_s - now_s)
            for child in self.children.values()
            if child.state is ChildState.WAITING
        ]

    def _start(self, child: Child) -> None:
        plan = child.plan
        if plan.is_held:
            child.start_at_s = time.monotonic() + HOLD_POLL_S
            return
        try:
            child.process = process = self._forked(plan)
        except OSError as error:
            # Of memory, processes, descriptors or room there may be some later: who runs goes on.
            if not any(each.start_count for each in self.children.values()):
                raise
            child.start_at_s = time.monotonic() + child.rests.next_s()
            fields = {"child": plan.name, "error": str(error)}
            self._report("warning", "cannot be started now", fields)
            return
        child.state = ChildState.STARTING
        child.started_s = time.monotonic()
        child.start_count += 1
        child.line.clear()
        self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._exited(child))
        self._selector.register(process.stdout, selectors.EVENT_READ, lambda: self._printed(child))
        self._report("info", "started", {"child": plan.name, "pid": process.pid})

    def _forked(self, plan: ChildPlan) -> Process:
        """Raises OSError."""
        make_private_directory(plan.log.parent)
        return fork(self._program, plan.argv(), plan.log, self._inherited)

    def _printed(self, child: Child) -> None:
        if child.process is None:
            return
        try:
            part = os.read(child.process.stdout, READY_BYTES_MAX)
        except BlockingIOError:
            return
        if not part:
            self._unwatch(child.process.stdout)
            return
        if child.state is not ChildState.STARTING:
            return
        child.line += part
        line, newline, _ = child.line.partition(b"\n")
        if not newline:
            if len(child.line) > READY_BYTES_MAX:
                child.process.signal(signal.SIGKILL)
            return
        try:
            ready = json.loads(line)
        except ValueError:
            ready = None
        if not isinstance(ready, dict):
            self._report("error", "its first line is no ready line", {"child": child.plan.name})
            child.process.signal(signal.SIGKILL)
            return
        child.ready = ready
        child.state = ChildState.READY
        self._on_change(child)

    def _exited(self, child: Child) -> None:
        assert child.process is not None
        pid, ran_s = child.process.pid, time.monotonic() - child.started_s
        if child.state is ChildState.STARTING:
            self._printed(child)  # A ready line may still lie in the pipe.
        status = self._reap(child)
        if ran_s >= STEADY_S:
            child.rests.begin_again()
        if child.plan.restart is RestartPolicy.NEVER:
            child.state = ChildState.DOWN
        else:
            child.state = ChildState.WAITING
            child.start_at_s = time.monotonic() + child.rests.next_s()
        self._report("warning", "exited", {"child": child.plan.name, "pid": pid, "status": status})
        self._on_change(child)

    def _reap(self, child: Child) -> int:
        assert child.process is not None
        self._unwatch(child.process.pidfd)
        self._unwatch(child.process.stdout)
        child.exit_status = status = child.process.reap()
        child.process = None
        return status

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
