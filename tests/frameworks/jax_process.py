"""One of several JAX processes.

    python jax_process.py URL RANK COUNT PORT [save|load|number|overlap]...

It does one after the other, and ends with 0 when all held. Two save, overlap, or load by number;
any number loads. Each has four devices.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ckpt
import ckpt_jax
from ckpt_jax.copying import JaxCopier
from tests.frameworks.counters import given_bytes
from tests.waiting import wait_until

DEVICES = 4
"""Of each process."""
SAVERS = 2
RUN = "jax/processes"
NUMBERED = "jax/numbered"
OVERLAPPED = "jax/overlapped"
LARGE_BYTES = 32 << 20
"""Of what replicas load together."""
TIMEOUT_S = 120.0
HANGS_S = 240.0
"""Then it says where it stands: it will be killed."""
FULL = np.arange(128 * 96, dtype="f4").reshape(128, 96)
LARGE = np.arange(LARGE_BYTES // 4, dtype="i4")
PLAIN = {"n": 5, "list": ["a", None, 1.5]}


def cut(factor: float, *spec: str | None) -> jax.Array:
    """A global array over the devices of all processes; FULL times the factor."""
    mesh = Mesh(np.array(jax.devices()).reshape(-1, DEVICES), ("x", "y"))
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(FULL.shape, sharding, lambda part: FULL[part] * factor)


def cut_large(factor: int) -> jax.Array:
    """LARGE times the factor: in four parts, each of them on a device of every process."""
    mesh = Mesh(np.array(jax.devices()).reshape(-1, DEVICES), ("x", "y"))
    sharding = NamedSharding(mesh, P("y"))
    return jax.make_array_from_callback(LARGE.shape, sharding, lambda part: LARGE[part] * factor)


def state() -> dict[str, Any]:
    return {
        "rows": cut(1, "x"),
        "tiles": cut(2, "x", "y"),
        "columns": cut(3, None, "y"),  # Process 0 holds all of it, and stores it.
        "same": cut(4),
        "local": jnp.int32(7),
        "numpy": np.arange(4),
        "large": cut_large(1),
        **PLAIN,
    }


def like() -> dict[str, Any]:
    """Cut another way."""
    return {
        "rows": cut(0, None, "x"),
        "tiles": cut(0, "y"),
        "columns": cut(0, "x", "y"),
        "same": cut(0, "y"),
        "local": jnp.int32(0),
        "numpy": np.zeros(4, "i8"),
        "large": cut_large(0),
        "n": 0,
        "list": ["", None, 0.0],
    }


def check(found: dict[str, Any]) -> None:
    for factor, name in enumerate(("rows", "tiles", "columns", "same"), start=1):
        for shard in found[name].addressable_shards:
            assert (np.asarray(shard.data) == FULL[shard.index] * factor).all(), name
    for shard in found["large"].addressable_shards:
        assert (np.asarray(shard.data) == LARGE[shard.index]).all()
    assert int(found["local"]) == 7
    assert found["numpy"].tolist() == [0, 1, 2, 3]
    assert {name: found[name] for name in PLAIN} == PLAIN


def save(url: str, rank: int) -> None:
    with ckpt.open(url) as store:
        bad = {**state(), "bad": {1, 2}} if rank == 1 else state()
        try:
            ckpt_jax.save(store, RUN, 1, bad).wait(TIMEOUT_S)
        except ckpt.CkptError as error:
            assert "bad: a builtins.set cannot be stored" in str(error), error  # noqa: PT017
        else:
            raise AssertionError("a step that one process refuses has no commit")
    manager = ckpt_jax.CheckpointManager(f"{url}/{RUN}")
    go_on_behind_a_refusal(ckpt_jax.CheckpointManager(f"{url}/{RUN}/on", check_finite=True), rank)
    manager.save(2, state())
    (commit,) = manager.wait_until_finished()
    assert commit.world_size == SAVERS
    assert commit.bytes < 5 * FULL.nbytes + LARGE_BYTES, "replicas are stored once"


def go_on_behind_a_refusal(manager: ckpt_jax.CheckpointManager, rank: int) -> None:
    """One process refuses a step, another hears of it in a later save: all save each step behind
    it all the same.
    """
    told = []
    for step in range(1, 5):
        try:
            manager.save(step, {"rows": cut(np.nan if step == 1 and rank == 1 else step, "x")})
        except ckpt.CkptError as error:
            told.append(str(error))
        if step > 1:
            wait_until(partial(committed, manager, step), f"step {step} is committed", TIMEOUT_S)
        sync_global_devices(f"step {step}")
    assert len(told) == 1, told
    assert "rank 1 refused step 1" in told[0] or "is nan" in told[0], told
    assert [commit.step for commit in manager.wait_until_finished()] == [2, 3, 4]


def committed(manager: ckpt_jax.CheckpointManager, step: int) -> bool:
    return manager.latest_step() == step


def load(url: str, rank: int, count: int) -> None:
    """Twice: at first processes are still importing, later than others by more than it takes."""
    manager, here = ckpt_jax.CheckpointManager(f"{url}/{RUN}"), like()
    check(manager.restore(2, here))
    if count > 1:
        sync_global_devices("warm")
        before = given_bytes(url, RUN, 2) if rank == 0 else 0
        sync_global_devices("counted")
        check(manager.restore(2, here))
        sync_global_devices("loaded")
        if rank == 0:
            given = given_bytes(url, RUN, 2) - before
            assert LARGE_BYTES <= given <= 1.1 * LARGE_BYTES, f"{given / LARGE_BYTES:.3f}"


def load_by_number(url: str, rank: int) -> None:
    """The step is saved again when one process has loaded it, and its peer has not."""
    with ckpt.open(url, launch="jax readers") as store:
        if rank == 0:
            save_again(url, 1)
            check_version(store, 1)
            save_again(url, 2)
        sync_global_devices("saved again")
        if rank == 1:
            check_version(store, 1)
        sync_global_devices("loaded alone")
        check_version(store, 2)


def save_again(url: str, version: int) -> None:
    """As another job does."""
    with ckpt.open(url, launch=f"jax trainers {version}") as store:
        state = {"w": ckpt.Replicated(np.full(1000, version))}
        store.save(NUMBERED, 5, state, rank=0, world_size=1).wait(TIMEOUT_S)


def check_version(store: ckpt.Store, version: int) -> None:
    found = ckpt_jax.load(store, NUMBERED, 5, {"w": np.zeros(1000, "i8")})
    assert found["w"].tolist() == [version] * 1000, f"{found['w'][0]}, not {version}"


class HeldCopier(JaxCopier):
    """Copies once it may."""

    may_copy = threading.Event()

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        assert self.may_copy.wait(TIMEOUT_S)
        super().copy(prepared, arrays)


centred = jax.jit(lambda rows: rows - rows.mean())
"""The processes talk to each other for it."""
doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree), donate_argnums=0)


def overlap(url: str, rank: int) -> None:
    with ckpt.open(url) as store:
        save_before_it_is_computed(store, rank)
        donate_too_early(store, rank)
        donate_step_by_step(store)


def save_before_it_is_computed(store: ckpt.Store, rank: int) -> None:
    """Process 1 begins its part of the computation when process 0's call has returned."""
    ckpt_jax.save(store, OVERLAPPED, 1, {"rows": centred(cut(1, "x"))}).wait(TIMEOUT_S)
    called = Path(os.environ["XDG_RUNTIME_DIR"], "called")
    if rank == 1:
        wait_until(called.exists, "process 0's call", TIMEOUT_S)
    rows = centred(cut(2, "x"))
    save = ckpt_jax.save(store, OVERLAPPED, 2, {"rows": rows}, staging="overlap")
    if rank == 0:
        assert not rows.is_ready()
        assert not save.staged.done
        called.touch()
    save.wait(TIMEOUT_S)
    found = ckpt_jax.load(store, OVERLAPPED, 2, {"rows": rows})["rows"]
    for mine, loaded in zip(rows.addressable_shards, found.addressable_shards, strict=True):
        assert np.asarray(loaded.data).tobytes() == np.asarray(mine.data).tobytes()


def donate_too_early(store: ckpt.Store, rank: int) -> None:
    """Process 1 does, and process 0 waits as it should: the step is saved by neither."""
    ckpt_jax.state.JaxCopier = HeldCopier  # type: ignore[attr-defined]
    rows = cut(3, "x")
    if rank == 0:
        HeldCopier.may_copy.set()
    save = ckpt_jax.save(store, OVERLAPPED, 3, {"rows": rows}, staging="overlap")
    if rank == 0:
        assert save.staged.wait(TIMEOUT_S)
    doubled(rows)
    assert rows.is_deleted()
    HeldCopier.may_copy.set()
    try:
        save.wait(TIMEOUT_S)
    except ckpt.Aborted as error:
        ended = str(error)
    else:
        raise AssertionError("a step that one process cannot copy has no commit")
    # Seldom the coordinator takes process 1 for gone before it hears the reason.
    why = "donated or deleted before it was copied", "before it handed over"
    assert why[0] in ended or (rank == 0 and why[1] in ended), ended
    assert ("rank 1" in ended) == (rank == 0), ended
    sync_global_devices("donated too early")
    assert store.latest(OVERLAPPED) == 2
    good = {"rows": cut(4, "x")}
    ckpt_jax.save(store, OVERLAPPED, 3, good, staging="overlap").wait(TIMEOUT_S)
    check_rows(store, 3, 4)


def donate_step_by_step(store: ckpt.Store) -> None:
    manager = ckpt_jax.CheckpointManager(OVERLAPPED, store=store, staging="overlap")
    state = {"rows": cut(1, "x"), "same": cut(1)}
    for step in range(4, 8):
        assert manager.save(step, state)
        manager.wait_until_staged()
        before, state = state, doubled(state)
        assert before["rows"].is_deleted()
    assert [commit.step for commit in manager.wait_until_finished()] == [4, 5, 6, 7]
    for step in range(4, 8):
        check_rows(store, step, 2 ** (step - 4))


def check_rows(store: ckpt.Store, step: int, factor: int) -> None:
    found = ckpt_jax.load(store, OVERLAPPED, step, {"rows": cut(0, None, "x")})
    for shard in found["rows"].addressable_shards:
        assert (np.asarray(shard.data) == FULL[shard.index] * factor).all(), step


def main() -> None:
    faulthandler.dump_traceback_later(HANGS_S)
    url, rank, count, port, *verbs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
        # They connect at the first of these, and JAX gives that 30 s: not while one of them saves.
        sync_global_devices("begun")
    assert jax.process_count() == count
    for verb in verbs:
        if verb == "save":
            save(url, rank)
        elif verb == "number":
            load_by_number(url, rank)
        elif verb == "overlap":
            overlap(url, rank)
        else:
            load(url, rank, count)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # At its end JAX waits for the other processes, which may wait for this one.
        traceback.print_exc()
        os._exit(1)
