"""`ioengine=orbax`: Orbax's AsyncCheckpointer in the ranks of one JAX job on CPUs.

    orbax_mode=default  as it is: OCDBT, zstd level 1
    orbax_mode=plain    the same without a codec

Orbax copies nothing in its stall, as JAX's arrays do not change. It syncs its data itself, its
small files and the checkpoint's name are synced here when `end_fsync` asks for it.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Final

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckpt.base.errors import Refused, Unavailable
from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    LoadedState,
    remove_old,
    step_directory,
    sync_tree,
)
from ckptbench.workload import State, TensorRange, dtype_of, rank_boxes

MEET_TIMEOUT_S: Final = 60.0
MEET_POLL_S: Final = 0.02


class OrbaxEngine:
    """One rank of a JAX job of its own; every rank is one device."""

    def __init__(self, plan: EnginePlan) -> None:
        if len(set(plan.state.rank_bytes)) > 1:
            raise Refused("ioengine=orbax: JAX cuts arrays into equal parts", hint="say size=")
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._plan = plan
        jax.distributed.initialize(_meet(plan), plan.world_size, plan.rank)
        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        self._cut = NamedSharding(mesh, PartitionSpec("ranks"))
        coded = plan.settings["orbax_mode"] == "default"
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(use_compression=coded)
        )
        #: What the training holds, since the last `prepare`.
        self._tree: dict[str, jax.Array] = {}
        #: Steps whose files lie there, oldest first.
        self._saved: list[int] = []

    def prepare(self, state: State) -> None:
        device = jax.local_devices()[0]
        self._tree = {
            box.name: jax.make_array_from_single_device_arrays(
                (box.total,), self._cut, [jax.device_put(state.arrays[box.name].copy(), device)]
            )
            for box in state.boxes
        }
        jax.block_until_ready(self._tree)

    def save(self, step: int, state: State) -> None:
        self._checkpointer.save(self._place(step), args=ocp.args.PyTreeSave(self._tree))
        self._saved.append(step)

    def wait(self) -> Done:
        self._checkpointer.wait_until_finished()
        if self._plan.settings["end_fsync"] == "1" and self._plan.rank == 0:
            sync_tree(self._place(self._saved[-1]))  # The others' files lie below it as well.
        return Done()

    def load(self, step: int, rank: int) -> LoadedState:
        if rank != self._plan.rank:
            raise Refused("ioengine=orbax: a rank loads its own part", hint="reader=same")
        boxes = rank_boxes(self._plan.state, rank)
        like = {box.name: self._like(box) for box in boxes}
        wanted = ocp.checkpoint_utils.construct_restore_args(like)
        args = ocp.args.PyTreeRestore(item=like, restore_args=wanted)
        found = jax.block_until_ready(self._checkpointer.restore(self._place(step), args=args))
        return LoadedState(
            {name: np.asarray(one.addressable_shards[0].data) for name, one in found.items()},
            "file",
        )

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            old = self._saved.pop(0)
            if self._plan.rank == 0:
                remove_old(step_directory(self._plan, old))

    def close(self) -> None:
        self._checkpointer.close()
        jax.distributed.shutdown()

    def _like(self, box: TensorRange) -> jax.ShapeDtypeStruct:
        dtype = dtype_of(self._plan.state)
        return jax.ShapeDtypeStruct((box.total,), dtype, sharding=self._cut)

    def _place(self, step: int) -> Path:
        """Orbax makes it, under another name first."""
        return step_directory(self._plan, step) / "orbax"


def _meet(plan: EnginePlan) -> str:
    """HOST:PORT of the job's rank 0, which leaves it in a file. Raises Unavailable."""
    note = Path(plan.url) / f"group-{plan.launch}"
    if plan.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        aside = note.with_suffix(".new")
        aside.write_text(f"127.0.0.1:{port}")
        aside.rename(note)
    deadline_s = time.monotonic() + MEET_TIMEOUT_S
    while not note.exists():
        if time.monotonic() >= deadline_s:
            raise Unavailable("rank 0 of the JAX job did not come in time")
        time.sleep(MEET_POLL_S)
    return note.read_text()
