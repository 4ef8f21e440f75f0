"""`ioengine=tensorstore`: an OCDBT database of zarr3 arrays for each rank, one transaction a save.

It reads the arrays until it is done, without a copy: its stall is all of it. No codec. It syncs
files and directories itself, unless `end_fsync=0`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import tensorstore as ts

from ckptbench.engines.base import KEEP_STEPS, Done, EnginePlan, LoadedState, rank_file, remove_old
from ckptbench.workload import Array, State, dtype_of, rank_boxes

SUFFIX: Final = "ocdbt"


class TensorStoreEngine:
    """The engine of one rank: a TensorStore database for each step."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        #: Steps whose databases lie there, oldest first.
        self._saved: list[int] = []

    def save(self, step: int, state: State) -> None:
        context = ts.Context({"file_io_sync": self._plan.settings["end_fsync"] == "1"})
        together = ts.Transaction()
        writes = []  # Kept: a write whose future is dropped is cancelled.
        for name, array in state.arrays.items():
            opened = ts.open(
                self._spec(step, self._plan.rank, name) | {"metadata": _metadata(array)},
                create=True,
                context=context,
                transaction=together,
            ).result()
            writes.append(opened.write(array, can_reference_source_data_indefinitely=True))
        together.commit_async().result()
        for write in writes:
            write.result()
        self._saved.append(step)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def load(self, step: int, rank: int) -> LoadedState:
        context = ts.Context()
        opened = {
            box.name: ts.open(self._spec(step, rank, box.name), open=True, context=context)
            for box in rank_boxes(self._plan.state, rank)
        }
        reads = {name: one.result().read() for name, one in opened.items()}
        dtype = dtype_of(self._plan.state)
        return LoadedState(
            {name: np.asarray(one.result()).view(dtype) for name, one in reads.items()}, "file"
        )

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            remove_old(rank_file(self._plan, self._saved.pop(0), self._plan.rank, SUFFIX))

    def close(self) -> None:
        """No file outlives a call."""

    def _spec(self, step: int, rank: int, name: str) -> dict[str, object]:
        base = f"file://{rank_file(self._plan, step, rank, SUFFIX)}/"
        return {
            "driver": "zarr3",
            "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
        }


def _metadata(array: Array) -> dict[str, object]:
    """One chunk, no codec."""
    return {
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.shape}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
