"""One trainer rank of a benchmark: `python -m ckptbench.rank PLAN`, told what to do by lines on
stdin.

It holds a state of a given size through the public API and answers each line with one JSON line:

    copy NS             warm copy of the whole state into private memory, beginning at monotonic NS
    save STEP NS        change the state to STEP's, then `store.save` at NS; answers when it has
                        returned
    wait                the commit of that save
    load STEP NS        `store.load` at NS into memory that was never touched
    compare STEP        whether what was loaded is what STEP's save held, byte for byte
    close               close the store and end

The code of loading is imported before the clock runs: that is a process's start, paid once.
All ranks get the same NS, so that they begin at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

import ckpt
import ckpt_client.restore
from ckpt.base.units import MiB

ARRAY_BYTES: Final = 32 * MiB
RUN: Final = "bench"
TIMEOUT_S: Final = 120.0
SPIN_NS: Final = 2_000_000
"""The last part of waiting for a moment is spun."""

Array = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Who this rank is."""

    rank: int
    world_size: int
    state_bytes: int
    url: str
    launch: str
    holds_state: bool
    """False in a process that only loads: its memory is as cold as after a restart."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one line led to; fields that do not apply stay zero."""

    begun_ns: int = 0
    ended_ns: int = 0
    cpu_s: float = 0.0
    stall_s: float = 0.0
    fault_in_s: float = 0.0
    commit_s: float = 0.0
    columns_missing: int = 0
    equal: bool = False
    source: str = ""
    rebuilt_bytes: int = 0


class Rank:
    """I hold the state and the store."""

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan
        self._store = ckpt.open(plan.url, launch=plan.launch, stager_idle_s=2.0)
        self._state = dict(_base(plan)) if plan.holds_state else {}
        self._copies = {name: array.copy() for name, array in self._state.items()}
        #: The warm copy's other side.
        self._step = 0
        self._save: ckpt.Save | None = None
        self._loaded: object = None
        assert ckpt_client.restore, "imported above"

    def perform(self, words: list[str]) -> Answer:
        """One line."""
        match words:
            case ["copy", when]:
                return self._copy(int(when))
            case ["save", step, when]:
                return self._save_at(int(step), int(when))
            case ["wait"]:
                return self._wait()
            case ["load", step, when]:
                return self._load_at(int(step), int(when))
            case ["compare", step]:
                return Answer(equal=self._is_equal(int(step)))
            case _:
                raise ValueError(f"a rank does not know {words}")

    def close(self) -> None:
        self._store.close()

    def _copy(self, when: int) -> Answer:
        wait_until(when)
        begun, cpu = time.monotonic_ns(), time.process_time()
        for name, array in self._state.items():
            np.copyto(self._copies[name], array)
        return Answer(begun, time.monotonic_ns(), time.process_time() - cpu)

    def _save_at(self, step: int, when: int) -> Answer:
        for array in self._state.values():
            array += np.uint32(step - self._step)
        self._step = step
        plan = self._plan
        wait_until(when)
        begun, cpu = time.monotonic_ns(), time.process_time()
        save = self._store.save(RUN, step, self._state, rank=plan.rank, world_size=plan.world_size)
        ended = time.monotonic_ns()
        self._save = save
        return Answer(
            begun,
            ended,
            time.process_time() - cpu,
            stall_s=(ended - begun) / 1e9 - save.fault_in_s,
            fault_in_s=save.fault_in_s,
        )

    def _wait(self) -> Answer:
        assert self._save is not None
        commit = self._save.wait(TIMEOUT_S)
        return Answer(
            ended_ns=time.monotonic_ns(),
            commit_s=commit.commit_s,
            columns_missing=commit.columns_missing,
        )

    def _load_at(self, step: int, when: int) -> Answer:
        self._loaded = None
        plan = self._plan
        wait_until(when)
        begun, cpu = time.monotonic_ns(), time.process_time()
        with self._store.resolve(
            RUN, step, rank=plan.rank, world_size=plan.world_size, timeout_s=TIMEOUT_S
        ) as checkpoint:
            self._loaded = checkpoint.load()
            ended = time.monotonic_ns()
            statistics = checkpoint.statistics
        return Answer(
            begun,
            ended,
            time.process_time() - cpu,
            source=checkpoint.source,
            rebuilt_bytes=sum(one.rebuilt_bytes for one in statistics),
        )

    def _is_equal(self, step: int) -> bool:
        """Array by array, so that a rank that only loads never holds a second state."""
        loaded = self._loaded
        names = set()
        for name, array in _base(self._plan):
            array += np.uint32(step)
            names.add(name)
            found = loaded.get(name) if isinstance(loaded, dict) else None
            if not isinstance(found, np.ndarray) or not np.array_equal(found, array):
                return False
        return isinstance(loaded, dict) and set(loaded) == names


def wait_until(when_ns: int) -> None:
    """Sleep, and spin at the end."""
    left = when_ns - time.monotonic_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.monotonic_ns() < when_ns:
        continue


def _base(plan: RankPlan) -> Iterator[tuple[str, Array]]:
    """The arrays of step 0, from the rank's number alone."""
    generator = np.random.default_rng(plan.rank)
    for number, start in enumerate(range(0, plan.state_bytes, ARRAY_BYTES)):
        size = min(ARRAY_BYTES, plan.state_bytes - start)
        yield f"layer{number}", generator.integers(0, 1 << 32, size // 4, np.uint32)


def main(argument: str) -> None:
    """Answer lines until `close` or the end of stdin."""
    rank = Rank(msgspec.json.decode(argument, type=RankPlan))
    print(msgspec.json.encode(Answer()).decode(), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["close"]:
            break
        print(msgspec.json.encode(rank.perform(words)).decode(), flush=True)
    rank.close()


if __name__ == "__main__":
    main(sys.argv[1])
