"""Losing what targets hold, and watching it come back: one loss after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.base.errors import CkptError, Unavailable
from ckpt.format.column import HEADER_BYTES, ColumnHeader, decode_header
from ckptbench import proc
from ckptbench.cluster import BenchCluster
from ckptbench.repair.plan import Kill, RepairPlan, TargetMade

PATIENCE_S: Final = 300.0
POLL_S: Final = 0.02
LOOK_S: Final = 0.5
"""Between two questions while files tell as much: each costs the coordinator time and all targets a
turn, since it asks them whether it is still the one.
"""
REST_S: Final = 1.3
"""Targets say once a second what they read and wrote."""
LOW: Final = "REDUNDANCY_LOW"
MOVING: Final = ("bytes_read", "bytes_given", "bytes_written")

Counters = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Loss:
    """What was there."""

    payloads: int
    columns: int
    bytes: int
    needed_bytes: int
    """As in TargetMade."""

    def without(self, column_bytes: int, k: int) -> Loss:
        """The same, when one payload of this size is made."""
        return Loss(
            self.payloads - 1, self.columns - 1, self.bytes - column_bytes,
            self.needed_bytes - k * column_bytes,
        )  # fmt: skip


class Losses:
    """I take columns away from a cluster, and wait until they are there again."""

    def __init__(self, cluster: BenchCluster, plan: RepairPlan) -> None:
        self._cluster = cluster
        self._plan = plan
        #: Column files of what is lost again and again.
        self._held = 0

    def note_held(self) -> None:
        """All that is here now stays."""
        self._held = len(self._cluster.column_files())

    def wait_deleted(self) -> None:
        """Until nothing else is here."""
        self._until(
            lambda: len(self._cluster.column_files()) <= self._held, "what is deleted is here"
        )

    def empty(self, names: Sequence[str]) -> Loss:
        """The targets lose all columns, and are here again; all that is due then, is."""
        for name in names:
            self._cluster.kill_target(name)
        lost = self._take(names)
        self._start(names)
        self._until(
            lambda: self._cluster.repair().columns_due >= lost.columns, "what is lost is not due"
        )
        return lost

    def drain(self, name: str) -> Loss:
        """All that the target has is to move to others, and is due."""
        found = [_header_of(file) for file in self._cluster.columns_of(name)]
        k = self._plan.code.k
        self._cluster.change_target(name, "draining")
        self._until(
            lambda: self._cluster.repair().columns_due >= len(found), "what is to move is not due"
        )
        return Loss(
            len(found), len(found), sum(one.column_bytes for one in found),
            sum(one.column_bytes * (1 if one.column.column < k else k) for one in found),
        )  # fmt: skip

    def take_back(self, name: str) -> None:
        """The target, which has nothing now, takes its share again."""
        self._until(lambda: not self._cluster.columns_of(name), "what has moved is here still")
        self._cluster.change_target(name, "in")

    def make(self, lost: Loss) -> TargetMade:
        """By one worker, without anything beside it."""
        cluster = self._cluster
        sources = [name for name in cluster.target_names if cluster.columns_of(name)]
        before = self._counters()
        worker = cluster.start_repair()
        # What a process costs to start is no part: one serves for years.
        begun, begun_cpu = time.monotonic(), self._cpu_s() + proc.cpu_s(cluster.pid(worker))
        self._wait_files()
        self.wait_made()
        seconds = time.monotonic() - begun
        spent = self._cpu_s() + proc.cpu_s(cluster.pid(worker)) - begun_cpu
        peak = proc.resident_bytes(cluster.pid(worker))
        cluster.end(worker)
        added = _added(before, self._counters())
        return TargetMade(
            seconds, lost.payloads, lost.columns, lost.bytes, lost.needed_bytes,
            read_bytes=sum(each["bytes_read"] for each in added.values()),
            written_bytes=sum(each["bytes_written"] for each in added.values()),
            cpu_s=spent,
            worker_bytes=peak,
            given_bytes={name: added[name]["bytes_given"] for name in sources},
        )  # fmt: skip

    def kill(self, name: str) -> Kill:
        """The target stays away until all is there without it; afterwards it comes back empty."""
        cluster = self._cluster
        worker = cluster.start_repair()
        lost = self._lost([name])
        begun = time.monotonic()
        cluster.kill_target(name)
        self._until(self._is_low, "the loss is not noticed")
        self._until(lambda: not self._is_low(), "not all redundancy is back")
        seconds = time.monotonic() - begun
        cluster.end(worker)
        self._take([name])
        self._start([name])
        return Kill(seconds, lost.bytes)

    def holds_large(self, name: str) -> bool:
        """Whether the target has a column of the large payload."""
        headers = map(_header_of, self._cluster.columns_of(name))
        return any(one.payload_bytes >= self._plan.large for one in headers)

    def wait_made(self) -> None:
        """Until nothing lacks. Raises CkptError when something fails."""
        self._until(lambda: not self.is_under_way(), "not all columns are made again")

    def wait_reading(self) -> bool:
        """Until a worker reads; False when nothing lacks any more."""

        def reads() -> bool:
            view = self._cluster.repair()
            return any(task.read_bytes for task in view.tasks) or not self.is_under_way()

        self._until(reads, "no worker begins")
        return self.is_under_way()

    def is_under_way(self) -> bool:
        """Something lacks. What is due says less: what was passed over is not due until the
        coordinator looks again.
        """
        view = self._cluster.repair()
        if view.problems:
            payload, why = view.problems[0]
            raise CkptError(f"{payload} was not made again: {why}")
        return bool(view.columns_due or view.tasks) or self._is_low()

    # ----------------------------------------------------------------------- inside

    def _is_low(self) -> bool:
        return any(check.name == LOW for check in self._cluster.status().checks)

    def _wait_files(self) -> None:
        """Until as many columns lie on targets as are held, or nothing lacks."""
        asked_s = time.monotonic()

        def are_here() -> bool:
            nonlocal asked_s
            names = self._cluster.target_names
            if sum(len(self._cluster.columns_of(name)) for name in names) >= self._held:
                return True
            if time.monotonic() - asked_s < LOOK_S:
                return False
            asked_s = time.monotonic()
            return not self.is_under_way()

        self._until(are_here, "not all columns are made again")

    def _take(self, names: Sequence[str]) -> Loss:
        lost = self._lost(names)
        for name in names:
            for file in self._cluster.columns_of(name):
                file.unlink()
        return lost

    def _lost(self, names: Sequence[str]) -> Loss:
        files = [file for name in names for file in self._cluster.columns_of(name)]
        found = list(map(_header_of, files))
        payloads = {(one.column.payload, one.column_bytes) for one in found}
        return Loss(
            len(payloads), len(found), sum(one.column_bytes for one in found),
            self._plan.code.k * sum(size for _, size in payloads),
        )  # fmt: skip

    def _start(self, names: Sequence[str]) -> None:
        for name in names:
            self._cluster.start_target(name)
        self._cluster.wait_live(self._plan.targets)

    def _cpu_s(self) -> float:
        return sum(map(proc.cpu_s, self._cluster.target_pids))

    def _counters(self) -> Counters:
        """Of all targets, once they have said everything."""
        seen, seen_s = self._said(), time.monotonic()
        while time.monotonic() - seen_s < REST_S:
            time.sleep(POLL_S)
            now = self._said()
            if now != seen:
                seen, seen_s = now, time.monotonic()
        return seen

    def _said(self) -> Counters:
        return {
            target.id: {name: target.counters.get(name, 0) for name in MOVING}
            for target in self._cluster.status().targets
        }

    def _until(self, ready: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            if time.monotonic() >= deadline:
                raise Unavailable(f"{why} after {PATIENCE_S:g} s")
            time.sleep(POLL_S)


def _added(before: Counters, after: Counters) -> Counters:
    return {
        id: {name: value - before[id][name] for name, value in found.items()}
        for id, found in after.items()
    }


def _header_of(file: Path) -> ColumnHeader:
    with file.open("rb") as opened:
        return decode_header(opened.read(HEADER_BYTES))
