"""What does each stage cost on this machine, alone? The c of DESIGN 6, and the bounds they make.

CPU seconds are stable from run to run where wall times are not. Every probe runs in processes of
its own (`ckptbench.probes`); the median of its rounds counts, over all processes that ran at once.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.base.limits import CELL_BYTES_DEFAULT
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.native.library import find_library
from ckpt_client.local.children import Child, end_children, start_child
from ckptbench.figures import Costs, gb_per_s, restore_bound, save_bound
from ckptbench.probes import PIECE_BYTES
from ckptbench.raw_disk import DiskRate, best_write, write_file
from ckptbench.results import Bounds, Machine

ARENA_BYTES: Final = 256 * MiB
TRANSPORT_ROUNDS: Final = 5
PROBE_TIMEOUT_S: Final = 120.0
WARM_SHARE: Final = 125
"""Percent of what is about to be touched."""


@dataclass(frozen=True, slots=True)
class RooflinePlan:
    """What to measure for."""

    ranks: int = 4
    code: Code = field(default_factory=lambda: Code(4, 2))
    directory: Path | None = None
    """On the device to measure; None takes the temporary directory."""
    quick: bool = False
    """Fewer bytes, for tests."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything that `ckptbench roofline` finds."""

    machine: Machine
    code: str
    ranks: int
    tcp: Costs
    lent: Costs
    """On one host, where no byte is sent."""
    copy_gb_per_s: float
    """All ranks together."""
    disk: DiskRate
    disk_read_gb_per_s: float
    save_bound_gb_per_s: float
    """G* over TCP, nothing fingerprinted."""
    restore_bound_gb_per_s: float
    """R* over TCP."""


@dataclass(frozen=True, slots=True)
class RooflineRound:
    """One round of one probe."""

    bytes: int
    cpu_s: float
    wall_s: float

    @property
    def cost(self) -> float:
        """CPU seconds per GB."""
        return self.cpu_s / self.bytes * 1e9


def measure(plan: RooflinePlan) -> Roofline:
    """All of it, in about 20 s. Raises Refused where the directory has no O_DIRECT."""
    costs, copy_rate = measure_costs(plan)
    with tempfile.TemporaryDirectory(prefix="ckptbench-", dir=plan.directory) as name:
        size = _arena_bytes(plan)
        disk = best_write(Path(name), 2 * size, plan.code.n)
        read, read_rate = _read_cost(Path(name), size)
    tcp = _with_read(costs, read)
    return Roofline(
        machine=describe_machine(),
        code=str(plan.code),
        ranks=plan.ranks,
        tcp=tcp,
        lent=lent(tcp),
        copy_gb_per_s=copy_rate,
        disk=disk,
        disk_read_gb_per_s=read_rate,
        save_bound_gb_per_s=save_bound(tcp, plan.code, core_count()),
        restore_bound_gb_per_s=restore_bound(tcp, core_count()),
    )


def measure_costs(plan: RooflinePlan) -> tuple[Costs, float]:
    """Every cost over TCP but `read`, which stays 0; and the GB/s of all ranks' warm copies at
    once.
    """
    size = _arena_bytes(plan)
    cell = CELL_BYTES_DEFAULT
    copies = run_probes([["copy", str(size)]] * plan.ranks)
    tx, rx = _transport(plan)
    return (
        Costs(
            copy=_cost(copies),
            ec=_cost(run_probes([["ec", str(plan.code), str(cell), str(size)]])),
            fingerprint=_cost(run_probes([["fingerprint", str(size)]])),
            crc=_cost(run_probes([["crc", str(cell)]])),
            tx=tx,
            rx=rx,
            read=0.0,
            touch=_cost(run_probes([["touch", str(size)]])),
        ),
        sum(_rate(rounds) for rounds in copies),
    )


def lent(costs: Costs) -> Costs:
    """The same where targets of this host are lent the bytes: no transport."""
    return Costs(
        copy=costs.copy, ec=costs.ec, fingerprint=costs.fingerprint, crc=costs.crc,
        tx=0.0, rx=0.0, read=costs.read, touch=costs.touch,
    )  # fmt: skip


def measure_read(costs: Costs, directory: Path, plan: RooflinePlan) -> tuple[Costs, float]:
    """With the cost of reading the device, and its O_DIRECT rate with one reader."""
    read, rate = _read_cost(directory, _arena_bytes(plan))
    return _with_read(costs, read), rate


def measure_bounds(plan: RooflinePlan, directory: Path, *, tcp: bool) -> Bounds:
    """G* for the transport in use, and R* over TCP, the device's reads in this directory."""
    costs, _ = measure_costs(plan)
    costs, _ = measure_read(costs, directory, plan)
    saving, cores = costs if tcp else lent(costs), core_count()
    return Bounds(saving, save_bound(saving, plan.code, cores), restore_bound(costs, cores), cores)


def measure_touch(sizes: Sequence[int]) -> float:
    """CPU s/GB of first touch by fresh processes at once, one for each size."""
    warm_free_memory(sum(sizes))
    return _cost(run_probes([["touch", str(size)] for size in sizes]))


def warm_free_memory(size: int) -> None:
    """Have so much free memory backed by real pages of this virtual machine's host.

    A host that takes free memory back within seconds makes first touch up to ten times dearer, by
    chance: this is done just before whatever touches memory on the clock.
    """
    run_probes([["touch", str(size * WARM_SHARE // 100)]])


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine() -> Machine:
    """What the figures depend on."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return Machine(
        cpu=cpu,
        cores=core_count(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        codec=f"isa-l, {find_library().build}",
    )


def run_probes(
    commands: Sequence[Sequence[str]], pass_fds: Sequence[Sequence[int]] = ()
) -> list[list[RooflineRound]]:
    """Start them all, let them go together when each is ready, and read their rounds."""
    processes: list[Child] = []
    try:
        for number, command in enumerate(commands):
            processes.append(
                start_child(
                    ["-m", "ckptbench.probes", *command],
                    environment=os.environ,
                    pass_fds=pass_fds[number] if pass_fds else (),
                    hears=True,
                )
            )
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=PROBE_TIMEOUT_S)[0] for process in processes]
    finally:
        end_children(processes, signal.SIGKILL)
    return [[RooflineRound(**one) for one in json.loads(answer)] for answer in answers]


# --------------------------------------------------------------------------- inside


def _arena_bytes(plan: RooflinePlan) -> int:
    return 16 * MiB if plan.quick else ARENA_BYTES


def _cost(probes: Sequence[Sequence[RooflineRound]]) -> float:
    return statistics.median(one.cost for rounds in probes for one in rounds)


def _rate(rounds: Sequence[RooflineRound]) -> float:
    return statistics.median(gb_per_s(one.bytes, one.wall_s) for one in rounds)


def _with_read(costs: Costs, read: float) -> Costs:
    return Costs(
        copy=costs.copy, ec=costs.ec, fingerprint=costs.fingerprint, crc=costs.crc,
        tx=costs.tx, rx=costs.rx, read=read, touch=costs.touch,
    )  # fmt: skip


def _transport(plan: RooflinePlan) -> tuple[float, float]:
    """Over TCP: cost of sending and of receiving: blocking, no framing, one connection."""
    sent, received = [], []
    size = _arena_bytes(plan)
    count = max(64, 4 * size // PIECE_BYTES)
    for _ in range(1 if plan.quick else TRANSPORT_ROUNDS):
        left, right = _tcp_pair()
        with left, right:
            tx, rx = left.fileno(), right.fileno()
            rounds = run_probes(
                [["tx", str(tx), str(size), str(count)], ["rx", str(rx), str(count)]],
                [[tx], [rx]],
            )
        sent.append(rounds[0][0].cost)
        received.append(rounds[1][0].cost)
    return statistics.median(sent), statistics.median(received)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, accepted


def _read_cost(directory: Path, size: int) -> tuple[float, float]:
    path = directory / "read"
    write_file(path, size)
    try:
        rounds = [run_probes([["read", str(path), str(size)]])[0][0] for _ in range(3)]
    finally:
        path.unlink(missing_ok=True)
    return statistics.median(one.cost for one in rounds), _rate(rounds)
