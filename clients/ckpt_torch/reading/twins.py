"""Names that stand for one piece of memory, as those of tied weights do, or share a part of it, as
views of a flat parameter.

The name whose part comes first fills it. What the checkpoint has under the others is read aside in
pieces and compared: where it differs, the memory cannot hold both, and none may win without a
word. Of names that share a part alone each is filled, and each compared.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ckpt.base.errors import Refused
from ckpt.base.units import MiB
from ckpt_client.load.batches import WholeBox, batches
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.plan import ItemPlaces, Spans, any_meet, overlapping
from ckpt_client.save.arrays import AnyArray
from ckpt_torch.reading.device_reads import narrowed, part_of
from ckpt_torch.tensors import as_array

PIECE_BYTES: Final = 128 * MiB
"""What is read aside at a time, whatever the tensor's size: of many pieces each costs a launch's
ranks a word with the coordinator."""


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """A name whose memory another one fills."""

    filled_by: str
    """Or what fills a part of it as well."""
    tensor: torch.Tensor
    """Detached, of the box's shape and the stored dtype; any strides, any device."""
    want: Want
    """Its array has the shape and dtype; nothing is written to it."""
    in_part: bool = False
    """It shares a part of its memory alone, and is filled itself."""


def place_of(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that are the same elements of the same memory; None where there are
    none."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def are_apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the first and last elements of each say that it shares its memory with no other."""
    return not any(map(any_meet, _spans(tensors)))


def shared_parts(tensors: Sequence[torch.Tensor], parts: Sequence[int]) -> list[int]:
    """In which part each tensor is filled, where `parts` are those that their names belong to: the
    first of all that share its memory, as far as their first and last elements say. What was
    handed out is not written again.
    """
    found = list(parts)
    if len(set(parts)) < 2:
        return found
    for device in _spans(tensors):
        group: list[int] = []
        end = 0
        for start, stop, number in sorted(device.tolist()):
            if start >= end:
                group = []
            group.append(number)
            end = max(end, stop)
            first = found[group[0]]
            for one in group if found[number] < first else [number]:
                found[one] = min(first, found[number])
    return found


def shared_memory(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """Numbers of those that share some of their memory with another one, and that one's."""

    def place(number: int) -> ItemPlaces:
        one = tensors[number]
        strides = [step * one.itemsize for step in one.stride()]
        return ItemPlaces(one.data_ptr(), one.shape, strides, one.itemsize)

    return overlapping(_spans(tensors), place)


def _spans(tensors: Sequence[torch.Tensor]) -> Collection[Spans]:
    """Of each device, the host first; the loops are C's."""
    table = np.empty((len(tensors), 3), np.int64)
    table[:, 0] = list(map(torch.Tensor.data_ptr, tensors))
    table[:, 1] = table[:, 0] + list(map(_bytes_of, tensors))
    table[:, 2] = np.arange(len(tensors))
    is_dense = np.fromiter(map(torch.Tensor.is_contiguous, tensors), np.bool_, len(tensors))
    is_here = np.fromiter(map(_is_cpu, tensors), np.bool_, len(tensors))
    has_items = table[:, 1] > table[:, 0]
    for number in np.flatnonzero(has_items & ~is_dense).tolist():
        table[number, 1] = table[number, 0] + _reach(tensors[number])
    there: dict[torch.device, list[int]] = {}
    for number in np.flatnonzero(has_items & ~is_here).tolist():
        there.setdefault(tensors[number].device, []).append(number)
    return [table[has_items & is_here], *(table[numbers] for numbers in there.values())]


_bytes_of: Final = attrgetter("nbytes")
_is_cpu: Final = attrgetter("is_cpu")


def _reach(tensor: torch.Tensor) -> int:
    """From its first element's first byte to its last one's end, of one that has elements."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * step for size, step in steps) + 1) * tensor.itemsize


def find_twins(
    places: Sequence[tuple[torch.Tensor, Want]],
) -> tuple[list[tuple[torch.Tensor, Want]], list[Twin]]:
    """Of memory that is filled in one part: what fills it, the first of names of one tensor, and
    what `check_twins` is to compare afterwards.
    """
    first: dict[Hashable, Want] = {}
    filled: list[tuple[torch.Tensor, Want]] = []
    twins: list[Twin] = []
    for tensor, want in places:
        here = place_of(tensor)
        filler = want if here is None else first.setdefault(here, want)
        if filler is want:
            filled.append((tensor, want))
        else:
            twins.append(Twin(filler.name, tensor, want))
    for number, other in shared_memory([tensor for tensor, _ in filled]).items():
        tensor, want = filled[number]
        twins.append(Twin(filled[other][1].name, tensor, want, in_part=True))
    return filled, twins


def check_twins(contents: Contents, twins: Iterable[Twin]) -> None:
    """Their memory is filled. Raises Refused naming two names that differ, and as
    `Contents.fill`.
    """
    for twin in twins:
        if not all(_agree(contents, twin)):
            names = f"{twin.want.name} and {twin.filled_by}"
            here = "share a part of their memory" if twin.in_part else "are one tensor"
            raise Refused(
                f"{names} {here} here, and two in the checkpoint, which differ",
                hint="load into a state that does not tie them, or leave out the name that is not "
                "wanted",
            )


def _agree(contents: Contents, twin: Twin) -> Iterator[bool]:
    box = WholeBox(tuple(twin.tensor.shape), twin.tensor.itemsize)
    for pieces in batches([box], PIECE_BYTES):
        for piece in pieces:
            aside = contents.new_array(piece.shape, twin.want.array.dtype)
            contents.fill([part_of(twin.want, piece, aside)])
            here = as_array(narrowed(twin.tensor, piece).cpu())
            yield np.array_equal(_bits(here), _bits(aside))


def _bits(array: AnyArray) -> NDArray[np.uint8]:
    """NaN equals itself, and 0.0 is not -0.0."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
