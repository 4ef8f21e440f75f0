"""A training whose every step changes its whole state: layers of one width under AdamW."""

from __future__ import annotations

import torch

LAYERS = 16


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
