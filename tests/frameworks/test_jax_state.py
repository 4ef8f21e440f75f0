"""JAX arrays of any sharding in and out of a store, on eight CPU devices; and what torch saved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Read when JAX makes its devices, so before it is used.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ckpt
import ckpt_jax
import ckpt_torch
from ckpt_client.save.state import encoded_scalar
from tests.client.bits import bits_of
from tests.frameworks.jax_trees import bits


class Moments(NamedTuple):
    """As optax keeps them."""

    count: jax.Array
    mu: dict[str, jax.Array]


@partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["depth"])
@dataclass
class Net:
    """A module with a static field."""

    weight: jax.Array
    depth: int


def mesh(*shape: int) -> Mesh:
    return Mesh(
        np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), ("x", "y")[: len(shape)]
    )


def cut(array: Any, *spec: str | None, over: Mesh) -> jax.Array:
    return jax.device_put(jnp.asarray(array), NamedSharding(over, P(*spec)))


def test_arrays_come_back_under_every_other_sharding(cluster: str) -> None:
    random = np.random.default_rng(1)
    full = random.standard_normal((16, 24)).astype("f4")
    eight, square = mesh(8), mesh(4, 2)
    state = {
        "rows": cut(full, "x", over=eight),
        "tiles": cut(full.astype(jnp.bfloat16), "x", "y", over=square),
        "columns": cut(full, None, "y", over=square),
        "same": cut(full, over=eight),
        "moments": Moments(jnp.int32(3), {"w": cut(full * 2, "y", "x", over=square)}),
        "list": [jnp.zeros(0), 5, "text", (1.5, None)],
        "numpy": random.integers(0, 9, 4),
    }
    with ckpt.open(cluster) as store:
        commit = ckpt_jax.save(store, "jax/cut", 1, state).wait()
        assert commit.bytes < 16 * 24 * (4 * 4 + 2) + 8000, "replicas are stored once"
        one, other = mesh(1), mesh(2, 4)
        like = {
            "rows": cut(full * 0, None, "x", over=eight),
            "tiles": jax.ShapeDtypeStruct(
                (16, 24), jnp.bfloat16, sharding=NamedSharding(other, P("y", "x"))
            ),
            "columns": cut(full * 0, over=one),
            "same": cut(full * 0, "x", "y", over=other),
            "moments": Moments(jnp.int32(0), {"w": jnp.zeros((16, 24))}),
            "list": [jnp.zeros(0), 0, "", (0.0, None)],
            "numpy": np.zeros(4, "i8"),
        }
        loaded = ckpt_jax.load(store, "jax/cut", 1, like)
        assert bits(loaded) == bits(state)
        assert isinstance(loaded["moments"], Moments)
        for key in ("rows", "columns", "same"):
            assert loaded[key].sharding == like[key].sharding  # type: ignore[attr-defined]
        whole = store.load("jax/cut", 1, whole=True)
    assert np.array_equal(whole["moments"]["mu"]["w"], full * 2)  # type: ignore[index]


@pytest.mark.parametrize(
    ("like", "text"),
    [
        (
            {"w": jnp.zeros(4), "n": 1, "none": None, "x": jnp.zeros(1)},
            "the checkpoint has no x; leave it out",
        ),
        (
            {"v": jnp.zeros(4), "n": 1, "none": None},
            "the checkpoint has no v; it has w, which `like` does not name",
        ),
        ({"w": jnp.zeros(5)}, r"w: stored with shape \(4,\), here \(5,\)"),
        ({"w": jnp.zeros(4, jnp.bfloat16)}, "w: stored as <f4, here bfloat16"),
        ({"w": 1.0}, "w: stored as an array"),
        ({"n": jnp.zeros(1)}, "n: stored as a plain value"),
        ({"w": np.zeros(4)}, "w: stored as <f4, here float64"),
        ({"w": jax.random.key(1)}, "w: a typed random key"),
        (
            {"none": jnp.zeros(encoded_scalar(None).shape, jnp.uint8)},
            "none: stored as a plain value",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(cluster: str, like: Any, text: str) -> None:
    with ckpt.open(cluster) as store:
        if store.latest("jax/fits") is None:
            state = {"w": jnp.ones(4), "n": 1, "none": None}
            ckpt_jax.save(store, "jax/fits", 1, state).wait()
        with pytest.raises(ckpt.Refused, match=text):
            ckpt_jax.load(store, "jax/fits", 1, like)


@pytest.mark.parametrize(
    ("like", "text"),
    [
        ({"row": [jnp.zeros(1)]}, "row: 2 items in the checkpoint, 1 here"),
        ({"row": ()}, "row: 2 items in the checkpoint, 0 here"),
        ({"deep": ({"row": [0]},)}, "deep/#0/row: 2 items in the checkpoint, 1 here"),
        (
            {"wide": jax.ShapeDtypeStruct((2,), np.int64)},
            "wide: stored as <i8, and JAX is set to 32 bits here",
        ),
    ],
)
def test_what_would_come_back_cut_is_refused_by_name(cluster: str, like: Any, text: str) -> None:
    state = {
        "row": [jnp.ones(1), jnp.ones(1)],
        "deep": ({"row": [1, 2]},),
        "wide": np.array([1 << 40, 1]),
    }
    with ckpt.open(cluster) as store:
        if store.latest("jax/cuts") is None:
            ckpt_jax.save(store, "jax/cuts", 1, state).wait()
        with pytest.raises(ckpt.Refused, match=text):
            ckpt_jax.load(store, "jax/cuts", 1, like)


def test_weak_types_and_scalars_of_numpy_come_back_as_such(cluster: str) -> None:
    """What is weak yields to the type of what it meets: another result for the same bits."""
    weak = jax.device_put(jnp.broadcast_to(jnp.sin(0.5), (8,)), NamedSharding(mesh(8), P("x")))
    state = {
        "rate": jnp.sin(0.5), "row": weak, "count": jnp.asarray(3), "strong": jnp.float32(2),
        "numpy": [np.float32(1.5), np.int64(1 << 60), np.str_("text"), np.array(2.5)],
    }  # fmt: skip
    assert weak.weak_type
    like = jax.tree.map(lambda leaf: leaf * 0 if isinstance(leaf, jax.Array) else leaf, state)
    like["numpy"] = [np.float32(0), np.int64(0), np.str_(""), np.array(0.0)]
    with ckpt.open(cluster) as store:
        ckpt_jax.save(store, "jax/weak", 1, state).wait()
        loaded = ckpt_jax.load(store, "jax/weak", 1, like)
        structs = jax.eval_shape(lambda: {"rate": jnp.sin(0.5), "strong": jnp.float32(0)})
        from_structs = ckpt_jax.load(store, "jax/weak", 1, structs)
    assert bits_of(loaded["numpy"]) == bits_of(state["numpy"])
    assert [type(one) for one in loaded["numpy"]] == [type(one) for one in state["numpy"]]
    for found in (loaded, from_structs):
        for name in {"rate", "row", "count", "strong"} & set(found):
            here, there = found[name], state[name]
            assert bits(here) == bits(there)
            assert (here.weak_type, here.committed) == (there.weak_type, there.committed), name
    assert loaded["row"].sharding == weak.sharding
    assert (loaded["rate"] * jnp.bfloat16(1)).dtype == jnp.bfloat16


def test_static_fields_are_those_of_like_as_under_orbax(cluster: str, tmp_path: Path) -> None:
    """docs/frameworks.md says so: what is not among a node's parts has no name to be stored by."""
    saved, like = Net(jnp.ones(2), 3), Net(jnp.zeros(2), 7)
    with ckpt.open(cluster) as store:
        ckpt_jax.save(store, "jax/static", 1, saved).wait(60)
        found = ckpt_jax.load(store, "jax/static", 1, like)
    with ocp.StandardCheckpointer() as orbax:
        orbax.save(tmp_path / "orbax", saved)
        orbax.wait_until_finished()
        other = orbax.restore(tmp_path / "orbax", like)
    for net in (found, other):
        assert (bits(net.weight), net.depth) == (bits(saved.weight), like.depth)


def test_what_cannot_be_stored_is_refused_by_path(cluster: str) -> None:
    with ckpt.open(cluster) as store:
        with pytest.raises(ckpt.Refused, match=r"a/key: a typed random key"):
            ckpt_jax.save(store, "jax/bad", 1, {"a": {"key": jax.random.key(1)}})
        with pytest.raises(ckpt.Refused, match=r"f: a builtins.object cannot be stored"):
            ckpt_jax.save(store, "jax/bad", 1, {"f": object()})
        unkeyed = {"a": {None: jnp.ones(2)}}
        with pytest.raises(ckpt.Refused, match=r"^a: a key of type NoneType cannot be stored"):
            ckpt_jax.save(store, "jax/bad", 1, unkeyed)
        ckpt_jax.save(store, "jax/bad", 1, {"a": {"None": jnp.ones(2)}}).wait(60)
        with pytest.raises(ckpt.Refused, match=r"^a: a key of type NoneType cannot be stored"):
            ckpt_jax.load(store, "jax/bad", 1, unkeyed)


def test_a_value_inside_of_jit_is_refused_by_path(cluster: str) -> None:
    with ckpt.open(cluster) as store:

        def step(weight: jax.Array) -> jax.Array:
            ckpt_jax.save(store, "jax/traced", 1, {"m": {"w": weight}})
            return weight

        with pytest.raises(
            ckpt.Refused, match=r"^m/w: a value inside of a function that JAX"
        ) as no:
            jax.jit(step)(jnp.ones(3))
        assert no.value.hint


def test_what_was_offloaded_to_host_memory_comes_back_there(cluster: str) -> None:
    host = NamedSharding(mesh(4, 2), P("x", "y"), memory_kind="pinned_host")
    state = {"m": jax.device_put(jnp.arange(32.0).reshape(8, 4), host)}
    with ckpt.open(cluster) as store:
        for staging in ("copy", "overlap"):
            run = f"jax/offloaded/{staging}"
            ckpt_jax.save(store, run, 1, state, staging=staging).wait()
            loaded = ckpt_jax.load(store, run, 1, state)
            assert bits(loaded) == bits(state)
            assert loaded["m"].sharding == host


def test_a_guard_against_accidental_transfers_lets_saves_and_loads_pass(cluster: str) -> None:
    """On a CPU JAX transfers only what it packs."""
    state = {"packed": cut(jnp.arange(16, dtype=jnp.int4), "x", over=mesh(8)), "w": jnp.ones(3)}
    before = jax.config.jax_transfer_guard  # type: ignore[attr-defined]
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
            np.asarray(jnp.asarray(state["packed"]))
        with ckpt.open(cluster) as store:
            for step, staging in enumerate(("copy", "overlap")):
                ckpt_jax.save(store, "jax/guarded", step, state, staging=staging).wait()
                loaded = ckpt_jax.load(store, "jax/guarded", step, state)
                assert loaded["packed"].sharding == state["packed"].sharding
    finally:
        jax.config.update("jax_transfer_guard", before)
    assert bits(loaded) == bits(state)


def test_the_manager_has_orbaxs_calls(cluster: str) -> None:
    state = {"w": cut(np.arange(32.0), "x", over=mesh(8)), "step": 0}
    with ckpt_jax.CheckpointManager(f"{cluster}/jax/managed", save_interval_steps=2) as manager:
        assert manager.latest_step() is None
        with pytest.raises(ckpt.NotFound):
            manager.restore(None, state)
        saved = [manager.save(step, {"w": state["w"] + step, "step": step}) for step in range(5)]
        assert saved == [True, False, True, False, True]
        assert not manager.save(4, state)
        assert [commit.step for commit in manager.wait_until_finished()] == [0, 2, 4]
        assert (manager.all_steps(), manager.latest_step()) == ([0, 2, 4], 4)
        manager.check_for_errors()
        old = manager.restore(2, state)
        assert bits(old) == bits({"w": np.arange(32.0, dtype="f4") + 2, "step": 2})


def orbaxs(folder: Path, losses: dict[int, float | None], **options: Any) -> tuple[list[int], int]:
    """What Orbax's manager is left with, and which step it calls the best."""
    own = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, **options)
    with ocp.CheckpointManager(folder, options=own) as manager:
        for step, loss in losses.items():
            metrics = None if loss is None else {"loss": loss}
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.ones(4)}), metrics=metrics)
        return sorted(manager.all_steps()), manager.best_step()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("newest", {"max_to_keep": 2}),
        ("all", {"best_fn": lambda metrics: metrics["loss"], "best_mode": "min"}),
        ("least", {"max_to_keep": 2, "best_fn": lambda m: m["loss"], "best_mode": "min"}),
        ("most", {"max_to_keep": 2, "best_fn": lambda metrics: -metrics["loss"]}),
    ],
)
def test_the_manager_keeps_what_orbaxs_keeps(
    cluster: str, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    losses = {1: 0.5, 2: 0.1, 3: None, 4: 0.9, 5: 0.05}
    run = f"{cluster}/jax/orbax/{name}"
    with ckpt_jax.CheckpointManager(run, **options) as manager:
        for step, loss in losses.items():
            metrics = None if loss is None else {"loss": loss}
            assert manager.save(step, {"w": jnp.ones(4)}, metrics=metrics)
            manager.wait_until_finished()
        kept = manager.all_steps(), manager.best_step()
        assert kept == orbaxs(tmp_path / "orbax", losses, **options)
        assert manager.metrics(5) == {"loss": pytest.approx(0.05)}
        with pytest.raises(ckpt.Refused, match="best_fn"):
            manager.save(6, {"w": jnp.ones(4)}, metrics={"best_fn": 1.0})
        manager.delete(5)
        assert 5 not in manager.all_steps()
        with pytest.raises(ckpt.NotFound):
            manager.metrics(5)


def test_the_manager_refuses_what_keeps_nothing() -> None:
    for bad in ({"max_to_keep": 0}, {"best_mode": "lowest"}):
        with pytest.raises(ckpt.Refused):
            ckpt_jax.CheckpointManager("run", **bad)  # type: ignore[arg-type]


def test_the_manager_refuses_nan_by_path_and_goes_on(cluster: str) -> None:
    weight = np.arange(32.0)
    run = f"{cluster}/jax/finite"
    with ckpt_jax.CheckpointManager(run, check_finite=True) as manager:
        bad = cut(np.where(weight == 20, np.nan, weight), "x", over=mesh(8))
        with pytest.raises(ckpt.Refused, match=r"m/w: element \[0\] of \(4,\) is nan"):
            manager.save(1, {"m": {"w": bad}})
        assert manager.save(2, {"m": {"w": cut(weight, "x", over=mesh(8))}})
        manager.wait_until_finished()
        assert manager.all_steps() == [2]


def test_a_donated_buffer_does_not_leak_into_the_save(cluster: str) -> None:
    step = jax.jit(lambda w: w * 2, donate_argnums=0)
    weight = cut(np.ones(100_000, "f4"), "x", over=mesh(8))
    with ckpt.open(cluster) as store:
        saves = []
        for number in range(3):
            saves.append(ckpt_jax.save(store, "jax/donated", number, {"w": weight}))
            weight = step(weight)
        for number, save in enumerate(saves):
            save.wait()
            loaded = store.load("jax/donated", number, whole=True)
            assert np.unique(loaded["w"]).tolist() == [2.0**number]  # type: ignore[index]


def test_what_torch_saved_loads_in_jax_and_numpy_with_the_same_bits(cluster: str) -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Linear(24, 8).bfloat16())
    state: dict[str, object] = {"model": net.state_dict(), "step": 7}
    ckpt_torch.save(state, checkpoint_id=f"{cluster}/jax/torch/7", no_dist=True)
    expected = {
        name: value.view(torch.int16).numpy().view(jnp.bfloat16)
        if value.dtype is torch.bfloat16
        else value.numpy()
        for name, value in net.state_dict().items()
    }
    with ckpt.open(cluster) as store:
        plain = store.load("jax/torch", 7, whole=True, rank=0, world_size=1)
        assert bits_of(plain) == bits_of({"model": expected, "step": 7})
        sharding = NamedSharding(mesh(8), P("x"))
        like = {
            "model": {
                name: jax.ShapeDtypeStruct(
                    value.shape, value.dtype, sharding=sharding if value.ndim == 2 else None
                )
                for name, value in expected.items()
            },
            "step": 0,
        }
        loaded = ckpt_jax.load(store, "jax/torch", 7, like)
    assert bits(loaded) == bits({"model": expected, "step": 7})
    assert loaded["model"]["0.weight"].sharding == sharding  # type: ignore[index]
