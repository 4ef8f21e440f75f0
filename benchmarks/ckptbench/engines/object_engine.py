"""The engine of both object stores: one object for each rank, its arena as it lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptbench.engines.base import KEEP_STEPS, Done, EnginePlan, LoadedState
from ckptbench.workload import (
    State,
    TensorRange,
    arena_offsets,
    array_bytes,
    empty_state,
    overlaps,
    rank_boxes,
)


class Objects(Protocol):
    """A place of whole objects, read in ranges."""

    def put(self, name: str, data: memoryview) -> None:
        """The object is in the store when this returns."""

    def get(self, name: str, into: memoryview, offset: int) -> None:
        """Fill `into` with the object's bytes from `offset`."""

    def remove(self, names: Sequence[str]) -> None:
        """Those that are there."""

    def names(self) -> list[str]:
        """Of everything below the place."""


class ObjectEngine:
    """I put the arena, and get it back or parts of it. The save is synchronous."""

    def __init__(self, plan: EnginePlan, objects: Objects) -> None:
        self._plan = plan
        self._objects = objects
        #: Names of the objects that lie there, oldest first.
        self._saved: list[str] = []

    def save(self, step: int, state: State) -> None:
        name = self._name(step, self._plan.rank)
        self._objects.put(name, state.memory)
        self._saved.append(name)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def tidy(self) -> None:
        old, self._saved = self._saved[:-KEEP_STEPS], self._saved[-KEEP_STEPS:]
        self._objects.remove(old)

    def load(self, step: int, rank: int) -> LoadedState:
        state = empty_state(self._plan.state, rank_boxes(self._plan.state, rank))
        self._objects.get(self._name(step, rank), state.memory, 0)
        return LoadedState(state.arrays, "store")

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        plan = self._plan.state
        state = empty_state(plan, boxes)
        places = [self._places(rank) for rank in range(plan.world_size)]
        size = plan.element_bytes
        for box in boxes:
            into = array_bytes(state.arrays[box.name])
            for rank, first, count, skipped in overlaps(plan, box):
                part = into[first * size : (first + count) * size]
                offset = places[rank][box.name] + skipped * size
                self._objects.get(self._name(step, rank), part, offset)
        return LoadedState(state.arrays, "store")

    def close(self) -> None:
        """Nothing is open between calls."""

    def _name(self, step: int, rank: int) -> str:
        return f"step-{step}/rank-{rank}.bin"

    def _places(self, rank: int) -> dict[str, int]:
        boxes = rank_boxes(self._plan.state, rank)
        offsets, _ = arena_offsets(self._plan.state, boxes)
        return {box.name: offset for box, offset in zip(boxes, offsets, strict=True)}
