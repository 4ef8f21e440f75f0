"""How many bytes does each rank save for a model of MLPerf Storage? Exact, unequal where it is.

The arithmetic of DLIO's transformer workload, which the rules name: parameters in fp16, optimizer
state in fp32 three times. With ZeRO-3 all ranks hold as much; with ZeRO-1 the ranks of the first
data-parallel group also write the model, and pipeline stages hold unequal numbers of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import align_up

MODEL_BYTES: Final = 2
OPTIMIZER_BYTES: Final = 4
OPTIMIZER_STATES: Final = 3
SCALED_UNIT: Final = 4096


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer and how it is cut over ranks."""

    layers: int
    hidden: int
    feed_forward: int
    vocabulary: int
    heads: int
    key_value_heads: int
    tensor: int
    """Ranks that share a layer."""
    pipeline: int
    """Stages, each with some of the layers."""
    data: int
    """Copies of the model, over which ZeRO shards."""
    zero: int
    """1: the optimizer is sharded; 3: the model as well."""

    @property
    def ranks(self) -> int:
        """As the closed division fixes them."""
        return self.tensor * self.pipeline * self.data

    @property
    def parameters(self) -> int:
        embedding = self.vocabulary * self.hidden
        layer = (
            self.hidden * self._attention
            + self.hidden**2
            + 3 * self.hidden * self.feed_forward
            + 2 * self.hidden
        )
        return 2 * embedding + self.layers * layer + self.hidden

    def rank_bytes(self) -> tuple[int, ...]:
        """Of each rank."""
        optimizer = self._optimizer_bytes()
        stages = [self._stage_bytes(stage) for stage in range(self.pipeline)]
        model_ranks = self.ranks if self.zero == 3 else self.tensor * self.pipeline
        return tuple(
            optimizer + (stages[rank // self.tensor % self.pipeline] if rank < model_ranks else 0)
            for rank in range(self.ranks)
        )

    @property
    def _attention(self) -> int:
        """Columns of queries, keys and values."""
        return self.hidden + 2 * (self.hidden // self.heads) * self.key_value_heads

    def _optimizer_bytes(self) -> int:
        share = self.parameters // self.ranks
        return OPTIMIZER_STATES * OPTIMIZER_BYTES * (share + 5 * self.hidden)

    def _stage_bytes(self, stage: int) -> int:
        """Of one rank's part of a pipeline stage's layers."""
        each, more = divmod(self.layers, self.pipeline)
        total = (each + (stage < more)) * self._layer_bytes()
        if stage == 0:
            total += self._part(self.vocabulary * self.hidden, self.tensor)
        if stage == self.pipeline - 1:
            total += self._part(self.vocabulary * self.hidden, self.tensor)
            total += self._part(self.hidden, 1)
        return total

    def _layer_bytes(self) -> int:
        hidden, tensor = self.hidden, self.tensor
        return (
            2 * self._part(hidden, 1)
            + self._part(hidden * self._attention, tensor)
            + self._part(hidden**2, tensor)
            + self._part(2 * hidden * self.feed_forward, tensor)
            + self._part(hidden * self.feed_forward, tensor)
        )

    def _part(self, parameters: int, tensor: int) -> int:
        shards = self.data if self.zero == 3 else 1
        return parameters // tensor // shards * MODEL_BYTES


MODELS: Final[Mapping[str, Model]] = {
    "llama3-8b": Model(32, 4096, 14336, 128256, 32, 8, tensor=1, pipeline=1, data=8, zero=3),
    "llama3-70b": Model(80, 8192, 28672, 128256, 128, 8, tensor=8, pipeline=1, data=8, zero=3),
    "llama3-405b": Model(126, 16384, 53248, 128256, 128, 8, tensor=8, pipeline=32, data=2, zero=1),
    "llama3-1t": Model(128, 25872, 98304, 128256, 192, 32, tensor=8, pipeline=64, data=2, zero=1),
}


def find(name: str) -> Model:
    """The model `llama3-405b`, also as `405b`. Raises Refused."""
    for full, model in MODELS.items():
        if name in (full, full.removeprefix("llama3-")):
            return model
    raise Refused(f"no model is called {name!r}", hint=f"one of {', '.join(MODELS)}")


def scaled_bytes(name: str, scale: Fraction, ranks: int) -> tuple[int, ...]:
    """Bytes of each of `ranks` ranks that stand for the model's, in whole pages.

    With fewer ranks than the model has, ranks at equal distances stand for it, so that what is
    unequal stays so. Raises Refused.
    """
    found = find(name)
    everyone = found.rank_bytes()
    if ranks > len(everyone):
        raise Refused(f"{name} has {len(everyone)} ranks, not {ranks}")
    picked = [everyone[number * len(everyone) // ranks] for number in range(ranks)]
    return tuple(align_up(max(1, int(size * scale)), SCALED_UNIT) for size in picked)
