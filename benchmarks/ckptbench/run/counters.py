"""What did a checkpoint cost, by the kernel's own counters? CPU of each stage, bytes on the wire,
bytes of the devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckptbench import proc
from ckptbench.results import HostSpent, Spent

ARENA_NAME = "memfd:ckpt-arena"
THREADS_SHOWN = 3


class CounterReader:
    """I remember the counters as they are now. Processes that start later count from zero."""

    def __init__(self, stages: Mapping[str, Sequence[int]], writers: Sequence[int]) -> None:
        self._cpu = {pid: proc.cpu_s(pid) for pids in stages.values() for pid in pids}
        self._threads = {pid: proc.thread_cpu_s(pid) for pid in stages.get("stager", ())}
        self._device = {pid: proc.device_bytes(pid) for pid in writers}
        self._wire = proc.loopback_bytes()

    def since(
        self, stages: Mapping[str, Sequence[int]], trainer_cpu_s: float, *, counts_wire: bool
    ) -> Spent:
        """What was added, over the stages as they are now."""
        cpu = {"trainer": trainer_cpu_s}
        for stage, pids in stages.items():
            cpu[stage] = sum(proc.cpu_s(pid) - self._cpu.get(pid, 0.0) for pid in pids)
        stagers = stages.get("stager", ())
        for place, seconds in enumerate(self._stager_threads(stagers), start=1):
            cpu[f"stager thread {place}"] = seconds
        now = {pid: proc.device_bytes(pid) for pid in self._device}
        return Spent(
            cpu_s=cpu,
            wire_bytes=proc.loopback_bytes() - self._wire if counts_wire else None,
            device_read=sum(max(0, now[pid].read - was.read) for pid, was in self._device.items()),
            device_written=sum(
                max(0, now[pid].written - was.written) for pid, was in self._device.items()
            ),
            private_bytes=max((proc.private_bytes(pid, ARENA_NAME) for pid in stagers), default=0),
        )

    def _stager_threads(self, pids: Sequence[int]) -> tuple[float, ...]:
        if not pids:
            return ()
        return sum_threads(
            [_added(self._threads.get(pid, {}), proc.thread_cpu_s(pid)) for pid in pids]
        )


class HostCounters:
    """The same for one host's agent: its ranks and their stagers, and the host's network."""

    def __init__(self, ranks: Sequence[int], stagers: Sequence[int]) -> None:
        self._network = proc.network_bytes()
        self._counters = CounterReader({"stager": stagers}, [*ranks, *stagers])

    def since(self, stagers: Sequence[int]) -> HostSpent:
        """What was added since an earlier reading."""
        spent = self._counters.since({"stager": stagers}, 0.0, counts_wire=False)
        network = proc.network_bytes()
        return HostSpent(
            machine=proc.machine_id(),
            cpu_s={stage: cost for stage, cost in spent.cpu_s.items() if stage != "trainer"},
            device_read=spent.device_read or 0,
            device_written=spent.device_written or 0,
            received=network.read - self._network.read,
            sent=network.written - self._network.written,
            private_bytes=spent.private_bytes,
        )


def add_hosts(spent: Spent, hosts: Sequence[HostSpent]) -> Spent:
    """With what agents counted; as it was without any."""
    if not hosts:
        return spent
    cpu = Counter(spent.cpu_s)
    for one in hosts:
        cpu.update(one.cpu_s)
    return replace(
        spent,
        cpu_s=dict(cpu),
        device_read=(spent.device_read or 0) + sum(one.device_read for one in hosts),
        device_written=(spent.device_written or 0) + sum(one.device_written for one in hosts),
        private_bytes=max(spent.private_bytes, *(one.private_bytes for one in hosts)),
        hosts=tuple(hosts),
    )


def sum_threads(stagers: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The busiest threads of all stagers together, the second busiest, … (three at most)."""
    ordered = [sorted(one, reverse=True) for one in stagers]
    return tuple(
        sum(one[place] for one in ordered if len(one) > place) for place in range(THREADS_SHOWN)
    )


def _added(was: dict[int, float], now: dict[int, float]) -> list[float]:
    return [seconds - was.get(thread, 0.0) for thread, seconds in now.items()]
