"""A real cluster for one measurement: coordinator and target daemons as processes, in a temporary
directory.

Everything carries one mark in its environment, lies in one directory (and one in memory for the
discarding sink), and is gone when the `with` is left, however that happens.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from ckpt.aio.secret import make_secret
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import RunName, Step, TargetId
from ckpt.erasure.code import Code
from ckpt.format.messages.asking import ChangeTarget, DeleteStep, StepDeleted, TargetChanged
from ckpt.format.messages.drains import DrainNoted, ForgetStore
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt_client.control import Control
from ckpt_client.local.children import Child, end_children, start_child
from ckpt_client.local.detach import child_environment
from ckpt_client.local.processes import MARK_NAME, end_marked, find_marked
from ckpt_client.locate import Locator
from ckptbench.bench_target import (
    DISCARD_NAME,
    KEEP_NAME,
    OBSERVED_NAME,
    SLOW_NAME,
    read_observed,
    write_slowness,
)

START_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.01
DAEMON: Final = "ckptd.cli"
TARGET: Final = "ckptbench.bench_target"
END_TIMEOUT_S: Final = 10.0
DRAIN_FLAGS: Final = ("--poll-s", "0.05", "--no-aside")
"""A drain that is measured alone does not wait between two looks, or for bursts."""
REPAIR_FLAGS: Final = ("--poll-s", "0.05")
MEMORY_DIRECTORY: Final = Path("/dev/shm")

_status_decoder = msgspec.json.Decoder(StatusView)
_repair_decoder = msgspec.json.Decoder(RepairView)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Which cluster to start."""

    code: Code
    targets: int
    discard: bool
    """Fragments are dropped after their checksum was verified."""
    tcp: bool
    """No Unix sockets."""
    directory: Path | None = None
    """On the device to measure; None takes the temporary directory."""
    cell_bytes: int = 0
    keep: int = 2
    rebuild_after_s: int = 300
    """Columns of a target that is gone are made again elsewhere after so long."""


class BenchCluster:
    """I own the processes. Enter me, and use `url` with `environment`."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.mark = secrets.token_hex(8)
        self.directory = Path(tempfile.mkdtemp(prefix="ckptbench-", dir=plan.directory))
        #: For sockets, whose paths are short, however deep the other one lies.
        self._sockets = Path(tempfile.mkdtemp(prefix="ckptbench-"))
        self.url = ""
        self._data = self.directory
        self._processes: dict[str, Child] = {}
        self._control: Control | None = None
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------- for the benchmarks

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process that belongs to this cluster."""
        return {
            **child_environment(),
            MARK_NAME: self.mark,
            "CKPT_SECRET_FILE": str(self.directory / "secret"),
            KEEP_NAME: str(self.keep_file),
            # Stagers and targets make their sockets there, and nothing of ours is left elsewhere.
            "XDG_RUNTIME_DIR": str(self._sockets),
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        }

    @property
    def keep_file(self) -> Path:
        """While it exists, a discarding target keeps fragments."""
        return self.directory / "keep"

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(f"t{number}" for number in range(self.plan.targets))

    def pid(self, name: str) -> int:
        """Process id of `coordinator`, or of a target."""
        return self._processes[name].pid

    def is_running(self, name: str) -> bool:
        """Whether it has not ended."""
        return self._processes[name].poll() is None

    def port(self, name: str) -> int:
        """Port of a target's TCP socket."""
        return self._ports[name]

    def living_targets(self) -> dict[str, int]:
        """Name and process of those that run."""
        return {
            name: self._processes[name].pid
            for name in self.target_names
            if self._processes[name].poll() is None
        }

    @property
    def target_pids(self) -> list[int]:
        """Process ids of the targets that run."""
        return list(self.living_targets().values())

    def stager_pids(self) -> list[int]:
        return [one.pid for one in find_marked(self.mark) if one.is_stager]

    def sealed_since(self, begun_ns: int) -> list[tuple[str, int, int]]:
        """(target, monotonic nanoseconds, columns) of what became durable after `begun_ns`."""
        return [
            (name, when, count)
            for name in self.target_names
            for when, count in read_observed(self._observed(name))
            if when >= begun_ns
        ]

    def status(self) -> StatusView:
        """What `ckpt status` shows."""
        assert self._control is not None
        return _status_decoder.decode(self._control.ask("status"))

    def repair(self) -> RepairView:
        """What `ckpt repair` shows."""
        assert self._control is not None
        return _repair_decoder.decode(self._control.ask("repair"))

    @property
    def secret(self) -> bytes:
        assert self._control is not None
        return self._control.secret

    def columns_of(self, name: str) -> list[Path]:
        """Files of one target's columns."""
        return list((self._data / "targets" / name / "columns").iterdir())

    def column_files(self) -> list[Path]:
        return [one for one in self._data.glob("targets/*/columns/*") if one.is_file()]

    def kill_target(self, name: str) -> None:
        """SIGKILL; returns when it is gone."""
        end_children([self._processes[name]], signal.SIGKILL)

    def start_target(self, name: str) -> None:
        """Once more, in the same directory; returns when it is ready."""
        assert self._control is not None
        plan = self.plan
        arguments = [
            *("-m", TARGET, "--id", name, "--directory", str(self._data / "targets" / name)),
            *("--coordinator", self.url.removeprefix("ckpt://"), "--listen", "127.0.0.1:0"),
            *("--cluster", self._control.cluster, "--domain", f"local/local/bench/dev-{name}"),
            "--unix" if not plan.tcp else "--no-unix",
        ]
        extra = {
            OBSERVED_NAME: str(self._observed(name)),
            DISCARD_NAME: "1" if plan.discard else "0",
            SLOW_NAME: str(self._slowness(name)),
        }
        self.slow_device(name, 1.0)
        ready = self._spawn(name, arguments, extra)
        self._ports[name] = int(str(ready["address"]).rpartition(":")[2])

    def slow_device(self, name: str, times: float) -> None:
        """From now on each write, sync and rename of its disk takes so many times as long."""
        write_slowness(self._slowness(name), times)

    def start_drain(self, to: str, flags: Sequence[str] = DRAIN_FLAGS) -> str:
        """A `ckptd drain` with this --to, which looks often; its name, for `pid` and `end`."""
        name = f"drain-{secrets.token_hex(4)}"
        where = ("--coordinator", self.url.removeprefix("ckpt://"), "--to", to)
        self._spawn(name, ["-m", DAEMON, "drain", *where, *flags], {})
        return name

    def start_repair(self) -> str:
        """A `ckptd repair` that asks often; its name, for `pid` and `end`."""
        name = f"repair-{secrets.token_hex(4)}"
        where = ("--coordinator", self.url.removeprefix("ckpt://"))
        self._spawn(name, ["-m", DAEMON, "repair", *where, *REPAIR_FLAGS], {})
        return name

    def end(self, name: str) -> None:
        """SIGTERM; returns when it is gone."""
        end_children([self._processes[name]])

    def delete_step(self, run: RunName, step: Step) -> None:
        """Delete a step, as `ckpt rm` does. Raises NotFound."""
        assert self._control is not None
        self._control.call(DeleteStep(run, step), StepDeleted)

    def change_target(self, name: str, standing: str) -> None:
        """As `ckpt target drain`, and so on. Raises Refused with what speaks against it."""
        assert self._control is not None
        self._control.call(ChangeTarget(TargetId(name), standing), TargetChanged)

    def forget_store(self, url: str) -> None:
        """As `ckpt drain forget`. Raises NotFound; Busy while a drain serves it."""
        assert self._control is not None
        self._control.call(ForgetStore(url), DrainNoted)

    def wait_live(self, count: int) -> None:
        """Until so many targets are live in the coordinator's map. Raises Unavailable."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while sum(one.pid is not None for one in self.status().targets) < count:
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{count} targets are not live in time")
            time.sleep(POLL_S)

    def close(self) -> None:
        """End everything by its own id and remove the directories. Idempotent."""
        if self._control is not None:
            self._control.close()
            self._control = None
        end_children(list(self._processes.values()))
        end_marked(self.mark, END_TIMEOUT_S)
        for directory in {self.directory, self._data, self._sockets}:
            shutil.rmtree(directory, ignore_errors=True)

    # ----------------------------------------------------------------------- inside

    def _start(self) -> None:
        if self.plan.discard and os.access(MEMORY_DIRECTORY, os.W_OK):
            # Headers and trailers only: no sync of a device belongs into a figure without one.
            self._data = Path(tempfile.mkdtemp(prefix="ckptbench-", dir=MEMORY_DIRECTORY))
        make_secret(self.directory / "secret")
        arguments = [
            *("-m", DAEMON, "coordinator", "--directory", str(self._data)),
            *("--listen", "127.0.0.1:0", "--code", str(self.plan.code), "--level", "target"),
            *("--keep", str(self.plan.keep), "--cell-bytes", str(self.plan.cell_bytes)),
            *("--rebuild-after-s", str(self.plan.rebuild_after_s)),
        ]
        address = self._spawn("coordinator", arguments, {})["address"]
        self.url = f"ckpt://{address}"
        self._control = Control(
            Locator("", str(address)), self.directory / "secret", None, Role.ADMIN
        )
        for name in self.target_names:
            (self._data / "targets" / name).mkdir(parents=True)
            self.start_target(name)
        self.wait_live(self.plan.targets)

    def _slowness(self, name: str) -> Path:
        return self.directory / f"slow-{name}"

    def _observed(self, name: str) -> Path:
        return self._data / f"observed-{name}"

    def _spawn(
        self, name: str, arguments: Sequence[str], extra: dict[str, str]
    ) -> dict[str, object]:
        """Start a daemon and read its ready line. Raises CkptError with the end of its log."""
        log = self.directory / f"{name}.log"
        with log.open("ab") as stderr:
            process = start_child(
                arguments, environment={**self.environment, **extra}, stderr=stderr
            )
        self._processes[name] = process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(START_TIMEOUT_S) else b""
        if not line:
            tail = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise CkptError(f"{name} did not start: {' / '.join(tail)}")
        ready = json.loads(line)
        assert isinstance(ready, dict)
        return ready
