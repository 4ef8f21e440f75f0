"""Lightning's paths: what was saved to one is listed, loaded and removed by it, and is what
Lightning's own files hold.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import ckpt
from ckpt.base.system_errors import Scarce
from ckpt_torch.lightning import (
    CkptIO,
    CkptModelCheckpoint,
    CkptModelParallelStrategy,
    as_file,
    load,
)
from ckpt_torch.lightning.paths import Paths
from tests.frameworks.gloo import Ranks
from tests.frameworks.warm import Warm
from tests.no_threads import SAYS, no_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Classifier(LightningModule):
    """Its `val` falls, rises, falls again: the best one is not the last."""

    VALUES = (0.9, 0.3, 0.5, 0.4)

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, width)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val", self.VALUES[self.current_epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(
    io: object, callbacks: list[Callback], epochs: int = 4, devices: int = 1, **options: object
) -> Trainer:
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=devices,
        plugins=[] if io is None else [io],
        callbacks=callbacks,
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
    trainer.fit(Classifier(), data, data, **options)
    return trainer


@pytest.fixture
def run(cluster: str, request: pytest.FixtureRequest) -> str:
    """A run of the test's own, by its URL."""
    return f"{cluster}/{request.node.name}"


def names(run: str) -> dict[str, int]:
    url, _, name = run.rpartition("/")
    with ckpt.open(url) as store:
        return store.names(name)


def steps(run: str) -> list[int]:
    url, _, name = run.rpartition("/")
    with ckpt.open(url) as store:
        return [commit.step for commit in store.steps(name)]


def test_the_best_one_by_its_metric_is_kept_and_loaded_by_its_path(
    run: str, tmp_path: Path
) -> None:
    kept = ModelCheckpoint(tmp_path, "{epoch}-{val:.2f}", monitor="val", save_top_k=1)
    fit(CkptIO(run), [kept])
    path = str(tmp_path / "epoch=1-val=0.30.ckpt")
    assert kept.best_model_path == path
    assert names(run) == {path: 4}
    assert steps(run) == [4]
    assert CkptIO(run).load_checkpoint(path)["epoch"] == 1
    again = ModelCheckpoint(tmp_path, "{epoch}-{val:.2f}", monitor="val", save_top_k=1)
    trainer = fit(CkptIO(run), [again], epochs=3, ckpt_path=path)
    assert trainer.global_step == 6


def test_two_callbacks_a_last_one_and_a_file_by_hand_each_have_their_own(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    best = ModelCheckpoint(tmp_path / "best", "{val:.1f}", monitor="val", save_top_k=2)
    last = ModelCheckpoint(tmp_path / "all", "{epoch}", save_top_k=1, save_last=True)
    io = CkptIO(run)
    trainer = fit(io, [best, last])
    trainer.save_checkpoint("final.ckpt")
    io.wait()
    expected = {
        "all/epoch=3.ckpt": 8, "all/last.ckpt": 8, "best/val=0.3.ckpt": 4, "best/val=0.4.ckpt": 8,
        "final.ckpt": 8,
    }  # fmt: skip
    assert names(run) == {str(tmp_path / name): step for name, step in expected.items()}
    assert steps(run) == [4, 8]
    for name, step in expected.items():
        assert CkptIO(run).load_checkpoint(name)["global_step"] == step, name
    for name in ("best/val=0.4.ckpt", "all/last.ckpt", "all/epoch=3.ckpt"):
        io.remove_checkpoint(name)
    io.wait()
    assert steps(run) == [4, 8], "one path names it still"
    assert load(run, "final.ckpt")["epoch"] == 4
    io.remove_checkpoint("final.ckpt")
    io.teardown()
    assert names(run) == {str(tmp_path / "best/val=0.3.ckpt"): 4}
    assert steps(run) == [4]


def two_of_one_name(folder: Path) -> list[Callback]:
    return [
        CkptModelCheckpoint(folder, "best", monitor="val", save_top_k=2, save_last=True),
        CkptModelCheckpoint(folder, "best", every_n_epochs=2, save_top_k=-1),
    ]


def test_paths_that_are_taken_get_a_suffix_as_among_files(run: str, tmp_path: Path) -> None:
    """Of one callback, of another, and of the training before."""
    for io in (None, CkptIO(run)):
        folder = tmp_path / ("files" if io is None else "store")
        for _ in range(2):
            fit(io, two_of_one_name(folder))
    files = {
        path.name: torch.load(path, weights_only=True)["global_step"]
        for path in (tmp_path / "files").iterdir()
    }
    assert {"best-v3.ckpt", "last-v1.ckpt"} <= files.keys()
    assert {os.path.basename(path): step for path, step in names(run).items()} == files


def test_two_callbacks_that_would_share_a_path_are_refused(run: str, tmp_path: Path) -> None:
    """Lightning's own look among local files alone, and one would delete what the other keeps."""
    pair = [
        ModelCheckpoint(tmp_path, monitor="val", save_top_k=1),
        ModelCheckpoint(tmp_path, save_top_k=-1),
    ]
    with pytest.raises(ckpt.Refused, match=r"epoch=0-step=2.ckpt is of two callbacks") as told:
        fit(CkptIO(run), pair)
    assert "CkptModelCheckpoint" in str(told.value.hint)


def test_the_bare_word_last_does_not_start_a_run_again_from_scratch(
    run: str, tmp_path: Path
) -> None:
    """Lightning looks for it among local files, finds none, and begins at step 0."""

    def kept() -> list[Callback]:
        return [CkptModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_last=True)]

    with pytest.warns(UserWarning, match="no last checkpoint available"):
        first = fit(CkptIO(run), kept(), epochs=2, ckpt_path="last")
    assert first.global_step == 4, "a run without a step begins there, as with files"
    with pytest.raises(ckpt.Refused, match="looks for files") as refused:
        fit(CkptIO(run), kept(), epochs=3, ckpt_path="last")
    assert f'ckpt_path="{run}"' in str(refused.value.hint)
    assert fit(CkptIO(run), kept(), epochs=3, ckpt_path=run).global_step == 6
    assert steps(run) == [2, 4, 6]


@pytest.mark.parametrize("wrapped", [lambda io: io, AsyncCheckpointIO], ids=["plain", "async"])
def test_a_last_one_that_is_a_link_is_a_second_name(
    run: str, tmp_path: Path, wrapped: Callable[[CkptIO], object]
) -> None:
    kept = CkptModelCheckpoint(tmp_path / "to", "{epoch}", save_top_k=-1, save_last="link")
    fit(wrapped(CkptIO(run)), [kept])
    expected = {f"epoch={epoch}.ckpt": 2 * (epoch + 1) for epoch in range(4)} | {"last.ckpt": 8}
    assert {os.path.basename(path): step for path, step in names(run).items()} == expected
    assert not (tmp_path / "to").exists()


def away_job(run: str, folder: str) -> str:
    """As under torchrun: only rank 0 asks the store, which is away."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update(launched, GROUP_RANK="0", TORCHELASTIC_RUN_ID="away")
    with pytest.raises(ckpt.CkptError) as told:
        fit(CkptIO(run), [CkptModelCheckpoint(folder, "{epoch}")], devices=int(size))
    return f"{type(told.value).__name__}: {told.value}"


def test_a_store_that_is_away_ends_all_ranks_with_its_error(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "burst").touch()
    run = f"ckpt+local://{tmp_path}/burst/away"
    first, second = ranks.run(2, away_job, run, str(tmp_path))
    assert "burst" in first
    assert second == first


class Normed(Classifier):
    """Sharded, but for its running means."""

    def configure_model(self) -> None:
        self.norm = torch.nn.BatchNorm1d(4, affine=False)
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(self.norm(batch[0])).square().mean()


def uneven_job(run: str, folder: str) -> tuple[list[float], list[float], object]:
    """A rank's running means after a fit, and what a load gives back of them and of a timer."""
    rank = str(dist.get_rank())
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(launched, GROUP_RANK="0", TORCHELASTIC_RUN_ID="uneven", MASTER_PORT="1")
    sizes: dict[str, Any] = {"data_parallel_size": 2, "tensor_parallel_size": 1}
    strategy, net = CkptModelParallelStrategy(CkptIO(run), **sizes), Normed()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy=strategy, logger=False,
        callbacks=[ModelCheckpoint(folder), Timer()], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(net, DataLoader(TensorDataset(torch.arange(32.0).view(8, 4)), batch_size=2))
    was = net.norm.running_mean.tolist()
    net.norm.running_mean.zero_()
    rest: Any = strategy.load_checkpoint(run)
    return was, net.norm.running_mean.tolist(), rest["callbacks"]["Timer"]["time_elapsed"]


def test_what_is_each_rank_s_own_is_the_first_one_s_as_in_lightning_s_own_folders(
    run: str, tmp_path: Path, ranks: Ranks
) -> None:
    """Ranks see other batches, and their clocks do not agree."""
    (first, *after), (second, *after_second) = ranks.run(2, uneven_job, run, str(tmp_path))
    assert first != second
    assert after == after_second
    assert after[0] == first


def test_a_path_that_was_saved_again_has_what_was_saved_last(run: str) -> None:
    io = CkptIO(run)
    for step in (1, 2, 2):
        io.save_checkpoint({"global_step": step, "w": torch.full((3,), float(step))}, "x/same.ckpt")
    io.save_checkpoint({"global_step": 2, "w": torch.full((3,), 9.0)}, "x/other.ckpt")
    io.teardown()
    assert sorted(map(os.path.basename, names(run))) == ["other.ckpt", "same.ckpt"]
    assert steps(run) == [2]
    assert CkptIO(run).load_checkpoint("x/same.ckpt")["w"].tolist() == [2.0] * 3
    assert CkptIO(run).load_checkpoint("x/other.ckpt")["w"].tolist() == [9.0] * 3


def test_after_a_rollback_last_is_the_newest_and_no_top_k_removes_what_is_aside(run: str) -> None:
    io = CkptIO(run)
    for step in (1, 2):
        for path in (f"x/step={step}.ckpt", "x/last.ckpt"):
            io.save_checkpoint({"global_step": step}, path)
    io.wait()
    aside = {"aside-2": 2, "aside-2.2": 2}  # A generation for each path.
    url, _, name = run.rpartition("/")
    with ckpt.open(url) as store:
        assert store.rollback(name, 1) == aside
    assert CkptIO(run).load_checkpoint("x/last.ckpt")["global_step"] == 1
    assert CkptIO(run).load_checkpoint("x/step=2.ckpt")["global_step"] == 2, "it was named"
    for path in ("x/step=2.ckpt", "x/last.ckpt"):
        io.remove_checkpoint(path)
    io.teardown()
    assert {each: step for each, step in names(run).items() if "aside" in each} == aside


def test_what_asynccheckpointio_wraps_leaves_nothing_uncommitted(run: str, tmp_path: Path) -> None:
    kept = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    fit(AsyncCheckpointIO(CkptIO(run)), [kept])
    assert list(names(run).values()) == [2, 4, 6, 8]


def test_a_module_is_loaded_without_a_trainer(run: str, tmp_path: Path) -> None:
    trainer = fit(CkptIO(run), [ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)], epochs=2)
    module = Classifier.load_from_checkpoint(as_file(run, "epoch=1.ckpt"), weights_only=True)
    assert trainer.model is not None
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    assert load(run)["hyper_parameters"] == {"width": 3}
    assert load(run, tmp_path / "epoch=0.ckpt")["global_step"] == 2


def test_a_link_names_what_it_points_to(run: str, tmp_path: Path) -> None:
    io = CkptIO(run)
    io.save_checkpoint({"global_step": 7}, tmp_path / "epoch=1.ckpt")
    io.teardown()
    (tmp_path / "last.ckpt").symlink_to(tmp_path / "epoch=1.ckpt")
    io.save_checkpoint({"global_step": 8}, tmp_path / "epoch=2.ckpt")
    io.teardown()
    assert CkptIO(run).load_checkpoint(tmp_path / "last.ckpt")["global_step"] == 7


def test_what_was_saved_without_a_name_is_found_by_its_number(run: str) -> None:
    """As a trainer leaves it that was killed between the commit and the name."""
    url, _, name = run.rpartition("/")
    with ckpt.open(url) as store:
        for step in (300, 301):
            store.save(name, step, {"global_step": step}, rank=0, world_size=1).wait(60.0)
    io = CkptIO(run)
    assert io.load_checkpoint("out/epoch=1-step=300.ckpt")["global_step"] == 300
    assert io.load_checkpoint("out/last-v1.ckpt")["global_step"] == 301
    assert io.load_checkpoint(run)["global_step"] == 301


def test_a_path_that_nobody_saved_is_not_found_and_one_of_several_is_refused(run: str) -> None:
    io = CkptIO(run)
    for number, folder in enumerate(("a", "b")):
        io.save_checkpoint({"global_step": number}, f"/{folder}/best.ckpt")
    io.wait()
    with pytest.raises(ckpt.NotFound, match=r"blast.ckpt is no checkpoint") as missing:
        io.load_checkpoint("out/blast.ckpt")
    assert "/a/best.ckpt" in missing.value.hint
    with pytest.raises(ckpt.Refused, match="may be each of 2"):
        io.load_checkpoint("best.ckpt")
    io.remove_checkpoint("never/saved.ckpt")
    io.wait()
    with pytest.raises(ckpt.Refused, match="1 to 1024 are allowed"):
        io.save_checkpoint({"global_step": 9}, "/" + "x" * 1100)
    assert steps(run) == [0, 1]


def test_a_script_that_ends_without_a_wait_has_named_what_it_saved(
    run: str, warm: Warm, tmp_path: Path
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"""
from ckpt_torch.lightning import CkptIO
CkptIO({run!r}).save_checkpoint({{"global_step": 5}}, "/out/final.ckpt")
""")
    subprocess.run(warm.command(script), check=True, timeout=120)
    assert names(run) == {"/out/final.ckpt": 5}


def test_an_io_that_goes_to_another_process_takes_no_thread_along(run: str) -> None:
    io = CkptIO(run)
    io.save_checkpoint({"global_step": 1}, "/out/a.ckpt")
    io.teardown()
    copy = deepcopy(io)  # As pickle does it, where ranks are spawned.
    copy.save_checkpoint({"global_step": 2}, "/out/b.ckpt")
    copy.teardown()
    assert names(run) == {"/out/a.ckpt": 1, "/out/b.ckpt": 2}


def test_names_that_got_no_thread_say_so_and_go_on_afterwards(cluster: str) -> None:
    paths = Paths()
    with ckpt.open(cluster) as store:
        with no_threads(), pytest.raises(Scarce, match=SAYS):
            paths.remove(store, "scarce", "a.ckpt")
        paths.remove(store, "scarce", "a.ckpt")  # There is none, as with files.
        paths.wait()
        paths.close()
