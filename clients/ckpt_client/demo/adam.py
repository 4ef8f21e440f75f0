"""Adam over a slice of the flat parameter vector: a slice gets the same bits as the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AdamRates:
    """How fast it learns."""

    rate: float = 2e-3
    warmup_steps: int = 10
    """The rate grows to its value over so many steps."""
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8


@dataclass(slots=True)
class Moments:
    """The optimizer's memory of one slice."""

    mean: Floats32
    square: Floats32


def take_step(
    rates: AdamRates, parameters: Floats32, gradient: Floats32, moments: Moments, step: int
) -> None:
    """Move `parameters` against `gradient`, in place. `step` counts from 1."""
    moments.mean *= rates.beta1
    moments.mean += (1.0 - rates.beta1) * gradient
    moments.square *= rates.beta2
    moments.square += (1.0 - rates.beta2) * (gradient * gradient)
    rate = rates.rate * min(1.0, step / rates.warmup_steps) / (1.0 - rates.beta1**step)
    spread = np.sqrt(moments.square * (1.0 / (1.0 - rates.beta2**step)))
    spread += rates.epsilon
    parameters -= rate * moments.mean / spread
