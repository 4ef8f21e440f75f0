"""CkptManager with torchtitan's own optimizers, schedulers, dataloader and configuration, under
FSDP2: the parts that its trainer builds, in its order. The trainer itself needs an accelerator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import ckpt
from ckpt_client.cli.main import main
from tests.frameworks.gloo import Ranks
from tests.waiting import wait_until

pytest.importorskip("torchtitan", reason="make test-frameworks installs it")

from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import BaseCheckpointManager, CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ConfigManager, Configurable
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

from ckpt_torch.place import find_where, find_who
from ckpt_torch.staging.known import recall
from ckpt_torch.torchtitan import CkptManager

WIDTH = 12


class Rows(IterableDataset):  # type: ignore[type-arg]
    """Its place comes back with the dataloader's state."""

    def __init__(self, rank: int) -> None:
        self.rank, self.place = rank, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.place += 1
            seed = torch.Generator().manual_seed(1000 * self.rank + self.place)
            yield torch.randn(WIDTH, generator=seed)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Training:
    """What torchtitan's Trainer does, on CPU: same parts, same order, same calls."""

    def __init__(
        self, config: BaseCheckpointManager.Config, adapter: BaseStateDictAdapter | None = None
    ) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(WIDTH, 33), nn.ReLU(), nn.Linear(33, WIDTH))
        if world_size > 1:
            fully_shard(self.model)
        self.step = self.ntokens_seen = 0
        optimizer = default_adamw(lr=0.01)
        optimizer.implementation = "for-loop"
        self.optimizers = optimizer.build(model_parts=[self.model])
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
            optimizers=self.optimizers, training_steps=10
        )
        self.dataloader = ParallelAwareDataloader(Rows(rank), rank, world_size, batch_size=4)
        self.config = config
        self.checkpointer = config.build(
            dataloader=self.dataloader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers,
            states={"train_state": self},
            sd_adapter=adapter,
            base_folder="./outputs",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def run(self, steps: int, ends_at: int | None = None) -> str:
        """Where it began, where it ended, and all that it is then. The job ends after `steps`, the
        training after `ends_at`.
        """
        self.checkpointer.load(step=self.config.load_step)
        begun = self.step
        rows = iter(self.dataloader)
        while self.step < steps:
            self.step += 1
            batch = next(rows)
            self.ntokens_seen += batch.numel()
            self.optimizers.zero_grad()
            (self.model(batch) - batch).square().mean().backward()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.lr_schedulers.step()
            self.checkpointer.save(self.step, last_step=self.step == ends_at)
        self.checkpointer.close()
        return f"{begun} {self.step} {self.ntokens_seen} {self.learnt()}"

    def learnt(self) -> str:
        moments = [
            state["exp_avg"] for optimizer in self.optimizers for state in optimizer.state.values()
        ]
        return f"{sum_of(self.model.parameters())} {sum_of(moments)}"


def sum_of(tensors: Iterable[torch.Tensor]) -> str:
    """To the last bit."""
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in tensors]
    return sum(one.double().abs().sum().item() for one in whole).hex()


def config(folder: str, **more: Any) -> CkptManager.Config:
    return CkptManager.Config(enable=True, folder=folder, **{"interval": 2, **more})


def train_job(steps: int, ends_at: int | None, settings: dict[str, Any]) -> str:
    return Training(config(**settings)).run(steps, ends_at)


def steps_of(cluster: str, run: str) -> list[int]:
    with ckpt.open(cluster) as store:
        return [commit.step for commit in store.steps(run)]


@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_training_goes_on_with_the_same_bits(cluster: str, ranks: Ranks, mode: str) -> None:
    whole = {"async_mode": mode, "last_save_model_only": False}
    calm = {"folder": f"{cluster}/titan/calm-{mode}", **whole}
    broken = {"folder": f"{cluster}/titan/broken-{mode}", **whole}
    expected = ranks.run(2, train_job, 7, 7, calm)[0]
    ranks.run(2, train_job, 5, None, broken)
    assert ranks.run(2, train_job, 7, 7, broken)[0] == expected.replace("0 7", "4 7", 1)
    assert steps_of(cluster, f"titan/broken-{mode}") == [2, 4, 6, 7]


def preparing_job(folder: str, load_only: bool) -> bool:
    """Whether a training that has not saved yet is ready for it."""
    training = Training(config(folder, interval=50, load_only=load_only))
    store, who = find_where(folder, None).store, find_who(None, no_dist=False)
    before = recall(store, who)
    training.run(3)
    return recall(store, who) is not before


@pytest.mark.parametrize("load_only", [False, True])
def test_a_training_is_ready_for_its_first_save_after_its_first_step(
    cluster: str, ranks: Ranks, load_only: bool
) -> None:
    folder = f"{cluster}/titan/ready-{load_only}"
    assert ranks.run(2, preparing_job, folder, load_only) == [not load_only] * 2
    assert steps_of(cluster, f"titan/ready-{load_only}") == []


def own_job(folder: str, steps: int) -> str:
    """torchtitan's own manager, by URL or path."""
    return Training(CheckpointManager.Config(enable=True, folder=folder, interval=2)).run(steps)


def test_what_torchtitan_s_own_manager_wrote_by_url_is_resumed(cluster: str, ranks: Ranks) -> None:
    folder = f"{cluster}/titan/own"
    calm = ranks.run(2, own_job, f"{cluster}/titan/own-calm", 6)[0]
    ranks.run(2, own_job, folder, 4)
    assert ranks.run(2, train_job, 6, None, {"folder": folder})[0] == calm.replace("0 6", "4 6", 1)


def fields_job(folder: str) -> list[str]:
    """What torchtitan's fields of saving and resuming do, one after another."""
    first = Training(config(folder, enable_first_step_checkpoint=True)).run(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        back = Training(config(folder, load_step=2, load_only=True)).run(4)
    if dist.get_rank() == 0:
        with pytest.warns(UserWarning, match=r"steps up to 6.*ckpt rollback .*fields@2"):
            Training(config(folder)).checkpointer.load(2)
    else:
        Training(config(folder)).checkpointer.load(2)
    with pytest.raises(ckpt.NotFound, match="fields@3"):
        Training(config(folder)).checkpointer.load(3)
    assert not Training(CkptManager.Config(folder=folder)).checkpointer.load()
    return [first, back]


def test_fields_of_saving_and_resuming_mean_what_they_do_in_torchtitan(
    cluster: str, ranks: Ranks
) -> None:
    first, back = ranks.run(2, fields_job, f"{cluster}/titan/fields")[0]
    assert steps_of(cluster, "titan/fields") == [1, 2, 4, 6], "load_only saves nothing"
    assert (first[:3], back[:3]) == ("0 6", "2 4")
    ranks.run(2, train_job, 8, None, {"folder": f"{cluster}/titan/fields", "keep_latest_k": 3})
    wait_until(lambda: steps_of(cluster, "titan/fields") == [4, 6, 8], "steps that go")


def other_size_job(folder: str) -> tuple[str, str]:
    """A rank alone, which has another part of the data."""
    part = Training(config(folder, exclude_from_loading=["dataloader", "lr_scheduler"]))
    assert part.checkpointer.load()
    assert part.lr_schedulers.schedulers[0].last_epoch == 0
    with pytest.raises(ckpt.Refused, match=r"names sampler.*the parts are dataloader, lr_sch"):
        Training(config(folder, exclude_from_loading=["sampler"])).checkpointer.load()
    return f"{part.step}", part.learnt()


def test_another_number_of_ranks_resumes_without_the_dataloader(cluster: str, ranks: Ranks) -> None:
    folder = f"{cluster}/titan/sizes"
    saved = ranks.run(2, train_job, 4, None, {"folder": folder})[0]
    step, learnt = ranks.run(1, other_size_job, folder)[0]
    assert step == "4"
    assert saved.endswith(learnt)


def end_job(folder: str) -> tuple[str, str]:
    """The last step is what `last_save_model_only` and `export_dtype` say."""
    whole = Training(config(folder, export_dtype="bfloat16"))
    whole.run(4, ends_at=4)
    with pytest.raises(ckpt.Refused, match=r"end@4 has the model alone.*train_state/step") as told:
        Training(config(folder)).checkpointer.load()
    assert "--checkpoint.load_step" in str(told.value.hint)
    begun = Training(config(f"{folder}-2", initial_load_path=folder))
    assert begun.checkpointer.load()
    assert (begun.step, next(begun.model.parameters()).dtype) == (0, torch.float32)
    rounded = [one.bfloat16().float() for one in whole.model.parameters()]
    return sum_of(rounded), sum_of(begun.model.parameters())


def test_the_last_step_is_exported_and_another_run_begins_from_it(
    cluster: str, ranks: Ranks, tmp_path: Path
) -> None:
    rounded, begun = ranks.run(2, end_job, f"{cluster}/titan/end")[0]
    assert begun == rounded
    line = ["export", "titan/end@4", str(tmp_path / "dcp"), "--format", "dcp", "--store", cluster]
    assert main(line) == 0
    found = {"0.weight": torch.zeros(33, WIDTH, dtype=torch.bfloat16)}
    with warnings.catch_warnings(action="ignore"):  # DCP's, of a process group that is not there.
        dcp.load(found, checkpoint_id=tmp_path / "dcp")
    assert found["0.weight"].any(), "what torchtitan's converter asks for is there"


class Adapter(BaseStateDictAdapter):
    """A model's, between torchtitan's names and Hugging Face's."""

    fqn_to_index_mapping = None

    def __init__(self, model_config: None, hf_assets_path: str | None) -> None:
        self.hf_assets_path = hf_assets_path

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {f"model.{name}": value for name, value in state_dict.items()}

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("model."): value for name, value in hf_state_dict.items()}

    def get_hf_storage_reader(
        self, path: str, from_quantized: bool = False
    ) -> HuggingFaceStorageReader:
        assert not from_quantized
        return HuggingFaceStorageReader(path)


def begin_job(folder: str, path: str) -> None:
    """A run without a step begins where `initial_load_*` says."""
    weights = {
        f"{name}": one for name, one in Training(config(f"{folder}-x")).model.named_parameters()
    }
    whole = {name: torch.full(one.shape, 0.5) for name, one in weights.items()}
    if dist.get_rank() == 0:
        save_file(Adapter(None, None).to_hf(whole), Path(path, "model.safetensors"))
    dist.barrier()
    hf = config(folder, initial_load_in_hf=True)
    for adapter, settings in (
        (Adapter(None, path), hf),
        (Adapter(None, None), config(folder, initial_load_in_hf=True, initial_load_path=path)),
    ):
        training = Training(settings, adapter)
        assert training.checkpointer.load()
        assert sum_of(training.model.parameters()) == sum_of(whole.values())
    with pytest.raises(ckpt.Refused, match="no state_dict_adapter"):
        Training(hf).checkpointer.load()
    with pytest.raises(ckpt.Refused, match="None is no folder"):
        Training(hf, Adapter(None, None)).checkpointer.load()


def from_path_job(folder: str, path: str) -> str:
    own_job(path, 4)
    settings = {"initial_load_path": f"{path}/step-4", "initial_load_model_only": False}
    return Training(config(folder, **settings)).run(6)


def test_a_run_begins_from_files_of_others(cluster: str, ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(2, begin_job, f"{cluster}/titan/hf", str(tmp_path))
    calm = ranks.run(2, own_job, str(tmp_path / "calm"), 6)[0]
    found = ranks.run(2, from_path_job, f"{cluster}/titan/from-path", str(tmp_path / "dcp"))[0]
    assert found == calm.replace("0 6", "4 6", 1)


def seed_job(folder: str) -> str:
    """As `create_seed_checkpoint` has it."""
    seed = Training(config(folder))
    torch.nn.init.constant_(next(seed.model.parameters()), 0.25)
    seed.checkpointer.save(curr_step=0, last_step=True)
    return sum_of(seed.model.parameters())


def from_seed_job(folder: str) -> str:
    training = Training(config(folder))
    assert training.checkpointer.load()
    assert training.step == 0
    return sum_of(training.model.parameters())


def test_a_seed_of_one_rank_begins_a_training_of_several(cluster: str, ranks: Ranks) -> None:
    seeded = ranks.run(1, seed_job, f"{cluster}/titan/seed")
    assert ranks.run(2, from_seed_job, f"{cluster}/titan/seed") == seeded * 2


def test_what_cannot_be_meant_is_refused(cluster: str) -> None:
    with pytest.raises(ckpt.Refused, match="last_save_in_hf") as told:
        config(f"{cluster}/titan/hf", last_save_in_hf=True)
    assert "ckpt export" in str(told.value.hint)
    for wrong in ({"async_mode": "asynch"}, {"export_dtype": "bf16"}):
        (name, value), *_ = wrong.items()
        with pytest.raises(ckpt.Refused, match=f"checkpoint.{name}: '{value}' is none of"):
            config(f"{cluster}/titan/wrong", **wrong)
    with pytest.raises(ckpt.Refused, match="s3://bucket/run is the URL of no store of ckpt's"):
        built(config("s3://bucket/run"))
    with pytest.raises(ckpt.Refused, match="names a step"):
        built(config(f"{cluster}/titan/5"))
    with pytest.raises(ckpt.Refused, match="torchtitan's default, 'checkpoint'"):
        built(CkptManager.Config(enable=True))


def built(settings: CkptManager.Config) -> BaseCheckpointManager:
    return settings.build(
        dataloader=None,
        model_parts=[],
        optimizers=None,
        lr_schedulers=None,
        states={},
        sd_adapter=None,
    )


@dataclass(kw_only=True, slots=True)
class Job(Configurable.Config):
    """The part of a trainer's configuration that this is about."""

    hf_assets_path: str = "."
    checkpoint: BaseCheckpointManager.Config = field(default_factory=CheckpointManager.Config)


def own_config() -> Job:
    return Job(checkpoint=CkptManager.Config(enable=True, interval=500))


def test_the_command_line_changes_its_fields(cluster: str) -> None:
    line = f"--checkpoint.folder {cluster}/titan/line --checkpoint.async-mode async"
    parsed = ConfigManager().parse_args(
        ["--module", __name__, "--config", "own_config", *line.split()]
    )
    settings = parsed.checkpoint
    assert (type(settings), settings.interval) == (CkptManager.Config, 500)
    assert (settings.folder, settings.async_mode) == (f"{cluster}/titan/line", "async")
    assert not built(settings).load()
