"""A torch tensor's memory as a numpy array of the same element type: no copy, no conversion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import compress
from operator import add, attrgetter, le, mul, not_
from typing import Final

import ml_dtypes
import numpy as np
import torch

from ckpt.base.errors import Refused
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt_client.load.contents import shape_alone
from ckpt_client.save.arrays import AnyArray, check_memory

#: torch type -> (integer type of its size that torch shares with numpy, the numpy type).
_EXTENSIONS: Final = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu),
}
Sizes = tuple[Sequence[int], Sequence[int]]
"""Bytes of an element and bytes of all, of each tensor."""
PLAIN_TENSORS: Final = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
"""Exact types: a subclass may mean something else by its memory."""


def as_array(tensor: torch.Tensor) -> AnyArray:
    """A view of a dense CPU tensor's memory, with its strides; writing to it writes the tensor.

    Raises Refused for what has no such memory or no numpy type of its own.
    """
    plain = as_plain_array(tensor, tensor.dtype)
    if plain is not None:
        return plain
    check_plain(tensor)
    if not tensor.is_cpu:
        raise Refused(f"a tensor on {tensor.device}", hint="move it to the CPU")
    if tensor.requires_grad:
        tensor = tensor.detach()
    extension = _EXTENSIONS.get(tensor.dtype)
    try:
        if extension is not None:
            integers, kind = extension
            return tensor.view(integers).numpy().view(kind)
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise Refused(
            f"a {tensor.dtype} tensor has no numpy form: {error}",
            hint="save, and load into, its view(torch.uint8), which holds every bit",
        ) from None


def as_plain_array(value: object, kind: torch.dtype) -> AnyArray | None:
    """`as_array` of what nearly all tensors are, at a quarter of its time: of that dtype, whole in
    their memory, without gaps, on the CPU. None for all else: `as_array` has the word for it.
    """
    if type(value) not in PLAIN_TENSORS:
        return None
    tensor: torch.Tensor = value  # type: ignore[assignment]  # A call of `cast` costs more.
    if tensor.dtype != kind:
        return None
    extension = _EXTENSIONS.get(kind)
    try:
        # First: numpy makes memory of its own for what has none.
        end = tensor.storage_offset() * kind.itemsize + tensor.nbytes
        if end > tensor.untyped_storage().nbytes() or not tensor.is_contiguous():
            return None
        if tensor.requires_grad:
            tensor = tensor.detach()
        if extension is not None:
            return tensor.view(extension[0]).numpy().view(extension[1])
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return None


def check_plain(tensor: torch.Tensor) -> None:
    """Raises Refused unless the tensor's memory, on the CPU or an accelerator, is what it says."""
    kind = type(tensor)
    if kind not in PLAIN_TENSORS:
        raise Refused(
            f"a {kind.__module__}.{kind.__qualname__} is no plain tensor",
            hint="save the tensors that it is made of",
        )
    if tensor.is_quantized:
        raise Refused(
            "a quantized tensor", hint="save int_repr(), and by what it was scaled, or dequantize()"
        )
    if tensor.layout is not torch.strided:
        raise Refused(f"a tensor of layout {tensor.layout}", hint="only dense tensors are stored")
    if tensor.is_meta:
        raise Refused(
            "a tensor on meta", hint="give the model memory first, by its to_empty(device=...)"
        )
    if not (tensor.is_cpu or is_apart(tensor.device)):
        raise Refused(
            f"a tensor on {tensor.device}", hint="only those of a CPU or an accelerator are stored"
        )
    if tensor._is_zerotensor():
        raise Refused("a tensor that has no memory", hint="clone() it")
    if tensor.is_conj() or tensor.is_neg():
        raise Refused("a lazily conjugated or negated tensor", hint="resolve_conj(), resolve_neg()")
    check_memory(tensor)


def are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether `check_plain` takes all of them, for thousands: the loops are C's. False also where
    it is not sure.
    """
    if not PLAIN_TENSORS.issuperset(map(type, tensors)):
        return False
    # In this order: what is nested or sparse has no strides or memory to ask for.
    return not (
        any(map(_is_nested, tensors))
        or not _DENSE.issuperset(map(_layout_of, tensors))
        or any(map(_is_quantized, tensors))
        or not all(one.type == "cpu" or is_apart(one) for one in set(map(_device_of, tensors)))
        or any(map(torch.Tensor.is_conj, tensors))
        or any(map(torch.Tensor.is_neg, tensors))
        or not lie_in_memory(tensors)
    )


def lie_in_memory(tensors: Sequence[torch.Tensor], sizes: Sizes | None = None) -> bool:
    """Whether all of these, dense ones, have memory that they do not reach out of, for thousands.
    False also where it is not sure.

    sizes: theirs, where they are known.
    """
    items, lengths = sizes or sizes_of(tensors)
    starts = list(map(torch.Tensor.storage_offset, tensors))
    ends = map(add, map(mul, starts, items), lengths) if any(starts) else lengths
    there = map(torch.UntypedStorage.nbytes, map(torch.Tensor.untyped_storage, tensors))
    if any(map(torch.Tensor._is_zerotensor, tensors)) or not all(map(le, ends, there)):
        return False
    # Those with gaps reach further than their bytes.
    dense = list(map(torch.Tensor.is_contiguous, tensors))
    return all(dense) or all(map(_lies_in_memory, compress(tensors, map(not_, dense))))


def sizes_of(tensors: Sequence[torch.Tensor]) -> Sizes:
    """For `lie_in_memory`."""
    return list(map(_item_bytes_of, tensors)), list(map(_bytes_of, tensors))


def _lies_in_memory(tensor: torch.Tensor) -> bool:
    try:
        check_memory(tensor)
    except Refused:
        return False
    return True


_item_bytes_of: Final = attrgetter("itemsize")
_bytes_of: Final = attrgetter("nbytes")
_is_nested: Final = attrgetter("is_nested")
_is_quantized: Final = attrgetter("is_quantized")
_layout_of: Final = attrgetter("layout")
_device_of: Final = attrgetter("device")
_DENSE: Final = frozenset((torch.strided,))


def is_apart(device: torch.device) -> bool:
    """Whether it is an accelerator, whose tensors are copied by streams; torch has one type of them
    at a time.
    """
    found = torch.accelerator.current_accelerator()
    return found is not None and device.type == found.type


def as_shape(tensor: torch.Tensor) -> AnyArray:
    """What `as_array` gives for a tensor like this in the host's memory, with its shape and dtype
    alone; also of an accelerator. Raises as `as_array`.
    """
    check_plain(tensor)
    return shape_alone(tuple(tensor.shape), numpy_dtype(tensor.dtype))


@cache
def numpy_dtype(kind: torch.dtype) -> np.dtype[np.generic]:
    """The numpy type of a torch type. Raises Refused for one that numpy does not have."""
    # A script may have set another device for new tensors.
    return as_array(torch.empty(0, dtype=kind, device="cpu")).dtype


def from_array(array: AnyArray) -> torch.Tensor:
    """A tensor over a writable array's memory. Raises Refused where torch has no such type."""
    kind = torch_dtype(dtype_name(array.dtype))
    if is_shared(kind):
        return torch.from_numpy(array)
    integers, _ = _EXTENSIONS[kind]
    return (
        torch.from_numpy(array.view(f"i{kind.itemsize}" if kind.itemsize > 1 else "u1"))
        .view(integers)
        .view(kind)
    )


def is_shared(kind: torch.dtype) -> bool:
    """Whether torch takes numpy's arrays of that type as they are."""
    return kind not in _EXTENSIONS


@cache
def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a stored dtype name. Raises Refused where torch has none."""
    kind = dtype_of(name)
    for known, (_, extension) in _EXTENSIONS.items():
        if kind == np.dtype(extension):
            return known
    try:
        return torch.from_numpy(np.empty(0, kind)).dtype
    except (TypeError, ValueError):
        raise Refused(f"torch has no element type {name}") from None
