"""`ioengine=posix`: one file for each rank, written in blocks of `bs`, as a C program would.

direct=1 goes around the page cache both ways, but for boxes, which begin anywhere in a file;
end_fsync=1 (the default) syncs file and directory inside the clock. The save is synchronous: its
stall is all of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ckpt.base.errors import Corrupt, Refused
from ckptbench.engines.base import EnginePlan, LoadedState
from ckptbench.engines.file_engine import FileEngine
from ckptbench.workload import (
    State,
    TensorRange,
    arena_offsets,
    array_bytes,
    empty_state,
    overlaps,
    rank_boxes,
)


class PosixEngine(FileEngine):
    """I write the arena as it lies in memory, and read it back or parts of it."""

    suffix = "bin"

    def __init__(self, plan: EnginePlan) -> None:
        super().__init__(plan)
        self._block = int(plan.settings["bs"])
        self._direct = os.O_DIRECT if plan.settings["direct"] == "1" else 0

    def write(self, path: Path, state: State) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with self._opened(path, flags) as descriptor:
            end = len(state.memory)
            offset = 0
            while offset < end:
                offset += os.pwrite(
                    descriptor, state.memory[offset : min(end, offset + self._block)], offset
                )

    def load(self, step: int, rank: int) -> LoadedState:
        state = empty_state(self._plan.state, rank_boxes(self._plan.state, rank))
        with self._opened(self._path(step, rank), os.O_RDONLY) as descriptor:
            self._read(descriptor, state.memory, 0)
        return LoadedState(state.arrays, "file")

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        plan = self._plan.state
        state = empty_state(plan, boxes)
        places = _Places(self._plan)
        for box in boxes:
            into = array_bytes(state.arrays[box.name])
            for rank, first, count, skipped in overlaps(plan, box):
                size = plan.element_bytes
                offset = places.of(rank)[box.name] + skipped * size
                part = into[first * size : (first + count) * size]
                with open(self._path(step, rank), "rb", buffering=0) as file:
                    self._read(file.fileno(), part, offset)
        return LoadedState(state.arrays, "file")

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        """Its descriptor. Raises Refused where the device takes no such blocks directly."""
        descriptor = os.open(path, flags | os.O_CLOEXEC | self._direct, 0o600)
        try:
            yield descriptor
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
            raise Refused(
                f"O_DIRECT takes no blocks of {self._block} bytes here",
                hint="bs= in whole sectors of the device; 4096 fits all",
            ) from None
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, into: memoryview, offset: int) -> None:
        done = 0
        while done < len(into):
            got = os.preadv(descriptor, [into[done : done + self._block]], offset + done)
            if not got:
                raise Corrupt(f"the file ends {len(into) - done} bytes early")
            done += got


class _Places:
    """Where tensors lie in each rank's file; worked out once for each rank."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan.state
        self._known: dict[int, dict[str, int]] = {}

    def of(self, rank: int) -> dict[str, int]:
        if rank not in self._known:
            boxes = rank_boxes(self._plan, rank)
            offsets, _ = arena_offsets(self._plan, boxes)
            self._known[rank] = {
                box.name: offset for box, offset in zip(boxes, offsets, strict=True)
            }
        return self._known[rank]
