"""Which small tensors meet in a buffer of their device, so that one copy moves them all?

targets   | a | b | c |gap| d | e | f |      small ones, side by side in host memory: a run
buffer    | a | b | c |   | d | e | f |      laid out alike; rows and scattered tensors fill it
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import torch

from ckpt.base.units import MiB
from ckpt_client.save.packing import ITEM_ALIGN, Picker, picker

GATHER_BYTES: Final = 16 * MiB
"""Of a buffer, and so of a run at most."""
GATHERED_BYTES: Final = 4 * MiB
"""Smaller tensors are gathered: each copy of its own costs the link some microseconds, 5 % of what
2 MiB take, and the gathering beside them next to nothing."""
ROW_MIN: Final = 8
"""Fewer small tensors are not worth a call of their own."""
#: CUDA's gather of scattered tensors computes with some types, and makes other NaNs of NaNs.
_BITS: Final = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.bool: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}


class Gathering(Protocol):
    """Small tensors that are copied into the buffer together."""

    def gather(self, sources: Sequence[object]) -> None:
        """Queue the copy on the current stream; `sources` are all of the plan. Every bit is
        kept.
        """


@dataclass(frozen=True, slots=True)
class TensorRow:
    """Alike but for their first axis, with no gap between them: the cheapest to queue."""

    pick: Picker
    """Takes their sources."""
    place: torch.Tensor
    """Where they go in the buffer."""

    def gather(self, sources: Sequence[object]) -> None:
        torch.cat(cast(Sequence[torch.Tensor], self.pick(sources)), out=self.place)


@dataclass(frozen=True, slots=True)
class Scattered:
    """Of one dtype."""

    pick: Picker
    """Takes their sources."""
    bits: torch.dtype | None
    """The type that they are copied as, where their own would not keep every bit."""
    places: list[torch.Tensor]
    """Where they go in the buffer."""

    def gather(self, sources: Sequence[object]) -> None:
        picked = cast(Sequence[torch.Tensor], self.pick(sources))
        bits = self.bits
        found = list(picked) if bits is None else [source.view(bits) for source in picked]
        torch._foreach_copy_(self.places, found)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A run."""

    target: torch.Tensor
    """Its bytes in host memory, gaps included."""
    groups: list[Gathering]

    @classmethod
    def of(
        cls, run: Sequence[int], targets: Sequence[torch.Tensor], buffer: torch.Tensor
    ) -> Gathered:
        """run: numbers of targets, as `runs_of` gives them."""
        first, last = targets[run[0]].data_ptr(), targets[run[-1]]
        memory = _host_bytes(first, last.data_ptr() + last.nbytes - first)
        groups: list[Gathering] = []
        scattered: dict[torch.dtype, list[int]] = {}
        for row in _rows_of(run, targets):
            if len(row) >= ROW_MIN:
                place = _place(row, targets, first, buffer).view(-1, *targets[row[0]].shape[1:])
                groups.append(TensorRow(picker(tuple(row)), place))
            else:
                scattered.setdefault(targets[row[0]].dtype, []).extend(row)
        for kind, numbers in scattered.items():
            bits = _BITS.get(kind)
            places = [
                _place([n], targets, first, buffer).view(bits or kind).view(targets[n].shape)
                for n in numbers
            ]
            groups.append(Scattered(picker(tuple(numbers)), bits, places))
        return cls(memory, groups)


def runs_of(targets: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Numbers of targets that one copy can fill: small ones, side by side; large ones alone."""
    run: list[int] = []
    first = end = 0
    for number, target in enumerate(targets):
        start, size = target.data_ptr(), target.nbytes
        beside = 0 <= start - end < ITEM_ALIGN and start + size - first <= GATHER_BYTES
        both_small = run and max(size, targets[run[0]].nbytes) < GATHERED_BYTES
        if run and not (beside and both_small):
            yield run
            run = []
        if not run:
            first = start
        run.append(number)
        end = start + size
    if run:
        yield run


def _rows_of(run: Sequence[int], targets: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Parts of a run without gaps, alike but for their first axis; else single targets."""
    row: list[int] = []
    for number in run:
        target, before = targets[number], targets[row[-1]] if row else None
        if before is not None and not (
            before.data_ptr() + before.nbytes == target.data_ptr()
            and before.dtype is target.dtype
            and before.dim() == target.dim() > 0
            and before.shape[1:] == target.shape[1:]
        ):
            yield row
            row = []
        row.append(number)
    if row:
        yield row


def _place(
    row: Sequence[int], targets: Sequence[torch.Tensor], first: int, buffer: torch.Tensor
) -> torch.Tensor:
    """Of a row, in the buffer; first: the address of the run's first byte."""
    last = targets[row[-1]]
    start, end = targets[row[0]].data_ptr() - first, last.data_ptr() + last.nbytes - first
    return buffer[start:end].view(last.dtype)


def _host_bytes(address: int, size: int) -> torch.Tensor:
    """A view of memory that somebody else keeps."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
