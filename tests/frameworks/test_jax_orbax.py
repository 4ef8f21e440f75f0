"""Lines as Orbax's documents have them, run with Orbax and with ckpt_jax: the same comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

import ckpt
import ckpt_jax
from tests.frameworks.jax_trees import bits


def made() -> dict[str, Any]:
    """A state. Not made by an import: other files say how many devices JAX has."""
    return {
        "params": {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(3, jnp.bfloat16)},
        "step": 7,
        "opt": [jnp.zeros(2), jnp.ones(2)],
    }


def like(state: Any) -> Any:
    def asked(leaf: Any) -> Any:
        array = isinstance(leaf, jax.Array)
        return ocp.utils.to_shape_dtype_struct(leaf) if array else leaf

    return jax.tree.map(asked, state)


def managers(cluster: str, folder: Path, run: str, **options: Any) -> list[tuple[Any, Any]]:
    """(manager, where its arguments are) of Orbax and of ours."""
    own = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, **options)
    orbax = ocp.CheckpointManager(folder, options=own)
    ours = ckpt_jax.CheckpointManager(f"{cluster}/orbax/{run}", **options)
    return [(orbax, ocp.args), (ours, ckpt_jax.args)]


def test_a_state_is_saved_restored_and_described_as_orbax_does(
    cluster: str, tmp_path: Path
) -> None:
    state = made()
    for manager, args in managers(cluster, tmp_path, "standard"):
        with manager:
            assert manager.save(1, args=args.StandardSave(state))
            manager.wait_until_finished()
            found = manager.restore(1, args=args.StandardRestore(like(state)))
            assert bits(found) == bits(state)
            assert isinstance(found["params"]["w"], jax.Array)
            newest = manager.restore(manager.latest_step(), args=args.StandardRestore())
            assert bits(newest) == bits(state)
            described = manager.item_metadata(1)
            assert described["params"]["w"].shape == (3, 4)
            assert described["params"]["b"].dtype == jnp.bfloat16
            assert [each.shape for each in described["opt"]] == [(2,), (2,)]


def test_what_a_step_is_said_to_hold_restores_it(cluster: str) -> None:
    state = made()
    with ckpt_jax.CheckpointManager(f"{cluster}/orbax/described") as manager:
        manager.save(1, {**state, "name": "gpt"})
        manager.wait_until_finished()
        described: Any = manager.item_metadata(1)
        assert (described["name"], described["step"]) == ("gpt", 7)
        found: Any = manager.restore(1, args=ckpt_jax.args.StandardRestore(described))
        assert bits(found["params"]) == bits(state["params"])
        with pytest.raises(ckpt.NotFound):
            manager.item_metadata(2)


def test_items_of_a_composite_are_saved_together_and_restored_by_name(
    cluster: str, tmp_path: Path
) -> None:
    state, more = made(), {"epoch": 3}
    for manager, args in managers(cluster, tmp_path, "composite"):
        with manager:
            items = {"state": args.StandardSave(state), "data": args.StandardSave(more)}
            manager.save(1, args=args.Composite(**items))
            manager.wait_until_finished()
            asked = args.Composite(
                state=args.StandardRestore(like(state)), data=args.StandardRestore(more)
            )
            found = manager.restore(1, args=asked)
            assert bits(found.state) == bits(state)
            assert bits(found["data"]) == bits(more)
            alone = manager.restore(1, args=args.Composite(data=args.StandardRestore(more)))
            assert list(alone.keys()) == ["data"]
            assert bits(alone.data) == bits(more)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("period", {"max_to_keep": 2, "keep_period": 4}),
        ("period-alone", {"keep_period": 4}),
        ("period-best", {
            "max_to_keep": 1, "keep_period": 4, "best_fn": lambda told: told["loss"],
            "best_mode": "min",
        }),
    ],
)  # fmt: skip
def test_steps_that_keep_period_divides_stay_as_with_orbax(
    cluster: str, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    kept, state = [], {"w": jnp.ones(4)}
    for manager, args in managers(cluster, tmp_path, name, **options):
        with manager:
            for step, loss in enumerate([0.5, 0.1, 0.4, 0.3, 0.6, 0.7, 0.2, 0.8, 0.9], start=1):
                manager.save(step, args=args.StandardSave(state), metrics={"loss": loss})
                manager.wait_until_finished()
            kept.append(sorted(manager.all_steps()))
    if "best" in name:
        kept[0] = sorted({*kept[0], 9})  # The store keeps the newest step whatever rules say.
    assert kept[0] == kept[1]


def test_what_ckpt_has_not_is_refused_with_what_to_write(cluster: str) -> None:
    args, state = cast(Any, ckpt_jax.args), made()
    with pytest.raises(AttributeError, match=r"no JsonSave: write StandardSave\(item\)"):
        args.JsonSave({"a": 1})
    with pytest.raises(AttributeError, match="no Nonsense"):
        args.Nonsense  # noqa: B018
    assert not hasattr(args, "PyTreeRestore")
    for bad in (
        {"fallback_sharding": object()}, {"strict": False}, {"support_layout": True},
    ):  # fmt: skip
        with pytest.raises(ckpt.Refused) as refused:
            args.StandardRestore(like(state), **bad)
        assert refused.value.hint
    for bad in ({"save_args": {}}, {"custom_metadata": {}}):
        with pytest.raises(ckpt.Refused) as refused:
            args.StandardSave(state, **bad)
        assert refused.value.hint
    with ckpt_jax.CheckpointManager(f"{cluster}/orbax/refused") as manager:
        strange: Any = ocp.args.StandardSave(state)
        with pytest.raises(ckpt.Refused, match="StandardSaveArgs") as refused:
            manager.save(1, args=strange)
        assert "args=ckpt_jax.args.StandardSave" in refused.value.hint
        with pytest.raises(ckpt.Refused, match="without args="):
            manager.save(1, args.StandardSave(state))
        with pytest.raises(ckpt.Refused, match="one of them"):
            manager.save(1, state, args=args.StandardSave(state))
        with pytest.raises(ckpt.Refused, match="does not say what w is like"):
            manager.restore(1, args=args.Composite(w=args.StandardRestore()))
        assert manager.all_steps() == []
    with pytest.raises(ckpt.Refused, match="keep_period"):
        ckpt_jax.CheckpointManager("run", keep_period=0)
    rules = {"max_to_keep": 1, "keep_period": 2, "best_fn": lambda told: told["loss"]}
    run = f"{cluster}/orbax/unjudged"
    with (
        ckpt_jax.CheckpointManager(run, **rules) as manager,
        pytest.raises(ckpt.Refused, match="a save without metrics"),
    ):
        manager.save(1, state)
