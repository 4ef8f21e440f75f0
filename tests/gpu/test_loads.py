"""Loads into an accelerator: through rings that are smaller than a tensor, and the first part
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ckpt
from tests.gpu.finding import accelerator
from tests.gpu.test_saves import MIB, check_equal, every_kind, like, of_kind

torch: Any = pytest.importorskip("torch")
ckpt_torch: Any = pytest.importorskip("ckpt_torch")


@pytest.fixture
def store(url: str) -> Iterator[ckpt.Store]:
    with ckpt.open(url) as found:
        yield found


@pytest.mark.parametrize("mib", [1, 5])
def test_every_bit_comes_in_through_a_small_ring(store: ckpt.Store, mib: int) -> None:
    state, name, ring_bytes = every_kind(4), f"ring-{mib}/1", mib * MIB
    ckpt_torch.save(state, checkpoint_id=name, store=store)
    found = like(state)
    ckpt_torch.load(found, checkpoint_id=name, store=store, ring_bytes=ring_bytes)
    check_equal(found, state)


def test_a_part_can_be_computed_with_before_the_rest_is_there(store: ckpt.Store) -> None:
    model = {f"w{n}": of_kind("int64", MIB, n) for n in range(4)}
    moments = {f"m{n}": of_kind("float32", 8 * MIB, n) for n in range(4)}
    ckpt_torch.save({"moments": moments, "model": model}, checkpoint_id="parts/1", store=store)
    found = {"moments": like(moments), "model": like(model)}
    # Of the caller's stream: it must not come after the bytes.
    for tensor in found["model"].values():
        tensor.add_(1)
    loading = ckpt_torch.async_load(found, order=["model"], checkpoint_id="parts/1", store=store)
    loading.prefixes["model"].result()
    sums = [tensor.sum() for tensor in found["model"].values()]
    assert loading.result() == 1
    expected = [tensor.sum() for tensor in model.values()]
    assert [int(one) for one in sums] == [int(one) for one in expected]
    check_equal(found["model"], model)
    check_equal(found["moments"], moments)


def test_the_ring_is_refused_where_it_holds_nothing(store: ckpt.Store) -> None:
    state = {"w": torch.ones(3, device=accelerator())}
    ckpt_torch.save(state, checkpoint_id="tiny/1", store=store)
    with pytest.raises(ckpt.Refused, match="a ring of 64 bytes"):
        ckpt_torch.load(state, checkpoint_id="tiny/1", store=store, ring_bytes=64)
