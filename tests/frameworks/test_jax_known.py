"""A JAX state of the form that was saved last is only collected; another goes the long way. What
comes back is the same either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from ckpt_jax.known import recall
from tests.client.bits import bits_of

State = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclass
class Part:
    """A node of a user's."""

    weight: Any
    average: Any = None


@jax.tree_util.register_pytree_with_keys_class
class Strict:
    """One that takes nothing but arrays."""

    def __init__(self, weight: jax.Array) -> None:
        self.weight = weight

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, jax.Array]], None]:
        return [(jax.tree_util.GetAttrKey("weight"), self.weight)], None

    @classmethod
    def tree_unflatten(cls, _: None, children: list[jax.Array]) -> Strict:
        (weight,) = children
        assert weight.shape == (3,)
        return cls(weight)


@jax.tree_util.register_pytree_with_keys_class
class Renaming:
    """One that gives what is beside it another name when it is looked at, as a thread might."""

    def __init__(self, weight: Any, beside: State) -> None:
        self.weight = weight
        self.beside = beside

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        if "early" in self.beside:
            self.beside["late"] = self.beside.pop("early")
        return [(jax.tree_util.GetAttrKey("weight"), self.weight)], None

    @classmethod
    def tree_unflatten(cls, _: None, children: list[Any]) -> Renaming:
        return cls(children[0], {})


@pytest.fixture
def store(cluster: str) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


def cut(array: Any, *spec: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    return jax.device_put(jnp.asarray(array), NamedSharding(mesh, P(*spec)))


def made(seed: int) -> State:
    """Not sorted by key; values differ between seeds, the form does not."""
    full = np.arange(32.0, dtype="f4").reshape(8, 4) + seed
    return {
        "z": Part(cut(full, "x", "y"), None),
        "same": cut(full),
        "opt": [jnp.int32(seed), (cut(full * 2, None, "y"), None)],
        "at": seed,
        "name": f"run {seed}",
        "rng": np.arange(9) * seed,
        "twin": jnp.full(3, seed),
        "other twin": jnp.full(3, -seed),
        "a": jnp.zeros(0),
    }


def bits(tree: object) -> object:
    return [bits_of(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]


def check_loads(store: ckpt.Store, run: str, step: int, state: State) -> None:
    loaded = ckpt_jax.load(store, run, step, state)
    assert bits(loaded) == bits(state)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)


def is_known(store: ckpt.Store, state: State) -> bool:
    known = recall(store, 0, 1)
    return known is not None and known.packing(state) is not None


def test_a_state_of_the_same_form_is_known(store: ckpt.Store) -> None:
    assert not is_known(store, made(0))
    for step in range(3):
        ckpt_jax.save(store, "jax/known", step, made(step)).wait()
        assert is_known(store, made(step + 1))
    turned = dict(reversed(made(7).items()))
    assert is_known(store, turned)
    ckpt_jax.save(store, "jax/known", 7, turned, staging="overlap").wait()
    check_loads(store, "jax/known", 7, made(7))
    for step in range(3):
        check_loads(store, "jax/known", step, made(step))


def changed(key: str, value: Callable[[], object]) -> Callable[[], State]:
    return lambda: {**made(1), key: value()}


@pytest.mark.parametrize(
    "other",
    [
        changed("a", lambda: jnp.ones(3)),
        changed("a", lambda: jnp.zeros(0, jnp.int8)),
        changed("a", lambda: np.zeros(0, "f4")),
        changed("a", lambda: None),
        changed("same", lambda: cut(np.ones((8, 4), "f4"), "y")),
        changed("same", lambda: jnp.ones((8, 4))),
        changed("at", lambda: "text"),
        changed("at", lambda: 1.5),
        changed("rng", lambda: np.arange(9.0)),
        changed("rng", lambda: np.arange(10)),
        changed("name", lambda: "longer"),
        changed("name", lambda: "long" * 3000),
        changed("opt", lambda: [jnp.int32(1), [cut(np.ones((8, 4), "f4")), None]]),
        changed("z", lambda: Part(None, cut(np.ones((8, 4), "f4"), "x", "y"))),
        changed("more", lambda: 1),
    ],
)
def test_a_state_of_another_form_goes_the_long_way(
    store: ckpt.Store, other: Callable[[], State]
) -> None:
    run = f"jax/other/{os.urandom(4).hex()}"
    ckpt_jax.save(store, run, 1, made(1)).wait()
    assert not is_known(store, other())
    ckpt_jax.save(store, run, 2, other()).wait()
    ckpt_jax.save(store, run, 3, other(), staging="overlap").wait()
    ckpt_jax.save(store, run, 4, made(4)).wait()
    check_loads(store, run, 1, made(1))
    check_loads(store, run, 2, other())
    check_loads(store, run, 3, other())
    check_loads(store, run, 4, made(4))


def test_an_array_that_is_gone_is_named_where_the_form_is_known(store: ckpt.Store) -> None:
    ckpt_jax.save(store, "jax/known/gone", 1, made(1)).wait()
    state, again = made(2), made(2)
    state["z"].weight.delete()
    again["twin"].delete()
    with pytest.raises(ckpt.Refused, match=r"^z/weight: it was donated or deleted"):
        ckpt_jax.save(store, "jax/known/gone", 2, state)
    with pytest.raises(ckpt.Refused, match=r"^twin: it was donated or deleted"):
        ckpt_jax.save(store, "jax/known/gone", 2, again)
    ckpt_jax.save(store, "jax/known/gone", 2, made(2)).wait()
    check_loads(store, "jax/known/gone", 2, made(2))


def test_text_that_cannot_be_stored_is_named_where_the_form_is_known(store: ckpt.Store) -> None:
    ckpt_jax.save(store, "jax/known/text", 1, made(1)).wait()
    with pytest.raises(ckpt.Refused, match=r"^name: the text is not valid Unicode"):
        ckpt_jax.save(store, "jax/known/text", 2, {**made(1), "name": "\ud800"})


def test_keys_that_jax_cannot_sort_are_saved_the_long_way(store: ckpt.Store) -> None:
    ckpt_jax.save(store, "jax/unsorted", 1, made(1)).wait()
    for step in (2, 3):
        ckpt_jax.save(store, "jax/unsorted", step, {1: jnp.ones(3) * step, "a": step}).wait()
        whole: Any = store.load("jax/unsorted", step, whole=True)
        assert (whole[1].tolist(), whole["a"]) == ([step] * 3, step)


def test_nodes_that_take_nothing_but_arrays_are_saved_the_long_way(store: ckpt.Store) -> None:
    for step in (1, 2):
        state = {"part": Strict(jnp.ones(3) * step), "n": step}
        ckpt_jax.save(store, "jax/strict", step, state).wait()
        assert not is_known(store, state)
        check_loads(store, "jax/strict", step, state)


def test_a_state_that_was_prepared_is_known_and_has_its_memory(cluster: str) -> None:
    with ckpt.open(cluster, launch="prepared, jax") as store:
        state = made(1)
        assert ckpt_jax.prepare(store, state).result(60) is None
        assert is_known(store, made(2))
        assert store.steps("prepared") == []
        manager = ckpt_jax.CheckpointManager("prepared", store=store)
        assert manager.prepare(made(2)).result(60) is None
        commit = ckpt_jax.save(store, "prepared", 1, made(2)).wait(60)
        assert commit.fault_in_s == 0
        check_loads(store, "prepared", 1, made(2))
        gone = made(3)
        ckpt_jax.prepare(store, gone).result(60)
        gone["twin"].delete()
        with pytest.raises(ckpt.Refused, match="donated or deleted"):
            ckpt_jax.prepare(store, gone)


def test_a_name_that_changes_in_a_save_is_not_the_next_one_s(store: ckpt.Store) -> None:
    state: State = {"beside": {"early": jnp.zeros(3)}}
    state["node"] = Renaming(jnp.ones(3), state["beside"])
    for step in (1, 2, 3):
        ckpt_jax.save(store, "jax-renaming", step, state).wait()
        names = list(store.load("jax-renaming", step)["beside"])
        assert step == 1 or names == ["late"]
        assert list(state["beside"]) == ["late"]
