"""What a torchtitan checkpoint holds: parts by name, the model's tensors among them by their own.

    whole          {"train_state", "optimizer", "lr_scheduler", "dataloader", tensors of the model}
    the model      its tensors alone: the step 0 of a seed, and the last one of a training

It is torchtitan's own layout, so that what it knows of a name is true here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torchtitan.components.checkpointer import MODEL, ModelWrapper

from ckpt.base.errors import Refused
from ckpt_client.load.trees import listed


class TrainingStates:
    """I know the parts of a training, and which of them a save or a load is about."""

    def __init__(self, parts: Mapping[str, object], excluded: Sequence[str]) -> None:
        """parts: by name, a ModelWrapper as MODEL among them. excluded: what no load fills."""
        model = parts[MODEL]
        assert isinstance(model, ModelWrapper)
        self._model = model
        self._rest = {name: part for name, part in parts.items() if name != MODEL}
        self._excluded = excluded

    def whole(self) -> dict[str, object]:
        """All that a training needs to go on."""
        return {**self._rest, **self._model.state_dict()}

    def model(self) -> dict[str, object]:
        """The weights alone, as they lie in memory."""
        return dict(self._model.state_dict())

    def exported(self, dtype: torch.dtype) -> dict[str, object]:
        """The weights alone, floating point ones as `dtype`."""
        return {
            name: value.to(dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in self.model().items()
        }

    def to_load(self, *, model_only: bool) -> dict[str, object]:
        """What a load is to fill. Raises Refused for an exclusion that names no part."""
        unknown = sorted(set(self._excluded) - self._rest.keys())
        if unknown:
            raise Refused(
                f"checkpoint.exclude_from_loading names {listed(unknown)}, which is no part",
                hint=f"the parts are {listed(sorted(self._rest))}",
            )
        if model_only:
            return self.model()
        kept = {name: part for name, part in self._rest.items() if name not in self._excluded}
        return {**kept, **self._model.state_dict()}

    def take_back(self, loaded: Mapping[str, object]) -> None:
        """The model's part of a state that was loaded; all other parts have theirs."""
        self._model.load_state_dict(dict(loaded))
