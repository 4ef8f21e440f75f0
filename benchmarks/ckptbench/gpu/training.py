"""A training whose every step changes its whole state: layers of one width under AdamW."""

from __future__ import annotations

import time

import torch

from ckptbench.gpu.plan import LAYERS, GpuPlan
from ckptbench.gpu.savers import synchronize

PROBE_WIDTH_MAX = 1024
MULTIPLICATIONS = 3
"""Of a layer in a step, of about the same size."""


def expected_s(plan: GpuPlan) -> float:
    """How long all steps take, from one multiplication on the device; at most of PROBE_WIDTH_MAX,
    since the plan's own may take minutes.
    """
    width = min(plan.width, PROBE_WIDTH_MAX)
    one = torch.randn(width, width, device=plan.device)
    times = []
    for _ in range(2):  # The first sets the device up.
        synchronize()
        begun = time.perf_counter()
        torch.mm(one, one)
        synchronize()
        times.append(time.perf_counter() - begun)
    each_s = min(times) * (plan.width / width) ** 3
    return each_s * MULTIPLICATIONS * LAYERS * plan.training_steps


class GpuTraining:
    """The model and its optimizer, on one device."""

    def __init__(self, device: str, width: int) -> None:
        layers = [torch.nn.Linear(width, width, device=device) for _ in range(LAYERS)]
        self._model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._inputs = torch.randn(width, width, device=device)
        self.forward_and_back()
        self.optimizer.step()

    def forward_and_back(self) -> None:
        """Queue all of a step but the optimizer's."""
        self.optimizer.zero_grad()
        self._model(self._inputs).square().mean().backward()

    def state(self) -> dict[str, object]:
        """The state in the form that a save takes."""
        # DCP's stager takes no OrderedDict (torch 2.11).
        model = dict(self._model.state_dict())
        return {"model": model, "optimizer": self.optimizer.state_dict()}
