"""CkptStorageConfig under torch_checkpointing's own CheckpointManager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch_checkpointing import (
    AsyncCheckpointSaverConfig,
    CheckpointManager,
    CheckpointWriterConfig,
    DefaultStoreBarrierConfig,
    SyncCheckpointSaverConfig,
)
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.schema import ItemSpec

import ckpt
from ckpt_client.fs import sealing
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_torch.torch_checkpointing import CkptStorage, CkptStorageConfig, seal
from tests.frameworks.gloo import Ranks
from tests.waiting import ASKED_S, wait_until

LIST_WAIT_S = 120.0
"""For a writer's files to be taken off the list: 15 s, on a slow machine more."""


@pytest.fixture(scope="module")
def fs(cluster: str) -> Iterator[CkptFileSystemBase]:
    made = fsspec.core.url_to_fs(cluster)[0]
    yield made
    made.close()


def manager(asynchronous: bool = False, **options: Any) -> CheckpointManager:
    config: dict[str, Any] = {
        "storage_config": CkptStorageConfig(),
        "pre_finalize_callback": seal,
        **options,
    }
    if "save" not in config:
        # Its own number counts barriers of a process; processes of this pool have had other jobs.
        barrier = DefaultStoreBarrierConfig(generation="tests")
        kind = AsyncCheckpointSaverConfig if asynchronous else SyncCheckpointSaverConfig
        config["save"] = kind(writer_config=CheckpointWriterConfig(barrier_config=barrier))
    return CheckpointManager(CheckpointManager.Config(**config))


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "w": torch.randn(300, 200, generator=generator),
            "layers": [{"b": torch.arange(7, dtype=torch.bfloat16)}, {"b": torch.zeros(0)}],
        },
        "progress": {"step": seed, "rate": 0.5},
    }


ITEMS = {
    "model": ItemSpec(),
    "progress": ItemSpec(layout=LayoutInfo("extra/progress.json", JsonSerialization())),
}


def same(found: Any, expected: dict[str, Any]) -> bool:
    pairs = [(found["model"]["w"], expected["model"]["w"])]
    pairs += [
        (one["b"], other["b"])
        for one, other in zip(found["model"]["layers"], expected["model"]["layers"], strict=True)
    ]
    return found["progress"] == expected["progress"] and all(
        torch.equal(one, other) and one.dtype == other.dtype for one, other in pairs
    )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_is_one_commit_and_comes_back(
    cluster: str, fs: CkptFileSystemBase, asynchronous: bool
) -> None:
    run = f"tc/{'async' if asynchronous else 'sync'}"
    ours = manager(asynchronous, items=ITEMS)
    try:
        for step in (1, 2):
            saving = ours.save(f"{cluster}/{run}/step-{step}", state(step))
            if saving is not None:
                saving.result()
        for step in (1, 2):
            assert same(ours.load(f"{cluster}/{run}/step-{step}"), state(step))
    finally:
        ours.close()
    assert [path.rpartition("/")[2] for path in fs.ls(run, detail=False)] == ["step-1", "step-2"]
    assert fs.find(f"{run}/step-2") == [
        f"{run}/step-2/extra/progress.json",
        f"{run}/step-2/model_0.pt",
    ]


def test_ids_are_names_in_the_store_of_the_config(cluster: str) -> None:
    ours = manager(items=ITEMS, storage_config=CkptStorageConfig(store=cluster))
    ours.save("tc/named/7", state(7))
    without_mmap = CkptStorageConfig(store=cluster).create_storage()
    with without_mmap.stream_read(Path("tc/named/7/model_0.pt")) as file:
        assert torch.equal(torch.load(file)["w"], state(7)["model"]["w"])
    assert same(ours.load("tc/named/7"), state(7))
    ours.close()


def test_a_step_that_is_there_is_never_replaced(cluster: str) -> None:
    ours = manager(items=ITEMS)
    ours.save(f"{cluster}/tc/once/1", state(1))
    with pytest.raises(FileExistsError, match="is committed"):
        ours.save(f"{cluster}/tc/once/1", state(2))
    assert same(ours.load(f"{cluster}/tc/once/1"), state(1))
    storage = CkptStorageConfig().create_storage()
    storage.rmdir(Path(f"{cluster}/tc/once/1"))
    assert not storage.exists(Path(f"{cluster}/tc/once/1"))
    ours.save(f"{cluster}/tc/once/1", state(3))
    assert same(ours.load(f"{cluster}/tc/once/1"), state(3))
    ours.close()


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_a_save_that_failed_leaves_nothing_to_the_next(
    cluster: str, fs: CkptFileSystemBase
) -> None:
    ours = manager()
    with pytest.raises(RuntimeError, match="not this one"):
        ours.save(f"{cluster}/tc/failed/1", {"a": torch.ones(3), "b": Unpicklable()})
    assert not fs.exists("tc/failed")
    ours.save(f"{cluster}/tc/failed/1", {"a": torch.zeros(2)})
    found = ours.load(f"{cluster}/tc/failed/1", into={"a": torch.ones(2)})
    assert torch.equal(found["a"], torch.zeros(2))
    ours.close()


def test_without_seals_the_commit_is_refused_by_name(cluster: str, fs: CkptFileSystemBase) -> None:
    ours = manager(pre_finalize_callback=None)
    with pytest.raises(ckpt.Refused, match="pre_finalize_callback=seal"):
        ours.save(f"{cluster}/tc/open/1", {"a": torch.ones(3)})
    assert not fs.exists("tc/open")
    ours.close()


def test_what_would_have_no_commit_is_refused_before_a_byte_is_written(
    cluster: str, fs: CkptFileSystemBase
) -> None:
    direct = SyncCheckpointSaverConfig(
        writer_config=CheckpointWriterConfig(write_to_temp_dir=False)
    )
    for options, path in (({"save": direct}, "tc/direct/1"), ({}, "tc/nostep")):
        ours = manager(**options)
        with pytest.raises(ckpt.Refused, match="it would have no commit"):
            ours.save(f"{cluster}/{path}", {"a": torch.ones(3)})
        assert not fs.exists(path)
        ours.close()
    storage = CkptStorageConfig(store=cluster).create_storage()
    with pytest.raises(ckpt.Refused, match="only tmp_STEP becomes STEP"):
        storage.rename(Path("tc/tmp_5"), Path("tc/6"))


# --------------------------------------------------------------------------- several ranks


def write(storage: CkptStorage, run: str, name: str, content: bytes = b"x") -> None:
    storage.write(Path(f"{run}/tmp_1/{name}"), content)


@pytest.fixture
def two(cluster: str, monkeypatch: pytest.MonkeyPatch) -> list[CkptStorage]:
    monkeypatch.setattr(sealing, "AGREE_WAIT_S", 1.0)
    return [CkptStorage(cluster, "tmp_", rank, 2) for rank in range(2)]


def commit(storage: CkptStorage, run: str) -> None:
    storage.rename(Path(f"{run}/tmp_1"), Path(f"{run}/1"), is_directory=True)


def test_a_rank_that_has_not_sealed_is_named_and_nothing_is_visible(
    fs: CkptFileSystemBase, two: list[CkptStorage]
) -> None:
    run = "tc/unsealed"
    for rank, storage in enumerate(two):
        write(storage, run, f"model_{rank}.pt")
    two[0].seal(Path(f"{run}/tmp_1"))
    assert two[1].ls(Path(f"{run}/tmp_1")) == ["model_0.pt", "model_1.pt"]
    with pytest.raises(ckpt.Refused, match="no seal of rank 1"):
        commit(two[0], run)
    assert not fs.exists(run)
    two[1].seal(Path(f"{run}/tmp_1"))
    commit(two[0], run)
    assert two[1].ls(Path(f"{run}/1")) == ["model_0.pt", "model_1.pt"]


def test_files_whose_writer_is_gone_are_not_left_out_silently(
    fs: CkptFileSystemBase, two: list[CkptStorage]
) -> None:
    """Both ranks have passed the barrier; one dies, and rank 0 comes late."""
    run = "tc/gone"
    for rank, storage in enumerate(two):
        write(storage, run, f"model_{rank}.pt")
        storage.seal(Path(f"{run}/tmp_1"))
    for held in two[1]._filesystems.values():
        held.close()  # As the end of its process does.
    folder = Path(f"{run}/tmp_1")
    wait_until(
        lambda: two[0].ls(folder) == ["model_0.pt"], "files leave with them", LIST_WAIT_S, ASKED_S
    )
    with pytest.raises(ckpt.Refused, match="no seal of rank 1"):
        commit(two[0], run)
    assert not fs.exists(run)


def test_a_second_try_begins_anew(fs: CkptFileSystemBase, two: list[CkptStorage]) -> None:
    run = "tc/again"
    for rank, storage in enumerate(two):
        write(storage, run, f"old_{rank}.pt")
        storage.seal(Path(f"{run}/tmp_1"))
    for rank, storage in enumerate(two):  # Nobody has renamed it.
        write(storage, run, f"new_{rank}.pt", b"new")
        storage.seal(Path(f"{run}/tmp_1"))
    commit(two[0], run)
    assert two[0].ls(Path(f"{run}/1")) == ["new_0.pt", "new_1.pt"]
    assert two[1].read(Path(f"{run}/1/new_1.pt")) == b"new"


def whole_state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "w": torch.randn(64, 48, generator=generator),
        "b": torch.randn(32, generator=generator),
    }


def cut(full: dict[str, torch.Tensor], zero: bool = False) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        name: distribute_tensor(tensor * (0 if zero else 1), mesh, [Shard(0)])
        for name, tensor in full.items()
    }


def reshard_manager() -> CheckpointManager:
    return manager(items={"model": ItemSpec(resharder=DefaultResharder())})


def save_cut_job(url: str) -> None:
    ours = reshard_manager()
    ours.save(url, {"model": cut(whole_state())})
    ours.close()


def load_cut_job(url: str) -> bool:
    ours = reshard_manager()
    target = cut(whole_state(), zero=True)
    ours.load(url, into={"model": target}, strict=True)
    ours.close()
    expected = cut(whole_state())
    return all(torch.equal(target[name].to_local(), expected[name].to_local()) for name in target)


def test_one_rank_saves_and_others_load_their_ranges(cluster: str, ranks: Ranks) -> None:
    """With resharding one rank alone: to save, several exchange what they hold on CUDA."""
    url = f"{cluster}/tc/resharded/12"
    ranks.run(1, save_cut_job, url)
    for count in (1, 2, 4):
        assert ranks.run(count, load_cut_job, url) == [True] * count


def part_of(rank: int, step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((50, 3), rank + step / 8)}, "rank": rank}


def save_job(url: str, asynchronous: bool) -> None:
    rank = dist.get_rank()
    ours = manager(asynchronous)
    for step in (1, 2):
        saving = ours.save(f"{url}/{step}", part_of(rank, step))
        if saving is not None:
            saving.result()
    ours.close()


def load_job(url: str) -> bool:
    rank = dist.get_rank()
    ours = manager()
    answers = []
    for step in (1, 2):
        found = ours.load(f"{url}/{step}", into={"model": None, "rank": None})
        expected = part_of(rank, step)
        answers.append(torch.equal(found["model"]["w"], expected["model"]["w"]))
        answers.append(found["rank"] == rank)
    ours.close()
    return all(answers)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_four_ranks_meet_in_one_commit(
    cluster: str, fs: CkptFileSystemBase, ranks: Ranks, asynchronous: bool
) -> None:
    run = f"tc/ranks{int(asynchronous)}"
    ranks.run(4, save_job, f"{cluster}/{run}", asynchronous)
    names = {path.rpartition("/")[2] for path in fs.ls(f"{run}/2", detail=False)}
    assert names == {f"{item}_{rank}.pt" for item in ("model", "rank") for rank in range(4)}
    assert ranks.run(4, load_job, f"{cluster}/{run}") == [True] * 4
