"""Which states of random number generators does the Trainer look for in a checkpoint's folder?"""

from __future__ import annotations

import random
from typing import Protocol, cast

import numpy as np
import torch


class DeviceGenerators(Protocol):
    """As `torch.cuda.random`: one generator for each device that this process sees."""

    def get_rng_state(self) -> torch.Tensor:
        """Of the current device."""

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Of each device."""


def random_states(devices: DeviceGenerators | None, *, of_all: bool) -> dict[str, object]:
    """Of this process, as a state that is saved.

    devices: None where there is no CUDA.
    of_all: one of several processes gives each device its state back, not its own one alone.
    """
    states: dict[str, object] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if devices is not None:
        states["cuda"] = devices.get_rng_state_all() if of_all else devices.get_rng_state()
    return states


def as_saved_by_trainer(states: dict[str, object]) -> dict[str, object]:
    """What was loaded of them, as it stands in the Trainer's file."""
    kind, keys, *rest = cast(tuple[object, ...], states["numpy"])
    assert isinstance(keys, torch.Tensor)
    return {**states, "numpy": (kind, keys.numpy(), *rest)}
