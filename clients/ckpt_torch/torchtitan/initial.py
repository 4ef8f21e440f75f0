"""Where a run without a step begins: torchtitan's `initial_load_*`.

ckpt://..., ckpt+local://...     a step of a store, of whatever run
any other path or URL            a checkpoint of DCP's
initial_load_in_hf               safetensors, in the path or else in the model's hf_assets_path
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed.checkpoint as dcp

from ckpt.base.errors import Refused
from ckpt_client.fs import paths
from ckpt_torch.torchtitan.reading import fill_from, resolve_step
from ckpt_torch.torchtitan.states import TrainingStates

if TYPE_CHECKING:
    from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter


@dataclass(frozen=True, slots=True)
class InitialLoad:
    """What the configuration says of it, as torchtitan's fields `initial_load_*`."""

    path: str | None
    model_only: bool
    in_hf: bool
    quantized: bool
    adapter: BaseStateDictAdapter | None
    allow_pickle: bool

    def fill(self, states: TrainingStates) -> bool:
        """Load it; False when nothing is named. Raises Refused, NotFound, Unavailable, Lost, and
        what DCP raises.
        """
        if self.in_hf:
            self._fill_from_hf(states)
            return True
        if not self.path:
            return False
        if _is_ours(self.path):
            with resolve_step(self.path) as checkpoint:
                fill_from(
                    checkpoint,
                    self.path,
                    states,
                    model_only=self.model_only,
                    allow_pickle=self.allow_pickle,
                )
        else:
            state = states.to_load(model_only=self.model_only)
            dcp.load(state, checkpoint_id=self.path)
            states.take_back(state)
        return True

    def _fill_from_hf(self, states: TrainingStates) -> None:
        if self.adapter is None:
            raise Refused(
                "checkpoint.initial_load_in_hf: the model has no state_dict_adapter",
                hint="its ModelSpec names one, or initial_load_path names a checkpoint of DCP's",
            )
        path = self.path or self.adapter.hf_assets_path
        if not path or not os.path.isdir(path):
            raise Refused(
                f"checkpoint.initial_load_in_hf: {path!r} is no folder",
                hint="--checkpoint.initial_load_path or --hf_assets_path names the safetensors'",
            )
        found = self.adapter.to_hf(states.model())
        dcp.load(found, storage_reader=self.adapter.get_hf_storage_reader(path, self.quantized))
        states.take_back(self.adapter.from_hf(found))


def _is_ours(path: str) -> bool:
    return paths.is_url(paths.REMOTE, path) or paths.is_url(paths.LOCAL, path)
