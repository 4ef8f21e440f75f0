"""What does a drain cost a burst that comes meanwhile? It steps aside.

Bursts alone and bursts during a drain take turns; each drain is a `ckptd drain` of its own into an
empty place, seen at work by the coordinator before the burst begins.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import ckpt
from ckpt.base.errors import Unavailable
from ckpt.objects.source import Array
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt_client.control import Control
from ckpt_client.locate import Locator
from ckptbench.drain_speed import RUN, TIMEOUT_S, local_tier, random_state

BURST: Final = "burst"
WARM_COUNT: Final = 2


@dataclass(frozen=True, slots=True)
class DrainAside:
    """Seconds from `save` to the commit."""

    bytes: int
    alone_s: tuple[float, ...]
    draining_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.draining_s) / statistics.median(self.alone_s)


def measure_aside(
    url: str, byte_count: int, rounds: int, note: Callable[[str], None]
) -> DrainAside:
    """Raises what a save raises; Unavailable when a drain never begins.

    note: is told what is done next.
    """
    state = random_state(byte_count)
    alone, draining = [], []
    with local_tier(state) as tier, ckpt.open(tier.url, references=False) as store:
        for step in range(WARM_COUNT):
            _burst(store, step, state)
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}")
            alone.append(_burst(store, 10 + 2 * number, state))
            with _draining(tier.directory, tier.address, f"{url}/aside-{number}"):
                draining.append(_burst(store, 11 + 2 * number, state))
    size = sum(array.nbytes for array in state.values())
    return DrainAside(size, tuple(alone), tuple(draining))


def _burst(store: ckpt.Store, step: int, state: dict[str, Array]) -> float:
    begun_s = time.monotonic()
    store.save(BURST, step, state, rank=0, world_size=1).wait(TIMEOUT_S)
    return time.monotonic() - begun_s


@contextmanager
def _draining(directory: Path, address: str, place: str) -> Iterator[None]:
    """While a worker writes the bench's checkpoint there."""
    line = [
        sys.executable, "-m", "ckptd.cli", "drain", "--coordinator", address, "--to",
        f"{place}?runs={RUN}", "--secret-file", str(directory / "secret"), "--compression", "none",
    ]  # fmt: skip
    worker = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_parts(directory, place)
        yield
    finally:
        worker.kill()
        worker.wait()


def _wait_for_parts(directory: Path, place: str) -> None:
    control = Control(Locator(str(directory), ""), directory / "secret", None)
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            stores = msgspec.json.decode(control.ask("status"), type=StatusView).stores
            if any(store.url == place and store.parts for store in stores):
                return
            time.sleep(0.05)
    finally:
        control.close()
    raise Unavailable(f"nothing is drained to {place}")
