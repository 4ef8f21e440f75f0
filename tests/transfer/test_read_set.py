"""What a load reads, gathered by the payload that holds it."""

from __future__ import annotations

import numpy as np
import pytest

from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor, Location
from ckpt.format.table import Meaning
from ckpt.plan.reads import PayloadKey
from ckpt.transfer.read_set import ReadSet

SIZE = 100


def tensor_of(whole: int) -> IndexTensor:
    """So many bytes, of which the first SIZE lie in one run."""
    box = IndexBox(Rank(0), (0,), (SIZE,), (Location(Rank(3), 0, 64, SIZE),))
    return IndexTensor("w", Meaning.SHARD, "|u1", (whole,), (box,))


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


def test_a_box_that_lies_in_one_run_is_read_once() -> None:
    wanted, array = ReadSet(), np.zeros(SIZE, np.uint8)
    tensor = tensor_of(SIZE)
    wanted.add_box(tensor, tensor.boxes, (0,), array)
    ((key, found),) = wanted.landings.items()
    assert (key, found.wanted_bytes) == (PayloadKey(None, Rank(3)), SIZE)
    assert found.ranges().tolist() == [[64, 64 + SIZE]]


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("replica", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_what_others_read_too_is_kept_apart_where_ranks_share(
    sharing: bool, replica: bool, whole: bool
) -> None:
    """Else nobody would read it."""
    wanted, array = ReadSet(sharing=sharing), np.zeros(SIZE, np.uint8)
    tensor = tensor_of(SIZE if whole else 2 * SIZE)
    wanted.add_box(tensor, tensor.boxes, (0,), array, replica=replica)
    is_shared = sharing and (replica or whole)
    assert (bool(wanted.shared), bool(wanted.landings)) == (is_shared, not is_shared)
