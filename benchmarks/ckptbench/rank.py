"""One rank of a benchmark: `python -m ckptbench.rank PLAN`; lines on stdin say what it does.

It holds a state through one engine and answers each line with one JSON line:

    fill STEP           make the state that of STEP; its seconds are the generator's;
                        what is left of older steps is removed
    copy NS             warm copy of the state into private memory, tensor by tensor as a plain loop
                        would, beginning at monotonic NS
    save STEP NS        `engine.save` at NS; answers when training may go on
    think SECONDS       train for so long: as many small products of matrices as it can
    wait                until that save is as durable as the engine makes it
    load STEP NS RANK   at NS, what RANK saved, into memory that was never touched
    boxes STEP NS N     at NS, this rank's share of every tensor among N readers
    stored STEP NS RANK as `load`, from the object store beside the storage
    fetch STEP NS       at NS, all that was saved from there into the storage, until it is durable
    compare STEP        whether what was loaded is what STEP's save held, byte for byte
    close               let the engine go and end

What the engine imports is imported before the clock runs: that is a process's start, paid once. All
ranks get the same NS, so that they begin at once; times in answers count from it.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from ckpt.aio.collector import end_uncollected
from ckpt.base.errors import CkptError
from ckptbench.engines import make_engine
from ckptbench.engines.base import (
    Done,
    EnginePlan,
    LoadedState,
    Preparing,
    Readying,
    Resharding,
    Storing,
    as_ckpt_error,
)
from ckptbench.workload import (
    State,
    TensorRange,
    empty_state,
    fill,
    is_equal,
    rank_boxes,
    reader_boxes,
)

PACE_ROWS: Final = 256
SPIN_NS: Final = 2_000_000
"""The last part of waiting for a moment is spun."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank process is to do, and which rank it is."""

    engine: EnginePlan
    holds_state: bool
    """False in a process that only loads: its memory is as cold as after a restart."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel counted of this process while it did what a line said."""

    user_s: float = 0.0
    system_s: float = 0.0
    switches: int = 0
    major_faults: int = 0
    minor_faults: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What one line led to; what does not apply stays empty."""

    begun_ns: int = 0
    """After NS: how late this rank was."""
    ended_ns: int = 0
    """After NS; for `wait`, after the NS of the save."""
    usage: Usage = Usage()
    fault_in_s: float = 0.0
    bytes: int = 0
    slowest_target: str = ""
    columns_missing: int = 0
    stored_bytes: int = 0
    rounds_per_s: float = 0.0
    """Of the training of `think`."""
    equal: bool = False
    source: str = ""
    rebuilt_bytes: int = 0
    host: str = ""
    """Set by whoever asked a rank of another host."""
    error: str = ""
    """Why it failed; everything else is empty then."""
    exit_code: int = 0


class Rank:
    """I hold the state and the engine."""

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan.engine
        self._engine = make_engine(plan.engine)
        self._boxes = rank_boxes(plan.engine.state, plan.engine.rank) if plan.holds_state else []
        self._state = empty_state(plan.engine.state, self._boxes)
        #: The step whose values `_state` holds.
        self._step: int | None = None
        #: What `copy` copies the state into; made and touched before the first one is timed.
        self._copy: State | None = None
        #: When the last timed work was due to begin, monotonic nanoseconds.
        self._when = 0
        self._loaded: LoadedState | None = None
        self._loaded_boxes: Sequence[TensorRange] = ()

    def perform(self, words: list[str]) -> RankAnswer:
        """One line. A failure of the engine is also an answer."""
        try:
            return self._perform(words)
        except CkptError as error:
            return RankAnswer(error=str(error), exit_code=error.exit_code)
        except Exception as error:  # Whatever an engine's library raises is its answer.
            return _failed(error)

    def close(self) -> None:
        self._engine.close()

    def _perform(self, words: list[str]) -> RankAnswer:
        match words:
            case ["fill", step]:
                return self._at(None, lambda: self._fill(int(step)))
            case ["copy", when]:
                if self._copy is None:
                    self._copy = empty_state(self._plan.state, self._boxes)
                    self._copy_state()
                return self._at(int(when), self._copy_state)
            case ["save", step, when]:
                return self._at(int(when), lambda: self._save(int(step)))
            case ["think", seconds]:
                return RankAnswer(rounds_per_s=_pace(float(seconds)))
            case ["wait"]:
                return self._wait()
            case ["load", step, when, rank]:
                self._loaded, self._loaded_boxes = None, rank_boxes(self._plan.state, int(rank))
                return self._at(int(when), lambda: self._load(int(step), int(rank)))
            case ["boxes", step, when, readers]:
                self._loaded = None
                self._loaded_boxes = reader_boxes(self._plan.state, self._plan.rank, int(readers))
                return self._at(int(when), lambda: self._reshard(int(step)))
            case ["stored", step, when, rank]:
                self._loaded, self._loaded_boxes = None, rank_boxes(self._plan.state, int(rank))
                return self._at(int(when), lambda: self._load_stored(int(step), int(rank)))
            case ["fetch", step, when]:
                return self._at(int(when), lambda: self._fetch(int(step)))
            case ["compare", step]:
                return RankAnswer(equal=self._is_equal(int(step)))
            case _:
                raise ValueError(f"a rank does not know {words}")

    def _at(self, when: int | None, work: Callable[[], RankAnswer]) -> RankAnswer:
        """The work's answer with its times and costs; it begins at `when`."""
        if when is not None:
            wait_until(when)
        begun, before = time.monotonic_ns(), _usage()
        base = begun if when is None else when
        self._when = base
        found = work()
        ended = time.monotonic_ns()
        return _timed(found, begun - base, ended - base, before)

    def _fill(self, step: int) -> RankAnswer:
        self._engine.tidy()
        fill(self._plan.state, self._plan.rank, self._state, step, self._step)
        first, self._step = self._step is None, step
        if isinstance(self._engine, Preparing):
            self._engine.prepare(self._state)
        wished = first and self._plan.settings.get("prepare") == "1"
        if wished and isinstance(self._engine, Readying):
            self._engine.make_ready(self._state)
        return RankAnswer()

    def _copy_state(self) -> RankAnswer:
        assert self._copy is not None
        for name, array in self._state.arrays.items():
            self._copy.arrays[name][...] = array
        return RankAnswer(bytes=len(self._copy.memory))

    def _save(self, step: int) -> RankAnswer:
        self._engine.save(step, self._state)
        return RankAnswer(bytes=self._plan.state.rank_bytes[self._plan.rank])

    def _wait(self) -> RankAnswer:
        before = _usage()
        done: Done = self._engine.wait()
        found = RankAnswer(
            slowest_target=done.slowest_target,
            columns_missing=done.columns_missing,
            fault_in_s=done.fault_in_s,
            stored_bytes=done.stored_bytes,
        )
        return _timed(found, 0, time.monotonic_ns() - self._when, before)

    def _load(self, step: int, rank: int) -> RankAnswer:
        return self._take(self._engine.load(step, rank))

    def _reshard(self, step: int) -> RankAnswer:
        assert isinstance(self._engine, Resharding), "checked before the run"
        return self._take(self._engine.load_boxes(step, self._loaded_boxes))

    def _load_stored(self, step: int, rank: int) -> RankAnswer:
        assert isinstance(self._engine, Storing), "checked before the run"
        return self._take(self._engine.load_stored(step, rank))

    def _fetch(self, step: int) -> RankAnswer:
        assert isinstance(self._engine, Storing), "checked before the run"
        self._engine.fetch(step)
        return RankAnswer(bytes=sum(self._plan.state.rank_bytes), source="object store")

    def _take(self, loaded: LoadedState) -> RankAnswer:
        self._loaded = loaded
        return RankAnswer(
            bytes=sum(array.nbytes for array in loaded.arrays.values()),
            source=loaded.source,
            rebuilt_bytes=loaded.rebuilt_bytes,
        )

    def _is_equal(self, step: int) -> bool:
        loaded = self._loaded
        return loaded is not None and is_equal(
            self._plan.state, step, self._loaded_boxes, loaded.arrays
        )


def wait_until(when_ns: int) -> None:
    """Sleep, and spin at the end."""
    left = when_ns - time.monotonic_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.monotonic_ns() < when_ns:
        continue


def _pace(seconds: float) -> float:
    """Rounds a second of a loop that only computes, as a training on this CPU."""
    matrix = np.ones((PACE_ROWS, PACE_ROWS), np.float32)
    product = np.empty_like(matrix)
    begun, rounds = time.monotonic(), 0
    while (elapsed := time.monotonic() - begun) < seconds:
        np.matmul(matrix, matrix, out=product)
        rounds += 1
    return rounds / elapsed


def _failed(error: Exception) -> RankAnswer:
    """The answer for an exception that is not a CkptError."""
    found = as_ckpt_error(error)
    return RankAnswer(error=str(found), exit_code=found.exit_code)


def _timed(found: RankAnswer, begun_ns: int, ended_ns: int, before: Usage) -> RankAnswer:
    now = _usage()
    spent = Usage(
        now.user_s - before.user_s,
        now.system_s - before.system_s,
        now.switches - before.switches,
        now.major_faults - before.major_faults,
        now.minor_faults - before.minor_faults,
    )
    return dataclasses.replace(found, begun_ns=begun_ns, ended_ns=ended_ns, usage=spent)


def _usage() -> Usage:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(
        found.ru_utime,
        found.ru_stime,
        found.ru_nvcsw + found.ru_nivcsw,
        found.ru_majflt,
        found.ru_minflt,
    )


def main(argument: str) -> None:
    """Answer lines until `close` or the end of stdin."""
    end_uncollected()
    # What libraries print (gloo does) is no answer: it goes where errors go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    rank = Rank(msgspec.json.decode(argument, type=RankPlan))
    print(msgspec.json.encode(RankAnswer()).decode(), file=answers, flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["close"]:
            break
        print(msgspec.json.encode(rank.perform(words)).decode(), file=answers, flush=True)
    rank.close()


if __name__ == "__main__":
    main(sys.argv[1])
