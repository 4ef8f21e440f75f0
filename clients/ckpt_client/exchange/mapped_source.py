"""Arrays that lie in files, as a Source: read through the page cache, never held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt.base.ids import Rank
from ckpt.format.index import Box, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import DictNode, LeafNode, Node, path_text
from ckpt.objects.documents import Header
from ckpt.objects.source import Wish
from ckpt_client.exchange.safetensors_file import StoredArray


class MappedSource:
    """A flat dict of arrays, as if one rank had saved it."""

    def __init__(self, arrays: Sequence[StoredArray], run: str, step: int, kind: str) -> None:
        self.header = Header(
            run=run, step=step, generation="0.1", cluster="", launch=0, world_size=1,
            committed_at_s=0.0, source=kind,
        )  # fmt: skip
        self._arrays = {path_text((array.name,)): array for array in arrays}
        self._names = [array.name for array in arrays]

    def tensors(self) -> Sequence[IndexTensor]:
        return [
            IndexTensor(
                name,
                Meaning.REPLICATED,
                array.dtype,
                array.shape,
                (Box(Rank(0), (0,) * len(array.shape), array.shape, ()),),
            )
            for name, array in sorted(self._arrays.items())
        ]

    def trees(self) -> Mapping[Rank, Node]:
        leaves = ((name, LeafNode(path_text((name,)))) for name in self._names)
        return {Rank(0): DictNode(tuple(leaves))}

    def read(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            part = tuple(
                slice(o, o + n) for o, n in zip(wish.offset, wish.memory.shape, strict=True)
            )
            wish.memory[...] = self._arrays[wish.tensor.name].mapped()[part]

    def close(self) -> None:
        """Nothing is held."""
