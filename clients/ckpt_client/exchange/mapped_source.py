"""Arrays of another program, as a Source: at most one of them is held at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ckpt.base.ids import Rank
from ckpt.format.checksum import Xxh3, xxh3_128
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import DictNode, LeafNode, Node, path_text
from ckpt.objects.documents import Header
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Array, Wish
from ckpt_client.exchange.arrays import Incoming


class MappedSource:
    """A flat dict of arrays, as if one rank had saved it."""

    metrics: Mapping[str, float] = {}

    def __init__(self, arrays: Sequence[Incoming], run: str, step: int, kind: str) -> None:
        """Every array is read once, for what tells this import from one of other bytes: such a one
        may have been interrupted in the place where this one is to go.
        """
        self._arrays = {path_text((array.name,)): array for array in arrays}
        self._names = [array.name for array in arrays]
        #: The array that was read last, mapped: chunks of an array come together.
        self._held: tuple[str, Array] | None = None
        self.header = Header(
            run=run, step=step, generation="0.1", cluster="", launch=0, world_size=1,
            committed_at_s=0.0, source=f"{kind} {self._digest()}",
        )  # fmt: skip

    def tensors(self) -> Sequence[IndexTensor]:
        return [
            IndexTensor(
                name,
                Meaning.REPLICATED,
                array.dtype,
                array.shape,
                (IndexBox(Rank(0), (0,) * len(array.shape), array.shape, ()),),
            )
            for name, array in sorted(self._arrays.items())
        ]

    def trees(self) -> Mapping[Rank, Node]:
        leaves = ((name, LeafNode(path_text((name,)))) for name in self._names)
        return {Rank(0): DictNode(tuple(leaves))}

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        for wish in wishes:
            go_on()
            part = tuple(
                slice(o, o + n) for o, n in zip(wish.offset, wish.memory.shape, strict=True)
            )
            wish.memory[...] = self._content(wish.tensor.name)[part]

    def close(self) -> None:
        self._held = None

    def _digest(self) -> str:
        whole = Xxh3()
        for name, array in sorted(self._arrays.items()):
            whole.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            content = np.ascontiguousarray(self._content(name)).reshape(-1)
            whole.update(xxh3_128(content.view(np.uint8).data))
        return whole.digest().hex()

    def _content(self, name: str) -> Array:
        if self._held is None or self._held[0] != name:
            self._held = None  # First, so that two are never held.
            self._held = name, self._arrays[name].mapped()
        return self._held[1]
