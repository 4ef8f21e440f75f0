"""Trees of JAX's arrays in tests. Whoever imports it has said before on which devices JAX runs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.client.bits import bits_of


def like(state: object) -> Any:
    """The same without values, which a load is to fill."""

    def empty(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        return leaf

    return jax.tree.map(empty, state)


def bits(tree: object) -> object:
    """Equal for the same values, bit by bit."""
    return bits_of(jax.tree.map(np.asarray, tree))
