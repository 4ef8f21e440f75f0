"""Loads through a real local cluster: what was saved comes back, for any caller, with targets
dead, stopped, damaged."""

from __future__ import annotations

import gc
import json
import os
import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided as strided

import ckpt
from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import xxh3_128
from ckpt_client.load.plan import shares_places
from ckpt_client.store import Store
from tests.client.clikit import run
from tests.client.test_stager_process import runs
from tests.waiting import wait_until

RANKS = 4
ROWS = 500
TIMEOUT_S = 60.0
URL = "ckpt+local://{}?targets=7&code=4+2&pretend_domains=1&restart=never"


def state_of(rank: int) -> dict[Any, Any]:
    dice = np.random.default_rng(rank)
    same = np.random.default_rng(99)
    nan = np.array([np.nan, -0.0, np.inf], "f8")
    nan.view("u8")[0] = 0x7FF0_0000_DEAD_BEEF
    return {
        "own": dice.integers(0, 255, 2_500_001).astype("u1"),
        "same": ckpt.Replicated({"p": same.standard_normal(400_000), "lr": 0.1}),
        "m": ckpt.Shard(dice.random((ROWS, 700), "f4"), (ROWS * RANKS, 700), (ROWS * rank, 0)),
        "bf": dice.random(1000).astype(ml_dtypes.bfloat16),
        "f8": dice.random((3, 5)).astype(ml_dtypes.float8_e4m3fn),
        3: (1 << 200, "x", [None, b"y", True, rank]),
        ("a", 1): {
            "fortran": np.asfortranarray(dice.random((30, 40))),
            "big": np.arange(5, dtype=">i4"),
        },
        "strided": dice.random((40, 60))[::2, ::3],
        "empty": np.zeros((0, 3)),
        "zero": np.array(7),
        "nan": nan,
    }  # fmt: skip


def equal(a: object, b: object) -> bool:
    """Bit-exact, with types."""
    match a, b:
        case ckpt.Replicated(), _:
            return equal(a.tree, b)
        case ckpt.Shard(), ckpt.Shard():
            return (a.global_shape, a.offset) == (b.global_shape, b.offset) and equal(
                a.array, b.array
            )
        case dict(), dict():
            return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
        case (list(), list()) | (tuple(), tuple()):
            return len(a) == len(b) and all(map(equal, a, b))
        case np.ndarray(), np.ndarray():
            same = (a.dtype, a.shape) == (b.dtype, b.shape)
            return same and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
        case _:
            return type(a) is type(b) and a == b


def whole_matrix() -> np.ndarray:
    return np.concatenate([state_of(rank)["m"].array for rank in range(RANKS)])


@dataclass
class Cluster:
    """An open store with a saved checkpoint of each run, whose stagers are gone."""

    directory: Path
    store: Store

    def targets(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.store._control.ask("status"))["targets"]
        return found

    def signal(self, number: int, what: signal.Signals) -> int:
        pid = self.targets()[number]["pid"]
        assert isinstance(pid, int)
        os.kill(pid, what)
        return pid

    def own(self, rank: int, run: str = "run") -> ckpt.Checkpoint:
        """This rank's tree was loaded and is right."""
        checkpoint = self.store.resolve(run, rank=rank, world_size=RANKS)
        with checkpoint:
            assert equal(state_of(rank), checkpoint.load())
        return checkpoint


@contextmanager
def saved(directory: Path, *names: str) -> Iterator[Cluster]:
    try:
        with ckpt.open(URL.format(directory)) as store:
            for run in names:
                saves = [
                    store.save(run, 1, state_of(r), rank=r, world_size=RANKS) for r in range(RANKS)
                ]
                for save in saves:
                    save.wait(TIMEOUT_S)
            for stager in store._stagers.links.values():
                os.kill(stager.pid, signal.SIGKILL)
            yield Cluster(directory, store)
    finally:
        ready = json.loads((directory / "ready.json").read_text())
        os.kill(ready["pid"], signal.SIGTERM)
        wait_until(lambda: not runs(ready["pid"]), "the supervisor's end")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by tests that break nothing."""
    with saved(tmp_path_factory.mktemp("burst"), "run") as cluster:
        yield cluster


def test_every_rank_gets_its_own_tree_back(cluster: Cluster) -> None:
    for rank in range(RANKS):
        checkpoint = cluster.own(rank)
        assert checkpoint.source == "tier"
        assert sum(read.rebuilt_bytes for read in checkpoint.statistics) == 0
        assert str(checkpoint.redundancy) == "survives 2 targets, 2 devices"


def test_what_was_loaded_is_freed_when_it_is_dropped_without_the_cyclic_collector(
    cluster: Cluster,
) -> None:
    gc.collect()
    gc.disable()  # As trainers do.
    try:
        state = cluster.store.load("run", rank=0, world_size=RANKS)
        assert isinstance(state, dict)
        memory = weakref.ref(state["own"])
        assert memory() is not None
        del state
        assert memory() is None
    finally:
        gc.enable()


def test_a_caller_of_another_world_size_is_told_what_to_pass(cluster: Cluster) -> None:
    for place in ({"rank": 0, "world_size": 3}, {}):
        with pytest.raises(ckpt.Refused, match=r"saved by 4 ranks.*whole=True"):
            cluster.store.load("run", **place)


def test_boxes_of_another_axis_and_world_size_read_only_their_bytes(cluster: Cluster) -> None:
    whole = whole_matrix()
    with cluster.store.resolve("run", rank=1, world_size=2) as checkpoint:
        like = {"m": ckpt.Box((0, 350), (ROWS * RANKS, 350))}
        found = checkpoint.load(like, strict=False)
        assert isinstance(found, dict)
        assert np.array_equal(found["m"], whole[:, 350:])
        data = checkpoint.statistics[-1]
        assert data.wanted_bytes == ROWS * RANKS * 350 * 4
        assert data.extra_bytes <= data.wanted_bytes // 20
        for box in (
            ckpt.Box((ROWS - 1, 3), (2, 690)),
            ckpt.Box((7, 7), (1, 1)),
            ckpt.Box((9, 0), (0, 700)),
        ):
            found = checkpoint.load({"m": box}, strict=False)
            assert isinstance(found, dict)
            rows, columns = (slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
            assert np.array_equal(found["m"], whole[rows, columns])


def test_arrays_and_shards_are_filled_in_place(cluster: Cluster) -> None:
    whole = whole_matrix()
    like = {
        "own": np.empty(2_500_001, "u1"),
        "same": ckpt.Replicated({"p": np.empty(800_000)[::2], "lr": 0}),
        "m": ckpt.Shard(np.empty((300, 200), "f4"), whole.shape, (600, 100)),
        "nan": np.empty(3),
    }
    found = cluster.store.load("run", like=like, strict=False, rank=2, world_size=7)
    assert isinstance(found, dict)
    assert found["own"] is like["own"]
    assert found["m"] is like["m"]
    assert equal(found["own"], state_of(2)["own"])
    assert equal(found["same"], {"p": state_of(0)["same"].tree["p"], "lr": 0.1})
    assert np.array_equal(found["m"].array, whole[600:900, 100:300])
    assert equal(found["nan"], state_of(0)["nan"])


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"m": np.empty((3, 700), "f4")}, r"m: stored with shape \(2000, 700\)"),
        (
            {"own": np.empty(2_500_001, "i1")},
            r"own: stored as \|u1, like has .*; nothing is converted",
        ),
        ({"m": ckpt.Box((1999, 0), (2, 700))}, r"m: Box .* reaches beyond"),
        ({"m": ckpt.Shard(np.empty((1, 7), "f4"), (4, 7), (0, 0))}, "m: stored with global shape"),
        ({3: (np.empty(2), "", [0, 0, 0, 0])}, r"=3/#0: stored as a plain value"),
        ({"own": 5}, "own: stored as an array"),
        ({"own": object()}, "own: a object cannot be filled"),
        ({"nan": strided(np.empty(1), (3,), (0,))}, "nan: .* share one place in memory"),
        ({"m": strided(np.empty(9000, "f4"), (2000, 700), (4, 4))}, "m: .* share one place"),
    ],
)
def test_what_does_not_fit_is_refused_by_path(cluster: Cluster, like: object, message: str) -> None:
    with pytest.raises(ckpt.Refused, match=message):
        cluster.store.load("run", like=like, strict=False, rank=0, world_size=RANKS)


@pytest.mark.parametrize(
    ("shape", "strides", "shares"),
    [
        ((3, 4), (0, 4), True),
        ((1, 4), (0, 4), False),
        ((0, 4), (0, 0), False),
        ((), (), False),
        ((3, 4), (4, 12), False),
        ((3, 4), (-16, -4), False),
        ((3, 4), (-16, 4), False),
        ((3, 4), (4, 4), True),
        # Even items and odd ones; with a third column the fourth even one is there twice.
        ((4, 2), (8, 12), False),
        ((4, 3), (8, 12), True),
        # Half of an item.
        ((5,), (2,), True),
        ((2, 3), (6, 16), False),
    ],
)
def test_which_arrays_have_a_place_for_each_item(
    shape: tuple[int, ...], strides: tuple[int, ...], shares: bool
) -> None:
    assert shares_places(shape, strides, 4) is shares


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray])
def test_arrays_of_other_kinds_are_filled_as_arrays_are(
    cluster: Cluster, kind: type[np.ndarray[Any, Any]]
) -> None:
    like = {"strided": np.zeros((20, 20)).view(kind)}
    found = cluster.store.load("run", like=like, strict=False, rank=1, world_size=RANKS)
    assert isinstance(found, dict)
    assert found["strided"] is like["strided"]
    assert np.array_equal(np.asarray(like["strided"]), state_of(1)["strided"])


def test_missing_and_surplus_keys_are_named_by_path_unless_not_strict(cluster: Cluster) -> None:
    like = {"own": np.empty(2_500_001, "u1"), "other": {"w": np.zeros(3)}}
    with pytest.raises(
        ckpt.Refused, match=r"checkpoint has no other/w; like does not name .*=3/#0"
    ):
        cluster.store.load("run", like=like, rank=0, world_size=RANKS)
    found = cluster.store.load("run", like=like, strict=False, rank=0, world_size=RANKS)
    assert isinstance(found, dict)
    assert found["other"]["w"] is like["other"]["w"]


def test_arrays_that_share_memory_are_filled_where_the_checkpoint_agrees(cluster: Cluster) -> None:
    """What was read last had its values in both."""
    whole, memory = np.zeros((ROWS * RANKS, 700), "f4"), np.zeros(3)

    def rows(place: int, first: int) -> ckpt.Shard:
        return ckpt.Shard(whole[::-1][-place - 6 :][:6][::-1], whole.shape, (first, 0))

    everything = ckpt.Shard(whole, whole.shape, (0, 0))
    same = {"m": ckpt.Shards((everything, rows(3, 3)))}
    cluster.store.load("run", like=same, strict=False, rank=0, world_size=RANKS)
    assert np.array_equal(whole, whole_matrix())
    others: list[dict[str, object]] = [
        {"m": ckpt.Shards((everything, rows(3, 4)))},
        {"nan": memory, "zero": memory.view("i8")[2:].reshape(())},
        {"zero": memory[:1].view("i8").reshape(()), "nan": memory[::-1]},
    ]
    for like in others:
        with pytest.raises(ckpt.Refused, match=r"(m and m|nan and zero|zero and nan) share memory"):
            cluster.store.load("run", like=like, strict=False, rank=0, world_size=RANKS)


def test_an_array_that_has_two_names_is_read_once_for_each(cluster: Cluster) -> None:
    """Once to fill it and once to compare: both were filled, and then both compared."""
    whole = np.zeros((ROWS * RANKS, 700), "f4")
    everything = ckpt.Shard(whole, whole.shape, (0, 0))
    with cluster.store.resolve("run", rank=0, world_size=RANKS) as checkpoint:
        checkpoint.load({"m": ckpt.Shards((everything, everything))}, strict=False)
        assert np.array_equal(whole, whole_matrix())
        wanted = sum(read.wanted_bytes for read in checkpoint.statistics)
        assert 2 * whole.nbytes <= wanted < 2.1 * whole.nbytes  # With a tree document.


def test_no_list_comes_back_cut(cluster: Cluster) -> None:
    """Its items have their numbers for names: what `like` lacks need not be what comes last."""
    cut: list[object] = [{3: (0, "", [])}, {3: (0,)}, {3: ckpt.Replicated((0, "", [None]))}]
    for like in cut:
        with pytest.raises(ckpt.Refused, match=r"=3(/#2)?: \d items in the checkpoint, \d here"):
            cluster.store.load("run", like=like, strict=False, rank=2, world_size=RANKS)
    like = {3: (0, "", [0, b"", False, 0, "more"])}
    found = cluster.store.load("run", like=like, strict=False, rank=2, world_size=RANKS)
    assert found == {3: (1 << 200, "x", [None, b"y", True, 2, "more"])}


def test_the_whole_checkpoint_is_the_union_of_all_ranks(cluster: Cluster) -> None:
    whole = cluster.store.load("run", whole=True)
    assert isinstance(whole, dict)
    assert np.array_equal(whole["m"], whole_matrix())
    assert whole["same"]["lr"] == 0.1
    assert equal(whole["same"]["p"], state_of(0)["same"].tree["p"])
    for rank in range(RANKS):
        assert equal(whole["own"][rank], state_of(rank)["own"])
        assert whole[3][2][3][rank] == rank
    assert len(whole["own"]) == RANKS


def test_a_rank_that_holds_nothing_of_a_tensor_says_none(cluster: Cluster) -> None:
    """As the adapters do, for a mesh that a rank is not in; what is own stays apart."""
    full = np.arange(24.0).reshape(8, 3)
    trees: list[dict[Any, Any]] = [
        {"t": ckpt.Shard(full[:4], (8, 3), (0, 0)), "own": None},
        {"t": ckpt.Shard(full[4:], (8, 3), (4, 0)), "own": np.ones(2)},
        {"t": None, "own": None},
    ]
    store = cluster.store
    saves = [store.save("nothing", 1, tree, rank=r, world_size=3) for r, tree in enumerate(trees)]
    for save in saves:
        save.wait(TIMEOUT_S)
    whole: Any = store.load("nothing", 1, whole=True, rank=0, world_size=1)
    assert equal(whole["t"], full)
    assert whole["own"][0] is None
    assert equal(whole["own"][1], np.ones(2))
    for rank in range(3):
        like = {"t": np.zeros((8, 3))}
        store.load("nothing", 1, like=like, rank=rank, world_size=3, strict=False)
        assert equal(like["t"], full)
        own: Any = store.load("nothing", 1, rank=rank, world_size=3)
        assert (own["t"] is None) == (rank == 2)
    with pytest.raises(ckpt.Refused, match="own: stored as a plain value"):
        store.load("nothing", 1, like={"t": full, "own": np.ones(2)}, rank=0, world_size=3)


def test_a_closed_checkpoint_reads_no_more(cluster: Cluster) -> None:
    checkpoint = cluster.store.resolve("run", rank=0, world_size=RANKS)
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(ckpt.Refused, match="closed"):
        checkpoint.load()


def test_a_healthy_checkpoint_verifies_whole(cluster: Cluster) -> None:
    report = cluster.store.verify("run", 1)
    assert report.state == "healthy"
    assert len(report.columns) == RANKS * 6
    assert report.bytes_read > sum(len(state_of(r)["own"]) for r in range(RANKS))


# --------------------------------------------------------------------------- with losses


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each of its tests harms a run of its own; the last one kills targets, too."""
    directory = tmp_path_factory.mktemp("harmed")
    with saved(directory, "run", "flipped", "lost") as cluster:
        # What a reader finds damaged would be made again before a test looks at it.
        assert run("repair", "pause", "--store", f"ckpt+local://{directory}").code == 0
        yield cluster


def test_flipped_bytes_are_mended_counted_and_found_by_verify(harmed: Cluster) -> None:
    flipped = flip(harmed, "flipped", targets=2, offset=PAGE_BYTES + 100)
    assert flipped
    damaged = rebuilt = 0
    for rank in range(RANKS):
        checkpoint = harmed.own(rank, "flipped")
        damaged += sum(read.damaged_bytes for read in checkpoint.statistics)
        rebuilt += sum(read.rebuilt_bytes for read in checkpoint.statistics)
    assert damaged > 0
    assert rebuilt > 0
    report = harmed.store.verify("flipped", 1)
    assert report.state == "degraded"
    assert sum(column.state == "damaged" for column in report.columns) == flipped


def test_damage_beyond_parity_is_lost_and_never_wrong_bytes(harmed: Cluster) -> None:
    flip(harmed, "lost", targets=7, offset=PAGE_BYTES + 100)
    assert harmed.store.verify("lost", 1).state == "lost"
    with pytest.raises(ckpt.CkptError) as caught:
        harmed.store.load("lost", rank=0, world_size=RANKS)
    assert isinstance(caught.value, ckpt.Lost | ckpt.NotFound)


def test_three_targets_killed_is_unavailable_not_lost(tmp_path: Path) -> None:
    with saved(tmp_path, "run") as cluster:
        checkpoint = cluster.store.resolve("run", rank=0, world_size=RANKS, timeout_s=2)
        for number in (0, 1, 2, 3):
            cluster.signal(number, signal.SIGKILL)
        with checkpoint, pytest.raises(ckpt.Unavailable):
            checkpoint.load()


def test_two_targets_lost_one_killed_one_stopped_cost_no_byte(harmed: Cluster) -> None:
    stopped = harmed.signal(0, signal.SIGSTOP)
    harmed.signal(1, signal.SIGKILL)
    try:
        rebuilt = 0
        for rank in range(RANKS):
            checkpoint = harmed.own(rank)
            rebuilt += sum(read.rebuilt_bytes for read in checkpoint.statistics)
        assert rebuilt > 0
    finally:
        os.kill(stopped, signal.SIGCONT)


def flip(cluster: Cluster, run: str, *, targets: int, offset: int) -> int:
    """One byte of every column file of the run on so many targets; how many files there were."""
    count, prefix = 0, xxh3_128(run.encode()).hex()
    for target in cluster.targets()[:targets]:
        for file in sorted((Path(str(target["directory"])) / "columns").glob(f"{prefix}-*")):
            with file.open("r+b") as column:
                column.seek(offset)
                byte = column.read(1)[0]
                column.seek(offset)
                column.write(bytes([byte ^ 0x10]))
                os.fsync(column.fileno())
            count += 1
    return count
