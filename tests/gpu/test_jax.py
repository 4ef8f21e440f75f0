"""States of JAX on an accelerator: whole, copied while steps go on that take their memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ckpt

# Read when JAX makes its devices: torch needs room on them, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

jax: Any = pytest.importorskip("jax")
ckpt_jax: Any = pytest.importorskip("ckpt_jax")
trees: Any = pytest.importorskip("tests.frameworks.jax_trees")
bits, jnp, like = trees.bits, jax.numpy, trees.like

WAIT_S = 60.0
both = pytest.mark.parametrize("staging", ["copy", "overlap"])


@pytest.fixture
def store(url: str) -> Iterator[ckpt.Store]:
    if jax.default_backend() == "cpu":
        pytest.skip("JAX knows no accelerator")
    with ckpt.open(url) as found:
        yield found


def made(seed: int) -> dict[str, Any]:
    """Every width of a dtype; large ones and none; all of it on the device."""
    random = np.random.default_rng(seed)
    full = random.standard_normal((512, 1024)).astype("f4")
    return {
        "large": jnp.asarray(random.standard_normal((40, 1024, 1024)), jnp.float32),
        "half": jnp.asarray(full, jnp.bfloat16),
        "eighth": jnp.asarray(full, jnp.float8_e4m3fn),
        "nibbles": jnp.asarray(random.integers(-8, 8, 1001), jnp.int4),
        "flags": jnp.asarray(full > 0),
        "complex": jnp.asarray(full + 1j, jnp.complex64),
        "turned": jnp.asarray(full).T,
        "scalar": jnp.float32(seed),
        "none": jnp.zeros((0, 4)),
        "key": jax.random.key_data(jax.random.key(seed)),
        "moments": (jnp.int32(seed), {"mu": jnp.asarray(full * 2), "frozen": None}),
        "step": seed,
    }


@both
def test_every_bit_comes_back_onto_the_device(store: ckpt.Store, staging: str) -> None:
    run = f"jax-{staging}"
    for step in (1, 2):  # The long way, and the layout that is known.
        ckpt_jax.save(store, run, step, made(step), staging=staging).wait(WAIT_S)
        found = ckpt_jax.load(store, run, step, like(made(step)))
        assert bits(found) == bits(made(step))
        assert found["large"].sharding == made(step)["large"].sharding


def test_steps_that_take_the_state_s_memory_run_beside_its_sending(store: ckpt.Store) -> None:
    step_on = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 3 - 1, tree), donate_argnums=0)
    arrays = {"w": jnp.ones((64, 1024, 1024)), "b": jnp.arange(5.0), "n": jnp.int32(1)}
    wanted, saves = [], []
    for step in range(4):
        wanted.append(jax.tree.map(np.array, arrays))
        save = ckpt_jax.save(store, "jax-donates", step, arrays, staging="overlap")
        assert save.staged.wait(WAIT_S)
        before, arrays = arrays, step_on(arrays)
        assert before["w"].is_deleted()
        saves.append(save)
    for step, save in enumerate(saves):
        save.wait(WAIT_S)
        assert bits(store.load("jax-donates", step, whole=True)) == bits(wanted[step])


def test_an_array_that_a_step_takes_too_early_is_saved_by_nobody(store: ckpt.Store) -> None:
    state = made(1)
    save = ckpt_jax.save(store, "jax-gone", 1, state, staging="overlap")
    # Its copy comes after the large one's, which takes longer than this.
    state["moments"][1]["mu"].delete()
    with pytest.raises(ckpt.Aborted, match=r"^moments/#1/mu was donated or deleted before it"):
        save.wait(WAIT_S)
    assert store.steps("jax-gone") == []


def test_a_save_is_of_the_state_at_its_call_while_that_is_computed(store: ckpt.Store) -> None:
    """The call returns before the device has done what it was asked for."""
    grow = jax.jit(lambda one: jax.lax.fori_loop(0, 200, lambda _, x: x @ x * 0 + x + 1, one))
    state = {"w": grow(jnp.zeros((2048, 2048)))}
    save = ckpt_jax.save(store, "jax-late", 1, state, staging="overlap")
    save.wait(WAIT_S)
    loaded: Any = store.load("jax-late", 1, whole=True)
    assert (loaded["w"] == 200).all()
