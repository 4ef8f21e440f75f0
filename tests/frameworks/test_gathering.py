"""Small tensors of an accelerator, whatever their types and forms: they meet on their device, cross
as one copy, and no bit of theirs changes on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import pytest
import torch

from ckpt.base.units import align_up
from ckpt_client.save.packing import ITEM_ALIGN
from ckpt_torch.device.accelerators import accelerator_of
from ckpt_torch.device.gathering import GATHER_BYTES
from tests.frameworks.device.emulated import NAME, Carried, Emulated

MANY, SOME = 5_000, 150
KINDS = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.complex64, torch.complex128,
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
SHAPES: tuple[tuple[int, ...], ...] = ((7,), (), (3, 5), (64,), (1, 2, 3), (33,))
"""Most end before the next one's place begins."""
ALIKE: tuple[tuple[int, ...], ...] = ((64,),)
"""Without gaps, of every type: they are one row."""


def random_bits(shape: tuple[int, ...], kind: torch.dtype, maker: torch.Generator) -> torch.Tensor:
    """Of numbers that are none as well, with every kind of payload."""
    room = torch.empty(shape, dtype=kind).nbytes
    high = 2 if kind is torch.bool else 256
    raw = torch.randint(0, high, (room,), generator=maker, dtype=torch.uint8)
    return raw.view(kind).view(shape)


def side_by_side(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> list[torch.Tensor]:
    """Their places in the memory, as a layout gives them."""
    places, end = [], 0
    for tensor in tensors:
        size = tensor.nbytes
        places.append(memory[end : end + size].view(tensor.dtype).view(tensor.shape))
        end = align_up(end + size, ITEM_ALIGN)
    return places


def gathered(device: Emulated, tensors: Sequence[torch.Tensor]) -> tuple[list[bytes], Carried]:
    """The bytes that arrive of each tensor of the device, and what went over its link for them."""
    room = sum(align_up(tensor.nbytes, ITEM_ALIGN) for tensor in tensors)
    memory = torch.zeros(room, dtype=torch.uint8, pin_memory=True)
    places, accelerator = side_by_side(tensors, memory), accelerator_of(torch.device(NAME, 0))
    before = device.counters().to_host
    plan = accelerator.plan_out(tensors, places)
    accelerator.copy_out(plan, tensors, accelerator.now()).wait()
    after = device.counters().to_host
    went = Carried(
        after.copies - before.copies,
        after.registered_bytes - before.registered_bytes,
        after.unregistered_bytes - before.unregistered_bytes,
        0.0,
    )
    return [bits(place) for place in places], went


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check_one_copy(
    device: Emulated,
    count: int,
    kinds: tuple[torch.dtype, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    maker = torch.Generator().manual_seed(count)
    forms = islice(zip(cycle(shapes), cycle(kinds), strict=False), count)
    wanted = [random_bits(shape, kind, maker) for shape, kind in forms]
    # Those of two axes lie turned in their device's memory.
    there = [one.t().to(NAME).t() if one.dim() == 2 else one.to(NAME) for one in wanted]
    found, went = gathered(device, there)
    assert found == [bits(one) for one in wanted]
    size = sum(tensor.nbytes for tensor in wanted)
    assert size <= went.registered_bytes <= GATHER_BYTES
    assert (went.copies, went.unregistered_bytes) == (1, 0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_those_of_a_kind_cross_as_one_copy(device: Emulated, kind: torch.dtype) -> None:
    for shapes in (SHAPES, ALIKE):
        check_one_copy(device, SOME, (kind,), shapes)


def test_five_thousand_of_every_kind_cross_as_one_copy(device: Emulated) -> None:
    check_one_copy(device, MANY, KINDS, SHAPES)
