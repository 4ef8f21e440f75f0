"""What a load reads, gathered by the payload that holds it."""

from __future__ import annotations

import numpy as np

from ckpt.base.ids import Rank
from ckpt.plan.reads import PayloadKey
from ckpt.transfer.read_set import ReadSet


def test_ranges_of_one_payload_are_read_in_one_go() -> None:
    wanted = ReadSet()
    memory = np.zeros(30, np.uint8)
    wanted.add_range(Rank(2), 100, memory[:10])
    wanted.add_range(Rank(2), 1 << 20, memory[10:])
    wanted.add_range(Rank(5), 0, memory[:1])
    ranges = {key: found.ranges().tolist() for key, found in wanted.landings.items()}
    assert ranges == {
        PayloadKey(None, Rank(2)): [[100, 110], [1 << 20, (1 << 20) + 20]],
        PayloadKey(None, Rank(5)): [[0, 1]],
    }
