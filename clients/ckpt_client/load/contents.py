"""What a committed generation holds, for adapters that choose by themselves what to read.

Names are paths as text (`ckpt.format.tree.path_text`). Nothing here changes dtypes or shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from ckpt.aio.collector import collector_paused
from ckpt.aio.first_touch import FirstTouch
from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.index.rows import boxes_of
from ckpt.format.table import Meaning
from ckpt.format.tree import Node, Scalar
from ckpt_client.load.plan import TensorIndex, checked_dtype, variants_of
from ckpt_client.load.reading import Reading
from ckpt_client.load.trees import WholeWalk, box_inside, scalars_of
from ckpt_client.save.arrays import AnyArray


class Want(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A box of a stored tensor, and the memory that it fills."""

    name: str
    array: AnyArray
    """Writable, of the box's shape and the stored dtype; any strides."""
    offset: tuple[int, ...]
    """Of the box in the global tensor."""
    rank: Rank | None = None
    """Whose tensor, where it belongs to ranks; None when only one has it."""
    replica: bool = False
    """Other ranks of this load want the same box; a whole global tensor is taken for one anyway."""
    form: IndexTensor | None = None
    """What the box is a part of, where `Contents.variants` has said it in the same attempt, with
    nothing to choose from: one form, of a global tensor."""


def shape_alone(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
    """An array without memory of its own, to ask about a want that is read in pieces."""
    # A read-only item stands for all: `np.broadcast_to` costs twenty times as much.
    return np.ndarray(shape, dtype, bytes(dtype.itemsize), strides=(0,) * len(shape))


class _Shapes(FirstTouch):
    """Arrays without memory of their own."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
        return shape_alone(shape, dtype)


class _NothingRead:
    """BoxReads of who wants to know what there is, and no more."""

    def __init__(self) -> None:
        self.memory: FirstTouch = _Shapes()

    def add_box(
        self, tensor: IndexTensor, boxes: Sequence[IndexBox], offset: tuple[int, ...],
        array: AnyArray,
        prefer: Rank | None = None, replica: bool = False,
    ) -> None:  # fmt: skip
        """Passed over."""


class Contents:
    """I show one generation during one attempt of `Checkpoint.read`; do not keep me."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._memory = FirstTouch()
        #: What the index says of a name: it is asked for each look at a want, and checks it.
        self._variants: dict[str, tuple[IndexTensor, ...]] = {}
        #: From the first question on.
        self._index: TensorIndex | None = None
        #: Those that were asked for.
        self._trees: dict[Rank, Node] = {}

    def ranks(self) -> list[Rank]:
        """Those that saved, ascending."""
        return self._reading.ranks()

    def tensors(self) -> Iterator[IndexTensor]:
        """All of them by name, with their boxes."""
        yield from self._reading.index.tensors()

    def variants(self, name: str) -> tuple[IndexTensor, ...]:
        """Every tensor of that name: ranks may have their own; empty when there is none."""
        found = self._variants.get(name)
        if found is None:
            if self._index is None:
                self._index = self._reading.index
            found = self._variants[name] = variants_of(self._index, name)
        return found

    def values(self, rank: Rank) -> dict[str, Scalar]:
        """Plain values of a rank's tree, by path."""
        return {name: node.value for name, node in scalars_of(self.tree(rank)).items()}

    def tree(self, rank: Rank) -> Node:
        """A rank's tree as it was saved; it is read once."""
        if rank not in self._trees:
            self._trees[rank] = self._reading.documents([rank])[rank]
        return self._trees[rank]

    def shapes(self) -> object:
        """The union of all ranks' trees, as `Checkpoint.load(whole=True)` gives it, whose arrays
        have their dtypes and shapes and neither memory nor bytes. No tensor is read.
        """
        documents = self._reading.documents(self._reading.ranks())
        return WholeWalk(self._reading.index, _NothingRead()).merge(documents)

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
        """Memory for a want, whose pages `fill` touches ahead of the bytes; not filled."""
        return self._memory.array(shape, dtype)

    def is_shared(self, want: Want) -> bool:
        """Whether other ranks of this load are taken to want the same box, so that it is read by
        one and passed on. Nothing is read, and the array may be one without memory
        (`shape_alone`). Raises as `fill`.
        """
        tensor = self._checked(want)
        is_whole = tensor.meaning is not Meaning.OWN and want.array.shape == tensor.global_shape
        return want.replica or is_whole

    def expect(self, wanted_bytes: int, *, in_pieces: bool) -> None:
        """Say, before anything else is asked, how much will be filled at most, in however many
        calls: what that needs is made ready meanwhile.

        in_pieces: mostly arrays of less than some MiB.
        """
        self._reading.expect(wanted_bytes, in_pieces=in_pieces)

    def fill(self, wants: Iterable[Want]) -> None:
        """Read every wanted byte once. Raises NotFound for an unknown name, Refused by name for
        another dtype or a box that reaches out of the tensor; nothing is read then.

        May be called again, over the same connections. What is shared (`is_shared`) ends together
        on all ranks that read it at the same time, and counts as the same only within one call:
        ranks that read it in several calls part it in the same way and order.
        """
        reads = self._reading.new_reads()
        reads.memory = self._memory
        with collector_paused():
            for want in wants:
                tensor = self._checked(want)
                boxes = tensor.boxes
                if tensor.meaning is Meaning.OWN and want.rank is not None:
                    boxes = boxes_of(boxes, want.rank)
                reads.add_box(
                    tensor, boxes, want.offset, want.array, want.rank, replica=want.replica
                )
        self._reading.read(reads)

    def _checked(self, want: Want) -> IndexTensor:
        """The tensor that the wanted box is a part of. Raises NotFound, Refused."""
        tensor = self._tensor(want)
        shape, whole = want.array.shape, tensor.global_shape
        if shape != whole or any(want.offset) or len(want.offset) != len(whole):
            box_inside(want.name, want.offset, shape, whole)
        checked_dtype(want.name, tensor, want.array)
        return tensor

    def _tensor(self, want: Want) -> IndexTensor:
        if want.form is not None:
            return want.form
        found = self.variants(want.name)
        if len(found) == 1 and found[0].meaning is not Meaning.OWN:
            return found[0]
        if not found:
            raise NotFound(f"{want.name}: the checkpoint has no tensor of that name")
        mine = [
            tensor
            for tensor in found
            if tensor.meaning is not Meaning.OWN
            or (want.rank is not None and boxes_of(tensor.boxes, want.rank))
        ]
        if mine:
            return mine[0]
        owners = [box.rank for tensor in found for box in tensor.boxes]
        if len(owners) > 1:
            raise Refused(f"{want.name}: belongs to ranks {owners[:8]}: say whose is wanted")
        return found[0]
