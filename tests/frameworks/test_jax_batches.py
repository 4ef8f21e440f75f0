"""Arrays of JAX that come to memory which is not the host's: in batches, by host memory of bounded
size. The device of the tests is the CPU, whose arrays are taken for such.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from math import prod
from typing import Any

# Read when JAX makes its devices, so before it is used.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ckpt
import ckpt_jax
from ckpt_client.load.contents import Contents, Want
from tests.frameworks.jax_trees import bits

BATCH = 64 << 10
COUNT = 24
APART = 64


@pytest.fixture
def store(cluster: str) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


def state() -> dict[str, Any]:
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    return {
        "rows": [jax.device_put(jnp.full((64, 64), float(n)), rows) for n in range(COUNT)],
        "large": jnp.arange(BATCH // 2.0),
        "empty": jnp.zeros((0, 3)),
        "moved": jax.device_put(jnp.float32(3), jax.devices()[5]),
        "numpy": np.arange(1000),
        "step": 7,
    }


@pytest.fixture
def bytes_at_fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The host memory that a load has at each of its reads."""
    found, now = list[int](), [0]
    whole, fill = Contents.new_array, Contents.fill

    def let_go(nbytes: int) -> None:
        now[0] -= nbytes

    def new_array(contents: Contents, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
        # At such an address JAX takes no host memory for an array's own.
        memory = whole(contents, (prod(shape) * kind.itemsize + 2 * APART,), np.dtype(np.uint8))
        start = (APART // 2 - memory.ctypes.data) % APART
        array = memory[start : start + prod(shape) * kind.itemsize].view(kind).reshape(shape)
        now[0] += array.nbytes
        weakref.finalize(array, let_go, array.nbytes)
        return array

    def noted(contents: Contents, wants: list[Want]) -> None:
        gc.collect()  # What JAX was given it lets go at some later call.
        found.append(now[0])
        fill(contents, wants)

    monkeypatch.setattr(Contents, "new_array", new_array)
    monkeypatch.setattr(Contents, "fill", noted)
    return found


@pytest.mark.parametrize("apart", [False, True])
def test_a_state_passes_through_two_batches_of_host_memory(
    store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, bytes_at_fills: list[int], apart: bool
) -> None:
    if apart:
        monkeypatch.setattr("ckpt_jax.arrays.is_apart", lambda sharding: True)
    monkeypatch.setattr("ckpt_jax.state.BATCH_BYTES", BATCH)
    wanted = state()
    run = f"batches/{apart}"
    ckpt_jax.save(store, run, 1, wanted).wait()
    found = ckpt_jax.load(store, run, 1, wanted)
    assert bits(found) == bits(wanted)
    assert found["moved"].sharding == wanted["moved"].sharding
    most = BATCH + wanted["large"].nbytes + wanted["numpy"].nbytes
    assert (max(bytes_at_fills) <= most) == apart, bytes_at_fills
