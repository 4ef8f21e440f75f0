"""A real stager process without a cluster, and what a trainer does with it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ckpt.aio.secret import make_secret
from ckpt.base.units import MiB
from ckpt_client.save.handle import Save
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.save.packing import PackingPlan, plan_packing
from ckpt_client.save.state import flatten
from ckpt_client.stager import wire


class Bench:
    """Starts stagers that dial a coordinator which is not there, and ends them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        make_secret(directory / "secret")

    def attach(self, *, arena_bytes_max: int = 64 * MiB, idle_s: float = 0.2) -> wire.Attach:
        return wire.Attach(
            pid=os.getpid(),
            process="host/1/test",
            rank=0,
            world_size=1,
            key=None,
            directory=str(self.directory),
            address="",
            cluster="c1",
            secret_file=str(self.directory / "secret"),
            arena_bytes_max=arena_bytes_max,
            idle_s=idle_s,
        )

    def start(self, *, arena_bytes_max: int = 64 * MiB, idle_s: float = 0.2) -> StagerLink:
        attach = self.attach(arena_bytes_max=arena_bytes_max, idle_s=idle_s)
        link = StagerLink(attach, self.directory / "stager.log")
        self._stack.callback(kill, link.pid)
        self._stack.callback(link.close)
        return link


def kill(pid: int) -> None:
    if runs(pid):
        os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False


def stage(link: StagerLink, number: int, size: int = MiB, when_full: str = "wait") -> Save | None:
    packing = plan_packing(flatten({"a": np.zeros(size, np.uint8)}), 0, 1)
    link.ask_half(number, "run", number, packing.layout.half_bytes, when_full)
    granted = link.wait_half(number)
    if granted is None:
        return None
    granted[0].write(packing)
    save = Save("run", number, 0, link)
    link.hand_over(save, handed(number, packing, references=True))
    return save


def handed(number: int, packing: PackingPlan, *, references: bool = False) -> wire.HandOver:
    return wire.HandOver(
        save=number,
        payload_bytes=packing.layout.payload_bytes,
        document_bytes=len(packing.document),
        declaration_offset=packing.layout.declaration_offset,
        declaration_bytes=len(packing.layout.declaration),
        replicas="abort",
        stall_us=0,
        fault_in_us=0,
        unchanged="ignore",
        references=references,
    )
