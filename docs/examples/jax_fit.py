"""JAX over eight devices, saved and restored through Orbax's calls.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
        python jax_fit.py --store ckpt+local:///scratch/burst --name line --steps 6

Started again, it goes on from the newest committed step.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ckpt_jax


@jax.jit
def step(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def loss(weight: jax.Array) -> jax.Array:
        rows = jax.random.normal(jax.random.fold_in(jax.random.key(0), state["count"]), (64, 16))
        return jnp.mean((rows @ weight - rows[:, :8]) ** 2)

    gradient = jax.grad(loss)(state["weight"])
    moment = 0.9 * state["moment"] + gradient
    return {
        "weight": state["weight"] - 0.1 * moment,
        "moment": moment,
        "count": state["count"] + 1,
    }


def main() -> None:
    options = parse()
    mesh = Mesh(np.array(jax.devices()), ("model",))
    rows = NamedSharding(mesh, P(None, "model"))
    state = {
        "weight": jax.device_put(jnp.ones((16, 8)), rows),
        "moment": jax.device_put(jnp.zeros((16, 8)), rows),
        "count": jnp.int32(0),
    }
    run = f"{options.store}/{options.name}"
    # A save is copied beside the next steps, which donate nothing.
    with ckpt_jax.CheckpointManager(run, staging="overlap") as manager:
        newest = manager.latest_step()
        if newest is not None:
            state = manager.restore(newest, state)
        while int(state["count"]) < options.steps:
            state = step(state)
            manager.save(int(state["count"]), state)
    total = np.abs(np.asarray(state["weight"], "f8")).sum()
    print(f"from {newest} to {int(state['count'])}: {float(total).hex()}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
