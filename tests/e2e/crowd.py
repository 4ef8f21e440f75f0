"""Many stagers at once on few targets: one process that trains for all ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import ckpt
from ckpt.base.units import MiB
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt_client.control import Control
from ckpt_client.locate import Locator
from tests.waiting import wait_until

RUN = "crowd"


@dataclass(frozen=True, slots=True)
class Written:
    """What all targets have done since they started."""

    streams_begun: int
    columns_sealed: int
    columns_refused: int
    fragment_bytes: int


def save_at_once(
    store: ckpt.Store, step: int, arrays: list[np.ndarray], wait_s: float
) -> list[ckpt.Commit]:
    """Every rank saves its array, each from a thread of its own, with other bytes than before."""
    for array in arrays:
        array += step

    def save(rank: int) -> ckpt.Save:
        return store.save(RUN, step, {"w": arrays[rank]}, rank=rank, world_size=len(arrays))

    with ThreadPoolExecutor(len(arrays)) as pool:
        saves = list(pool.map(save, range(len(arrays))))
    return [save.wait(wait_s) for save in saves]


def written(directory: Path, columns: int) -> Written:
    """As targets tell the coordinator, once they have told of so many columns."""
    control = Control(Locator(str(directory), ""), directory / "secret", None)

    def look() -> Written:
        status = msgspec.json.decode(control.ask("status"), type=StatusView)
        counters = [target.counters for target in status.targets]
        return Written(
            *(
                sum(each.get(name, 0) for each in counters)
                for name in ("streams_begun", "columns_sealed", "columns_refused", "bytes_written")
            )
        )

    try:
        wait_until(lambda: look().columns_sealed >= columns, "targets have told what they sealed")
        return look()
    finally:
        control.close()


def check_crowd(
    store: ckpt.Store, directory: Path, ranks: int, mib: int, steps: int, wait_s: float
) -> None:
    """No save of the crowd lacks a column, and at most 0.5 % of it was sent twice."""
    rng = np.random.default_rng(ranks)
    arrays = [rng.integers(0, 255, mib * MiB, "u1") for _ in range(ranks)]
    for step in range(1, steps + 1):
        for commit in save_at_once(store, step, arrays, wait_s):
            assert (commit.columns_missing, commit.targets_survivable) == (0, 2)
    columns = 6 * ranks * steps
    done = written(directory, columns)
    assert columns <= done.columns_sealed <= 1.005 * columns
    assert done.columns_refused == 0
    planned = 6 * ranks * steps * (mib * MiB // 4)
    assert planned <= done.fragment_bytes <= 1.005 * planned
