"""What must be read for the arrays of a load: byte ranges of payloads, its own and its homes'.

Memory: each destination is allocated once, and touched ahead of its bytes, which land in it
directly. Only an array that the caller gave and that is not C-contiguous is read aside and copied
over when all is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ckpt.aio.first_touch import AnyArray, FirstTouch
from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.index.rows import BoxRows
from ckpt.format.runs import Bytes
from ckpt.format.table import Meaning
from ckpt.plan.reads import PayloadKey, one_run, plan_read
from ckpt.transfer.landings import Landings

_BYTE: Final = np.dtype(np.uint8)
"""Not its type, which numpy would look up for each small tensor."""


@dataclass(slots=True)
class ReadSet:
    """All that one load reads, by the payload that holds it."""

    sharing: bool = False
    """Other ranks read at the same time: what they read too is kept apart, in `shared`."""
    landings: dict[PayloadKey, Landings] = field(default_factory=dict)
    shared: dict[PayloadKey, Landings] = field(default_factory=dict)
    """Of whole global tensors, which every rank that has them wants, and of boxes said to be so."""
    copies: list[tuple[AnyArray, AnyArray]] = field(default_factory=list)
    """(destination, what was read aside for it)."""
    memory: FirstTouch = field(default_factory=FirstTouch)
    """Of new destinations; entered while they are filled."""
    #: By whether they are shared, rank, term and counter of a run: to make a key for each small
    #: tensor costs more than its bytes.
    _runs: dict[tuple[bool, int, int | None, int | None], Landings] = field(default_factory=dict)

    def add_range(self, rank: Rank, start: int, memory: Bytes) -> None:
        """Bytes of the rank's payload in the generation that is read, from `start`, fill the
        memory."""
        self.landings.setdefault(PayloadKey(None, rank), Landings()).add_range(start, memory)

    def add_box(
        self, tensor: IndexTensor, boxes: Sequence[IndexBox], offset: tuple[int, ...],
        array: AnyArray,
        prefer: Rank | None = None, replica: bool = False,
    ) -> None:  # fmt: skip
        """Fill the array with the box at `offset` of the tensor, from the given index boxes.

        replica: other ranks read the same box.
        """
        memory = array
        if not array.flags.c_contiguous:
            memory = self.memory.array(array.shape, array.dtype)
            self.copies.append((array, memory))
        if not memory.nbytes:
            return
        is_shared = self.sharing and (replica or _is_whole(tensor, array))
        into = self.shared if is_shared else self.landings
        flat = (memory if memory.ndim == 1 else memory.reshape(-1)).view(_BYTE)
        if type(boxes) is BoxRows:
            boxes = boxes.near(offset, array.shape)
        run = one_run(boxes, len(flat), offset, array.shape)
        if run is not None:
            known = is_shared, run.rank, run.term, run.counter
            landings = self._runs.get(known)
            if landings is None:
                key = PayloadKey(run.generation, run.rank)
                landings = self._runs[known] = into.setdefault(key, Landings())
            landings.add_range(run.payload_offset, flat)
            return
        plan = plan_read(boxes, memory.dtype.itemsize, offset, array.shape, prefer)
        if plan.missing_bytes:
            raise Corrupt(f"{tensor.name}: {plan.missing_bytes} bytes of it lie nowhere")
        for source in plan.sources:
            landings = into.setdefault(source.payload, Landings())
            landings.add(flat, source.starts, source.lengths, source.destinations)

    def finish(self) -> None:
        """Everything was read: copy what was read aside."""
        for target, source in self.copies:
            np.copyto(target, source, casting="no")


def _is_whole(tensor: IndexTensor, array: AnyArray) -> bool:
    """Of a global tensor."""
    return tensor.meaning is not Meaning.OWN and array.shape == tensor.global_shape
