"""What `ckptbench gpu` measures, and what it found. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ckpt.base.units import GiB, KiB

SMALL_BYTES: Final = 52 * KiB
SMALL_COUNT: Final = 5000
"""Fewer where these would be more bytes than the large tensors' state."""
PREFIXES: Final = 8
MODES: Final = ("copy", "overlap", "dcp")
"""Two of ckpt's, and torch's own asynchronous save, for which a thread stages a GPU's state into
pinned, shared memory.
"""
LAYERS: Final = 16
GPU_WIDTH: Final = 4096
CPU_WIDTH: Final = 768
"""With GPU_WIDTH one step takes a core minutes."""


def usual_width(device: str) -> int:
    """Of the model's layers, where nobody asks for one."""
    return CPU_WIDTH if device == "cpu" else GPU_WIDTH


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What one rank measures on its device."""

    device: str
    """As torch names it."""
    directory: str
    """Of files that are written, which are removed with it."""
    size: int = GiB
    """Bytes of the large tensors' state."""
    tensors: int = 512
    loops: int = 5
    """Saves that count, of each kind; one before them does not."""
    steps: int = 10
    """Of the training after each save."""
    width: int = GPU_WIDTH
    """Of the model's LAYERS, and rows of its input."""

    @property
    def training_steps(self) -> int:
        """Of all rounds, with and without saves."""
        return (1 + self.loops) * (1 + len(MODES)) * self.steps


@dataclass(frozen=True, slots=True)
class StagingRow:
    """Saves of one state in one mode; medians."""

    state: str
    mode: str
    bytes: int
    call_s: float
    """The training stands still."""
    staged_s: float
    """From the call until the state may be changed by anything."""
    plain_s: float
    """One copy of the same bytes into torch's own locked memory, the fastest of some."""
    private_bytes: int
    """By which this process had grown after the first save of this kind; the arena is shared."""

    @property
    def of_plain(self) -> float:
        """The share of a plain copy's bandwidth."""
        return self.plain_s / self.staged_s if self.staged_s else 0.0


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Some steps of a training after a save; medians."""

    mode: str
    steps: int
    steps_s: float
    """Of all of them, the save's call included."""
    plain_s: float
    """Of as many steps without a save, in turns with them."""
    guard_s: float
    """What the optimizer's guard waited on the host."""

    @property
    def loss_s(self) -> float:
        """By which the steps were longer: what a training feels of a save."""
        return self.steps_s - self.plain_s


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One load of the large tensors' state, from the stager's memory and targets."""

    bytes: int
    first_s: float
    """Until the first of the PREFIXES, an equal share of the bytes, could be used."""
    whole_s: float
    private_bytes: int
    """By which this process had grown."""

    @property
    def of_share(self) -> float:
        """The first prefix's time by its share of the whole load's."""
        return self.first_s * PREFIXES / self.whole_s if self.whole_s else 0.0


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first save of a stager, of the large tensors' state in mode `copy`; of one run."""

    prepare_s: float
    """Until what `prepare` begins was there; 0 where it was not called."""
    call_s: float
    """The training stands still."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Everything that `ckptbench gpu` finds."""

    device: str
    torch: str
    first: list[FirstRow]
    staging: list[StagingRow]
    training: list[TrainingRow]
    load: LoadRow
