"""`ioengine=ckpt ckpt_mode=torch`: the tier as a torch training uses it, its state as DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import ckpt
import ckpt_torch
from ckpt.base.errors import CkptError
from ckptbench.engines.base import Done, EnginePlan, LoadedState
from ckptbench.engines.ckpt import TIMEOUT_S, open_store
from ckptbench.engines.torch_group import TorchGroup
from ckptbench.workload import State, TensorRange, empty_state, rank_boxes


class TorchCkptEngine:
    """One rank of a process group, with a store."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._group = TorchGroup(plan, Path(plan.settings["directory"]))
        self._store = open_store(plan)
        #: What the training holds, since the last `prepare`.
        self._tree: dict[str, object] = {}
        self._pending: Future[ckpt.Commit] | None = None

    def prepare(self, state: State) -> None:
        self._tree = self._group.tree(state)

    def make_ready(self, state: State) -> None:
        ckpt_torch.prepare(self._tree, store=self._store).result(TIMEOUT_S)

    def save(self, step: int, state: State) -> None:
        self._pending = ckpt_torch.async_save(
            self._tree, checkpoint_id=self._name(step), store=self._store,
            staging=self._plan.settings.get("staging", "copy"),
        )  # fmt: skip

    def wait(self) -> Done:
        if self._pending is None:
            raise CkptError("nothing was saved")
        commit, self._pending = self._pending.result(TIMEOUT_S), None
        return Done(slowest_target=commit.slowest_target, columns_missing=commit.columns_missing)

    def load(self, step: int, rank: int) -> LoadedState:
        self._group.check_rank(rank)
        return self.load_boxes(step, rank_boxes(self._plan.state, rank))

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        state = empty_state(self._plan.state, boxes)
        tree, name = self._group.destination(state), self._name(step)
        ckpt_torch.load(tree, checkpoint_id=name, store=self._store, timeout_s=TIMEOUT_S)
        return LoadedState(state.arrays, "tier")

    def tidy(self) -> None:
        """The cluster keeps two steps by itself."""

    def close(self) -> None:
        self._store.close()
        self._group.close()

    def _name(self, step: int) -> str:
        return f"{self._plan.run}/{step}"
