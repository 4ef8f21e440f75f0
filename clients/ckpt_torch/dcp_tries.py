"""What DCP begins here and never brings to `write_data`.

The n-th save of a step by one rank meets the n-th of every other. A planner that raises ends a try
without the writer, on this rank alone: the others may have staged theirs. So each try counts,
as a save, as a refusal at once (WatchedPlanner), or as one that is made up for ahead of the next.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from ckpt_torch.exchange import Fact

NAMES_MAX: Final = 64
"""Checkpoints whose tries are counted."""
#: Checkpoint -> how many tries have begun here and did not end; the newest last.
_begun: OrderedDict[str, int] = OrderedDict()


def begin_try(name: str) -> None:
    """Note that DCP begins to save the checkpoint."""
    _begun[name] = _begun.pop(name, 0) + 1
    while len(_begun) > NAMES_MAX:
        _begun.popitem(last=False)


def end_tries(name: str) -> int:
    """A try is refused or comes to write: returns how many tries before it failed."""
    return max(0, _begun.pop(name, 0) - 1)


class WatchedPlanner(SavePlanner):
    """Another planner, whose errors `tell` hears at once; they go on up."""

    def __init__(
        self, planner: SavePlanner, tell: Callable[[Exception, SavePlan | None], None]
    ) -> None:
        self._planner = planner
        self._tell = tell

    @contextmanager
    def _telling(self, plan: SavePlan | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._tell(error, plan)
            raise

    def set_up_planner(
        self,
        state_dict: dict[str, Fact],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        set_up = self._planner.set_up_planner
        with self._telling():
            if "storage_meta" in inspect.signature(set_up).parameters:
                set_up(state_dict, storage_meta, is_coordinator)
            else:  # As DCP calls planners of its older interface.
                set_up(state_dict, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        with self._telling():
            return self._planner.create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> object:
        with self._telling():
            return self._planner.create_global_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        with self._telling(new_plan):
            return self._planner.finish_plan(new_plan)

    def resolve_data(self, write_item: WriteItem) -> object:
        """Called by `write_data`, which reports errors itself."""
        return self._planner.resolve_data(write_item)
