"""A state of which all ranks hold all: its meaning is said once, and is that of each leaf."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from ckpt_client.save.packing import PackingPlan, PackingPlanner
from ckpt_torch.exchange import Box, Holders
from ckpt_torch.staging.parts import StateParts, parts_of

WORLD = 2
EVERYONE = tuple(range(WORLD))


def state() -> dict[str, object]:
    tied = torch.arange(6.0).reshape(2, 3)
    return {
        "model": {"b.weight": tied, "a/b": torch.ones(3, dtype=torch.bfloat16), "again": tied},
        "numpy": [np.arange(4), np.float32(2.5), np.zeros((0, 3))],
        "plain": (1, None, "x", 2.5, {"deep": True}),
        "odd": {1, 2},
        "empty": {},
        7: torch.tensor(3),
    }


def laid_out(parts: StateParts, holders: Holders, rank: int) -> PackingPlan:
    planner = PackingPlanner()
    lay_out = partial(planner.plan, rank=rank, world_size=WORLD, keep_form=False)
    packing, _ = parts.laid_out(lay_out, holders)
    return packing


def holders_of(parts: StateParts, *others: Box) -> Holders:
    """All ranks hold these, and only the last one what others there are."""
    shape = parts.shape()
    boxes = dict.fromkeys(shape.boxes, EVERYONE) | dict.fromkeys(others, (WORLD - 1,))
    return Holders(boxes, dict.fromkeys(shape.plain, EVERYONE), WORLD)


@pytest.mark.parametrize("rank", EVERYONE)
def test_what_is_said_once_for_all_is_what_is_said_of_each(rank: int) -> None:
    mine = state()
    once, each = parts_of(mine, True), parts_of(mine, True)
    common, partly = holders_of(once), holders_of(each, ("zz", (0,), (4,)))
    assert common.all_common
    assert not partly.all_common
    one, other = laid_out(once, common, rank), laid_out(each, partly, rank)
    assert one.layout.declaration == other.layout.declaration
    assert one.document == other.document
    assert one.layout.names == other.layout.names
    for mine_array, theirs in zip(one.arrays, other.arrays, strict=True):
        assert isinstance(mine_array, torch.Tensor) == isinstance(theirs, torch.Tensor)
        if isinstance(mine_array, torch.Tensor):
            assert mine_array is theirs


def test_a_value_that_one_rank_lacks_is_not_said_for_all() -> None:
    parts = parts_of({"a": torch.ones(2), "b": 1}, allow_pickle=False)
    shape = parts.shape()
    boxes, mine = dict.fromkeys(shape.boxes, EVERYONE), dict.fromkeys(shape.plain, (0,))
    own = laid_out(parts, Holders(boxes, mine, WORLD), 0)
    both = laid_out(parts_of({"a": torch.ones(2), "b": 1}, False), holders_of(parts), 0)
    names = own.layout.names, both.layout.names
    assert names == (("a",), ("a", "b")), "what all have is a small tensor besides, to be compared"
