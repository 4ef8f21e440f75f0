"""Arrays of another program, as a Source: at most one of them is held at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ckpt.base.ids import Rank
from ckpt.base.units import MiB
from ckpt.format.checksum import Xxh3
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import DictNode, LeafNode, Node, path_text
from ckpt.objects.documents import Header
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Wish
from ckpt_client.exchange.arrays import Elements, Incoming, byte_count

DIGEST_BYTES: Final = 8 * MiB
"""Of an array, read at once for its digest; one row at least."""


class IncomingSource:
    """A flat dict of arrays, as if one rank had saved it."""

    metrics: Mapping[str, float] = {}

    def __init__(self, arrays: Sequence[Incoming], run: str, step: int, kind: str) -> None:
        """Every array is read once, for what tells this import from one of other bytes: such a one
        may have been interrupted in the place where this one is to go.
        """
        self._arrays = {path_text((array.name,)): array for array in arrays}
        self._names = [array.name for array in arrays]
        #: The array that was read last, open: chunks of an array come together.
        self._open: tuple[str, Elements] | None = None
        try:
            digest = self._digest()
        finally:
            self.close()
        self.header = Header(
            run=run, step=step, generation="0.1", cluster="", launch=0, world_size=1,
            committed_at_s=0.0, source=f"{kind} {digest}",
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
            self._elements(wish.tensor.name).read(wish.offset, wish.memory)

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()

    def _digest(self) -> str:
        whole = Xxh3()
        for name, array in sorted(self._arrays.items()):
            whole.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            content = Xxh3()
            if byte_count(array):
                self._add(content, name, array)
            whole.update(content.digest())
        return whole.digest().hex()

    def _add(self, content: Xxh3, name: str, array: Incoming) -> None:
        """Its elements' bytes, some rows at a time."""
        shape = array.shape or (1,)
        at_once = max(1, DIGEST_BYTES // (byte_count(array) // shape[0]))
        for low in range(0, shape[0], at_once):
            rows = (min(at_once, shape[0] - low),) * bool(array.shape)
            memory = np.empty((*rows, *array.shape[1:]), dtype_of(array.dtype))
            self._elements(name).read((low, *(0 for _ in shape[1:]))[: memory.ndim], memory)
            content.update(memory.reshape(-1).view(np.uint8).data)

    def _elements(self, name: str) -> Elements:
        if self._open is None or self._open[0] != name:
            self.close()  # First, so that two are never held.
            self._open = name, self._arrays[name].opened()
        return self._open[1]
