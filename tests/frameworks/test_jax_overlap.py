"""Saves of JAX states that are copied beside the training: whole, or by no process; and an array
that was donated too early is named.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
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
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ckpt
import ckpt_jax
from ckpt.base.units import MiB
from ckpt_client.save.copying import HalfWriter
from ckpt_client.save.packing import plan_packing
from ckpt_client.save.state import flatten
from ckpt_jax import copying
from ckpt_jax.copying import JaxCopier
from tests.frameworks.jax_trees import bits, like
from tests.frameworks.warm import Warm
from tests.landing import in_turn
from tests.waiting import wait_until

WAIT_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
STAGINGS = ("copy", "overlap")
both = pytest.mark.parametrize("staging", STAGINGS)


class Moments(NamedTuple):
    """As optax keeps them."""

    count: jax.Array
    mu: Any


class HeldCopier(JaxCopier):
    """Copies once it may."""

    may_copy = threading.Event()

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        assert self.may_copy.wait(WAIT_S)
        super().copy(prepared, arrays)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is copied until it is set."""
    monkeypatch.setattr("ckpt_jax.state.JaxCopier", HeldCopier)
    HeldCopier.may_copy.clear()
    yield HeldCopier.may_copy
    HeldCopier.may_copy.set()


@pytest.fixture
def store(cluster: str) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


def cut(array: Any, *spec: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    return jax.device_put(jnp.asarray(array), NamedSharding(mesh, P(*spec)))


def made(seed: int) -> dict[str, Any]:
    """A state of everything that a training holds, other in every element for each seed."""
    random = np.random.default_rng(seed)
    full = random.standard_normal((16, 24)).astype("f4")
    return {
        "rows": cut(full, "x"),
        "tiles": cut(full.astype(jnp.bfloat16), "x", "y"),
        "columns": cut(full, None, "y"),
        "same": cut(full),
        "half": jnp.asarray(full, jnp.float8_e4m3fn),
        "nibbles": jnp.asarray(random.integers(-8, 8, 100), jnp.int4),
        "flags": jnp.asarray(full > 0),
        "complex": jnp.asarray(full + 1j, jnp.complex64),
        "weak": jnp.asarray(float(seed)),
        "none": jnp.zeros((0, 4)),
        "key": jax.random.key_data(jax.random.key(seed)),
        "opt": (Moments(jnp.int32(seed), {"w": cut(full * 2, "y"), "frozen": None}), None),
        "numpy": random.integers(0, 9, 1000),
        "step": seed,
    }


def check_loads(store: ckpt.Store, run: str, step: int, wanted: object) -> None:
    assert bits(ckpt_jax.load(store, run, step, like(wanted))) == bits(wanted)


step_on = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 3 - 1, tree), donate_argnums=0)


def test_the_call_returns_first_and_what_comes_back_is_the_state_of_the_call(
    store: ckpt.Store, held: threading.Event
) -> None:
    for step in (1, 2):  # The long way, and the layout that is known.
        state = made(step)
        held.clear()
        save = ckpt_jax.save(store, "jax/first", step, state, staging="overlap")
        assert not save.staged.wait(0)
        with pytest.raises(ckpt.Unavailable, match="not committed"):
            save.wait(0)
        held.set()
        assert save.staged.wait(WAIT_S)
        save.wait(WAIT_S)
        check_loads(store, "jax/first", step, made(step))


def test_steps_that_donate_the_state_run_beside_its_sending(store: ckpt.Store) -> None:
    arrays = {"w": cut(np.ones((400, 1000), "f4"), "x"), "b": jnp.arange(5.0), "n": jnp.int32(1)}
    wanted, saves = [], []
    for step in range(4):
        wanted.append(jax.tree.map(lambda leaf: np.array(leaf), arrays))
        save = ckpt_jax.save(store, "jax/donates", step, arrays, staging="overlap")
        assert save.staged.wait(WAIT_S)
        before, arrays = arrays, step_on(arrays)
        assert before["w"].is_deleted()
        saves.append(save)
    for step, save in enumerate(saves):
        save.wait(WAIT_S)
        assert bits(store.load("jax/donates", step, whole=True)) == bits(wanted[step])


@pytest.mark.parametrize("how", ["donated", "deleted"])
def test_an_array_that_is_gone_before_it_is_copied_is_saved_by_no_process(
    store: ckpt.Store, held: threading.Event, how: str
) -> None:
    run = f"jax/{how}"
    state = {"a": jnp.zeros(3), "m": Moments(jnp.int32(0), cut(np.ones((8, 8)), "x", "y"))}
    save = ckpt_jax.save(store, run, 1, state, staging="overlap")
    if how == "donated":
        step_on(state["m"].mu)
    else:
        state["m"].mu.delete()
    held.set()
    with pytest.raises(ckpt.Aborted, match=r"^m/mu was donated or deleted before it") as ended:
        save.wait(WAIT_S)
    assert "wait_until_staged(), come before the step" in ended.value.hint
    assert store.steps(run) == []
    ckpt_jax.save(store, run, 1, made(1), staging="overlap").wait(WAIT_S)
    check_loads(store, run, 1, made(1))


@both
def test_an_array_that_is_gone_already_is_refused_by_path(store: ckpt.Store, staging: str) -> None:
    state = {"a": jnp.zeros(3), "m": [cut(np.ones((8, 8)), "x", "y")]}
    step_on(state["m"])
    with pytest.raises(ckpt.Refused, match=r"^m/#0: it was donated or deleted") as refused:
        ckpt_jax.save(store, f"jax/gone/{staging}", 1, state, staging=staging)
    assert refused.value.hint
    assert store.steps(f"jax/gone/{staging}") == []


def test_an_array_of_numpy_s_that_changes_too_early_ends_the_save(
    store: ckpt.Store, held: threading.Event
) -> None:
    state = {"a": jnp.zeros(3), "rng": np.zeros(1000), "w": cut(np.ones((8, 8)), "x")}
    save = ckpt_jax.save(store, "jax/torn", 1, state, staging="overlap")
    state["rng"][...] = 1
    held.set()
    with pytest.raises(ckpt.Aborted, match=r"^rng changed while rank 0 staged it"):
        save.wait(WAIT_S)
    assert store.steps("jax/torn") == []


class ParkedCopier(HeldCopier):
    """Ends once it may."""

    has_copied, may_end = threading.Event(), threading.Event()

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        super().copy(prepared, arrays)
        self.has_copied.set()
        assert self.may_end.wait(WAIT_S)


def test_an_array_of_numpy_s_that_was_swapped_while_it_was_copied_ends_the_save(
    store: ckpt.Store, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt_jax.state.JaxCopier", ParkedCopier)
    state = {"a": jnp.zeros(3), "rng": np.zeros(1000)}
    save = ckpt_jax.save(store, "jax/swapped", 1, state, staging="overlap")
    state["rng"][...] = 1
    held.set()
    assert ParkedCopier.has_copied.wait(WAIT_S)
    state["rng"][...] = 0
    ParkedCopier.may_end.set()
    with pytest.raises(ckpt.Aborted, match=r"^rng changed while rank 0 staged it"):
        save.wait(WAIT_S)


def test_a_part_of_numpy_s_that_was_swapped_while_it_was_copied_is_a_change() -> None:
    """Of a large array that all processes hold, each copies a part."""
    array = np.zeros((600, 1000))
    packing = plan_packing(flatten({"rng": array}, replicated=True), 1, 2)
    assert packing.layout.parts
    memory = memoryview(bytearray(packing.layout.half_bytes))
    for swaps in (True, False):
        copier = JaxCopier(packing, watched=True)
        array[...] = 1 if swaps else 0
        HalfWriter(memory).write(packing, copier)
        array[...] = 0
        assert list(copier.changed()) == [0] * swaps


def test_a_nan_ends_the_save_by_path_and_of_numpy_s_the_call(store: ckpt.Store) -> None:
    full = np.ones((8, 8))
    full[5, 2] = np.nan
    bad = {"m": {"w": cut(full, "x", "y")}, "n": jnp.ones(3)}
    save = ckpt_jax.save(store, "jax/nan", 1, bad, check_finite=True, staging="overlap")
    with pytest.raises(ckpt.Refused, match=r"m/w: element \[1, 2\] of \(2, 4\) is nan"):
        save.wait(WAIT_S)
    with pytest.raises(ckpt.Refused, match=r"p: element \[5, 2\] of \(8, 8\) is nan"):
        ckpt_jax.save(store, "jax/nan", 1, {"p": full}, check_finite=True, staging="overlap")
    assert store.steps("jax/nan") == []


def test_a_save_keeps_nothing_of_its_state_alive(store: ckpt.Store) -> None:
    for step in (1, 2):  # The long way, and the layout that is known.
        array = cut(np.ones((8, 8)) * step, "x")
        save = ckpt_jax.save(store, "jax/alive", step, {"w": array}, staging="overlap")
        save.wait(WAIT_S)
        alive = weakref.ref(array)
        del array
        gc.collect()
        assert alive() is None
        assert save.staged.done


HOST = """
import gc, sys
from pathlib import Path
import jax, jax.numpy as jnp, ckpt, ckpt_jax

MiB = 1 << 20
ckpt_jax.copying.IN_FLIGHT_BYTES = 2 * MiB

def private_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024

state = {f"w{n}": jnp.full(2 * MiB, n % 16 - 8, jnp.int4) for n in range(int(sys.argv[4]))}
jax.block_until_ready(state)
with ckpt.open(sys.argv[1]) as store:
    gc.collect()
    gc.disable()
    before = private_bytes()
    save = ckpt_jax.save(store, sys.argv[2], 1, state, staging=sys.argv[3])
    save.staged.wait()
    print((private_bytes() - before) // MiB)
    save.wait()
"""


PACKED = 40
"""Arrays of 2 MiB: what JAX copies of them would be 80 MiB, if nothing was let go."""


@pytest.mark.parametrize("staging", in_turn(STAGINGS, every=2))
def test_what_jax_copies_to_the_host_is_let_go_meanwhile(
    store: ckpt.Store, cluster: str, warm: Warm, tmp_path: Path, staging: str
) -> None:
    """On a CPU JAX copies only what it packs: two of int4 lie in a byte."""
    run, script = f"jax/host/{staging}", tmp_path / "host.py"
    script.write_text(HOST)
    command = warm.jax_command(script, cluster, run, staging, str(PACKED))
    ended = subprocess.run(command, check=True, timeout=WAIT_S, cwd=ROOT, stdout=subprocess.PIPE)
    assert int(ended.stdout) < 60
    loaded: Any = store.load(run, 1, whole=True)
    for n in range(PACKED):
        assert (loaded[f"w{n}"].astype("i1") == n % 16 - 8).all()


# ------------------------------------------------------------------------------------ the manager


def test_the_manager_waits_for_copies_where_it_must(cluster: str, held: threading.Event) -> None:
    run = f"{cluster}/jax/managed"
    state = {"w": cut(np.ones((8, 8), "f4"), "x"), "n": 0}
    with ckpt_jax.CheckpointManager(run, staging="overlap") as manager:
        assert manager.save(1, args=ckpt_jax.args.StandardSave(state))
        assert manager.latest_step() is None
        threading.Timer(0.05, held.set).start()
        manager.wait_until_staged()
        state = {"w": step_on(state["w"]), "n": 1}
        assert [commit.step for commit in manager.wait_until_finished()] == [1]
        held.clear()
        assert manager.save(2, state)
        threading.Timer(0.05, held.set).start()
    assert manager.all_steps() == [1, 2]
    for step, value in ((1, 1), (2, 2)):
        found = manager.restore(step, {"w": jnp.zeros((8, 8)), "n": 9})
        assert np.unique(np.asarray(found["w"])).tolist() == [value]
        assert found["n"] == step - 1


def test_the_manager_raises_what_ended_an_overlapped_save(
    cluster: str, held: threading.Event
) -> None:
    with ckpt_jax.CheckpointManager(f"{cluster}/jax/raises", staging="overlap") as manager:
        weight = cut(np.ones((8, 8), "f4"), "x")
        manager.save(1, {"w": weight})
        weight.delete()
        held.set()
        manager.wait_until_staged()
        with pytest.raises(ckpt.Aborted, match="w was donated or deleted"):
            manager.save(2, {"w": jnp.ones(3)})
        assert manager.save(2, {"w": jnp.ones(3)})
        assert [commit.step for commit in manager.wait_until_finished()] == [2]


def test_another_word_is_refused_before_anything_is_staged(store: ckpt.Store) -> None:
    with pytest.raises(ckpt.Refused, match="staging='later'; one of copy, overlap"):
        ckpt_jax.save(store, "jax/word", 1, made(1), staging="later")
    with pytest.raises(ckpt.Refused, match="staging='later'; one of copy, overlap"):
        ckpt_jax.CheckpointManager("jax/word", store=store, staging="later", max_to_keep=1)
    assert store.steps("jax/word") == []


SCRIPT = """
import sys, jax.numpy as jnp, ckpt_jax
manager = ckpt_jax.CheckpointManager(sys.argv[1], staging="overlap")
manager.save(1, {"w": jnp.ones(4_000_000)})
"""


def test_a_script_that_ends_at_once_has_saved(store: ckpt.Store, cluster: str) -> None:
    command = [sys.executable, "-c", SCRIPT, f"{cluster}/jax/ends"]
    subprocess.run(command, check=True, timeout=WAIT_S, cwd=ROOT)
    wait_until(lambda: store.latest("jax/ends") == 1, "the stager's commit", WAIT_S)
    found: Any = store.load("jax/ends", 1, whole=True)
    assert float(found["w"].sum()) == 4_000_000


UNCLOSED = """
import sys, jax.numpy as jnp, ckpt, ckpt_jax
stores = {}
for staging in sys.argv[2:]:
    stores[staging] = ckpt.open(sys.argv[1])
    run = "jax/unclosed/" + staging
    ckpt_jax.save(stores[staging], run, 1, {"w": jnp.ones(4)}, staging=staging)
"""


def test_a_script_that_leaves_its_stores_open_ends_without_an_error(
    store: ckpt.Store, cluster: str
) -> None:
    """JAX keeps so much alive that modules are empty before the stores go."""
    command = [sys.executable, "-c", UNCLOSED, cluster, *STAGINGS]
    ended = subprocess.run(command, check=True, timeout=WAIT_S, cwd=ROOT, stderr=subprocess.PIPE)
    assert b"__del__" not in ended.stderr
    runs = [f"jax/unclosed/{staging}" for staging in STAGINGS]
    wait_until(
        lambda: [store.latest(run) for run in runs] == [1, 1], "the stagers' commits", WAIT_S
    )


PART_BYTES = MiB
LARGE = 2 * PART_BYTES + 4096


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays; as many of them as of arrays that are eight times as large."""
    assert copying.PART_BYTES == 8 * PART_BYTES
    monkeypatch.setattr(copying, "PART_BYTES", PART_BYTES)


@both
@pytest.mark.usefixtures("small_parts")
def test_arrays_of_many_parts_come_back_whole(store: ckpt.Store, staging: str) -> None:
    maker = np.random.default_rng(5)
    state = {
        "rows": jnp.asarray(maker.integers(0, 255, (LARGE // 1000, 1000), np.uint8)),
        "flat": jnp.asarray(maker.integers(0, 255, LARGE, np.uint8)),
        "one row": jnp.asarray(maker.integers(0, 255, (1, LARGE), np.uint8)),
        "turned": np.asarray(maker.integers(0, 255, (3, LARGE // 3), np.uint8)).T,
        "less": jnp.asarray(maker.integers(0, 255, 2 * PART_BYTES - 1, np.uint8)),
        "cut": cut(maker.integers(0, 255, (16, LARGE), np.uint8), "x"),
    }
    save = ckpt_jax.save(store, "jax/parts", 1, state, staging=staging)
    save.wait(WAIT_S)
    check_loads(store, "jax/parts", 1, state)


@pytest.mark.usefixtures("small_parts")
def test_large_arrays_are_copied_by_several_threads_side_by_side(
    store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts meet before they are copied, which they could not on one thread."""
    meeting, copy_part = threading.Barrier(2), copying._copy_part

    def met(place: Any, value: Any) -> None:
        meeting.wait(WAIT_S)
        copy_part(place, value)

    monkeypatch.setattr(copying, "_copy_part", met)
    state = {"w": jnp.arange(PART_BYTES, dtype=jnp.int16)}
    assert len(list(copying._parts(np.asarray(state["w"]), np.asarray(state["w"])))) == 2
    ckpt_jax.save(store, "jax/met", 1, state).wait(WAIT_S)
    check_loads(store, "jax/met", 1, state)


@pytest.mark.usefixtures("small_parts")
def test_a_copy_that_fails_leaves_nothing_under_way(
    store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(place: Any, value: Any) -> None:
        raise MemoryError("no room for a part")

    copy_part = copying._copy_part
    monkeypatch.setattr(copying, "_copy_part", failing)
    state = {"w": jnp.zeros(LARGE, jnp.uint8)}
    with pytest.raises(MemoryError, match="no room"):
        ckpt_jax.save(store, "jax/fails", 1, state)
    monkeypatch.setattr(copying, "_copy_part", copy_part)
    ckpt_jax.save(store, "jax/fails", 1, state).wait(WAIT_S)
    assert store.steps("jax/fails")[0].step == 1
