"""Under Lightning and Accelerate the first save finds its memory, made after the first step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import ckpt
import ckpt_torch.preparing
from ckpt_client.save.handle import Commit
from ckpt_torch.accelerate import CkptHooks
from ckpt_torch.lightning import CkptIO, CkptModelCheckpoint, CkptModelParallelStrategy
from tests.frameworks.gloo import Ranks

WAIT_S = 60.0
STEPS = 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]
Prepared = list[Future[None]]


class Patched:
    """Waits for whatever is prepared, so that no save overtakes it."""

    def __init__(self) -> None:
        self.futures: Prepared = []
        self._prepare = ckpt_torch.preparing.prepare

    def __call__(self, *args: Any, **options: Any) -> Future[None]:
        self.futures.append(self._prepare(*args, **options))
        self.futures[-1].result(WAIT_S)
        return self.futures[-1]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    patched = Patched()
    monkeypatch.setattr(ckpt_torch.preparing, "prepare", patched)
    return patched.futures


class Net(LightningModule):
    """Buffers, and a part that no optimizer has."""

    def __init__(self, sharded: bool = False) -> None:
        super().__init__()
        self.sharded = sharded
        self.frozen = torch.nn.Linear(64, 64).requires_grad_(False)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))

    def configure_model(self) -> None:
        if self.sharded:
            fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(self.frozen(batch[0])).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Ends(Callback):
    """What became of the saves of a fit."""

    def __init__(self, io: CkptIO) -> None:
        self.io = io
        self.commits: list[Commit] = []

    def on_train_end(self, *_: Any) -> None:
        self.commits = [future.result(WAIT_S) for future in self.io._pending]


def fit(io: CkptIO, folder: Path, saver: Callback, **options: Any) -> list[Commit]:
    ends = Ends(io)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, default_root_dir=folder,
        callbacks=[saver, ends], enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    torch.manual_seed(7)  # What is not sharded is the same on all ranks.
    net = Net(sharded="strategy" in options)
    trainer.fit(net, DataLoader(TensorDataset(torch.rand(4 * STEPS, 64)), batch_size=4))
    return ends.commits


def each(count: int) -> Callable[[Path], Callback]:
    return lambda folder: CkptModelCheckpoint(folder, every_n_train_steps=count, save_top_k=-1)


def test_a_fit_is_prepared_after_its_first_step(
    cluster: str, tmp_path: Path, prepared: Prepared
) -> None:
    with ckpt.open(cluster, launch="fit") as store:
        io = CkptIO("fit", store=store)
        commits = fit(io, tmp_path, each(2)(tmp_path), plugins=[io])
        assert [one.fault_in_s for one in commits] == [0, 0]
    assert len(prepared) == 1


def test_a_fit_that_saves_after_its_first_step_or_only_at_its_end_is_not_prepared(
    cluster: str, tmp_path: Path, prepared: Prepared
) -> None:
    for count in (1, 0):
        run = f"{cluster}/at-once-{count}"
        fit(CkptIO(run), tmp_path, each(count)(tmp_path), plugins=[CkptIO(run)])
    assert not prepared


def test_lightning_s_own_thread_finds_the_memory_that_was_prepared(
    cluster: str, tmp_path: Path, prepared: Prepared
) -> None:
    with ckpt.open(cluster, launch="thread") as store:
        io = CkptIO("thread", store=store)
        fit(io, tmp_path, each(2)(tmp_path), plugins=[AsyncCheckpointIO(io)])
        assert [one.fault_in_s for one in store.steps("thread")] == [0, 0]
    assert len(prepared) == 1


def sharded_job(url: str, folder: str) -> tuple[int, list[float], bool]:
    patched, rank = Patched(), str(dist.get_rank())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ckpt_torch.preparing, "prepare", patched)
        # As torchrun starts ranks.
        seat = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**seat, "TORCHELASTIC_RUN_ID": "fit", "MASTER_PORT": "1"}.items():
            patch.setenv(name, value)
        with ckpt.open(url, launch="sharded") as store:
            io = CkptIO("sharded", store=store)
            strategy = CkptModelParallelStrategy(io)
            saver = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1)
            commits = fit(
                io, Path(folder), saver, devices=2, use_distributed_sampler=False,
                strategy=strategy,
            )  # fmt: skip
            strategy.optimizers = []  # As in a validation or a test.
            rest = strategy.load_checkpoint("sharded")
    faults = [one.fault_in_s for one in commits]
    return len(patched.futures), faults, rest["global_step"] == commits[-1].step


def test_sharded_ranks_prepare_their_own_part(cluster: str, tmp_path: Path, ranks: Ranks) -> None:
    found = ranks.run(2, sharded_job, cluster, str(tmp_path))
    assert found == [(1, [0.0, 0.0], True)] * 2


def test_accelerate_is_prepared_after_the_first_step(
    cluster: str, tmp_path: Path, prepared: Prepared
) -> None:
    accelerator = Accelerator(cpu=True)
    with ckpt.open(cluster, launch="accelerate") as store:
        hooks = CkptHooks("accelerated", store=store).attach(accelerator)
        net = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.BatchNorm1d(9))
        optimizer = torch.optim.AdamW(net.parameters())
        net, optimizer = accelerator.prepare(net, optimizer)
        for _ in range(3):
            net(torch.rand(5, 7)).square().mean().backward()
            optimizer.step()
        assert len(prepared) == 1
        accelerator.save_state(str(tmp_path / "step_3"))
        (commit,) = [future.result(WAIT_S) for future in hooks._pending]
        assert commit.fault_in_s == 0


def test_accelerate_that_saves_first_is_not_prepared(
    cluster: str, tmp_path: Path, prepared: Prepared
) -> None:
    accelerator = Accelerator(cpu=True)
    hooks = CkptHooks(f"{cluster}/saved-first").attach(accelerator)
    net = torch.nn.Linear(7, 9)
    optimizer = torch.optim.SGD(net.parameters())
    net, optimizer = accelerator.prepare(net, optimizer)
    accelerator.save_state(str(tmp_path / "step_0"))
    net(torch.rand(5, 7)).sum().backward()
    optimizer.step()
    hooks.wait()
    assert not prepared
