"""Which tensors change while a save copies them?

versions     torch counts what it writes, as the call that writes ends
steps        of optimizers that nobody guards: not all that they change is counted
elements     some of each tensor in host memory, others in each save: what is written past
             torch's counting, by `tensor.data`, a collective, a numpy view or a kernel
addresses    `parameter.data = other` puts other memory under a tensor, and counts nothing
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ckpt_client.save.overlap import ChangeWatch, sample
from ckpt_client.save.state import ARRAYS, AnyArray
from ckpt_torch.staging.steps import watch_steps

Whole = tuple[int, torch.Tensor]
"""(number of an array, the DTensor that it is the local part of)."""
ELEMENTS: Final = 4096
"""That are looked at in a save, as far as each tensor has one; of one tensor at most:"""
ELEMENTS_EACH_MAX: Final = 16
WORD_BYTES: Final = 8
MEMORY_BEGIN: Final = 4096
"""Nothing lies below; numpy takes an array at 0 for one that has no memory."""
MEMORY_BYTES: Final = 1 << 60
"""More than any address of a process."""
_version_of: Final = attrgetter("_version")
_bytes_of: Final = attrgetter("nbytes")


class TensorWatch:
    """I find which of a save's arrays change, whoever changes them."""

    def __init__(self, arrays: Sequence[object], wholes: Sequence[Whole]) -> None:
        """wholes: what some of the arrays are local parts of."""
        self._arrays = arrays
        elements = _Elements(arrays)
        #: Numbers of the arrays whose marks the watch compares.
        self._numbers = [*range(len(arrays)), *(n for n, _ in wholes), *elements.owners]
        shift, more = random.random(), [whole for _, whole in wholes]
        self._watch = ChangeWatch(
            lambda: [*_marks(arrays, shift), *_marks(more, shift), *elements.look()]
        )
        watch_steps(self)

    def note_step(self, addresses: set[int]) -> None:
        """See StepWatcher."""
        self._watch.note(n for n, one in enumerate(self._arrays) if _storage(one) in addresses)

    def changed(self) -> list[int]:
        """Their numbers, once."""
        return sorted({self._numbers[place] for place in self._watch.changed()})


class _Elements:
    """Some words of tensors in host memory, evenly spread; of small ones what there is."""

    def __init__(self, arrays: Sequence[object]) -> None:
        numbers: Sequence[int] = range(len(arrays))
        if not ARRAYS.isdisjoint(map(type, arrays)):
            numbers = [n for n in numbers if type(arrays[n]) not in ARRAYS]
        tensors = [cast(torch.Tensor, arrays[n]) for n in numbers]
        if not all(map(attrgetter("is_cpu"), tensors)):
            numbers = [n for n, one in zip(numbers, tensors, strict=True) if one.is_cpu]
            tensors = [one for one in tensors if one.is_cpu]
        self._tensors = tensors
        #: Of their first elements. Where it differs, nothing is read: the memory may be gone.
        self._addresses = list(map(torch.Tensor.data_ptr, tensors))
        each = max(1, min(ELEMENTS_EACH_MAX, ELEMENTS // max(1, len(tensors))))
        shares = (np.arange(each) + random.random()) / each
        sizes = np.fromiter(map(_bytes_of, tensors), np.int64, len(tensors))
        # One whose memory was freed under it has none to look at.
        sizes[np.array(self._addresses, np.uint64) == 0] = 0
        dense = np.fromiter(map(torch.Tensor.is_contiguous, tensors), np.bool_, len(tensors))
        starts = (shares[:, None] * sizes).astype(np.int64) // WORD_BYTES * WORD_BYTES
        lengths = np.minimum(sizes - starts, WORD_BYTES)
        for n in np.flatnonzero(~dense & (sizes > 0)):
            starts[:, n] = _strided(tensors[n], shares)
            lengths[:, n] = tensors[n].itemsize
        words, place = np.nonzero(lengths > 0)
        first = np.array(self._addresses, np.int64)[place] + starts[words, place]
        beside = np.minimum(np.arange(WORD_BYTES), lengths[words, place][:, None] - 1)
        #: Addresses of the bytes of each word; of a short one the last is named several times.
        self._bytes = first[:, None] + beside
        self._places: list[int] = place.tolist()
        self.owners = [numbers[n] for n in self._places]
        """Of each word, the number of its array."""

    def look(self) -> Sequence[object]:
        """The words as they are now; None of memory that is not the tensor's any more."""
        now = list(map(torch.Tensor.data_ptr, self._tensors))
        if now == self._addresses:
            return _words_at(self._bytes)
        stays = np.equal(now, self._addresses)[self._places]
        words = iter(_words_at(self._bytes[stays]))
        return [next(words) if one else None for one in stays]


def _words_at(addresses: NDArray[np.int64]) -> list[int]:
    """Of [words, WORD_BYTES] addresses of this process's memory."""
    if not addresses.size:
        return []
    # To call ctypes for each word takes longer than all else that an overlapped save's call does.
    memory = (ctypes.c_uint8 * MEMORY_BYTES).from_address(MEMORY_BEGIN)
    words = np.frombuffer(memoryview(memory), np.uint8)[addresses - MEMORY_BEGIN]
    return cast(list[int], words.view(np.uint64)[:, 0].tolist())


def _strided(tensor: torch.Tensor, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where elements lie, in bytes from the first one."""
    places = np.unravel_index((shares * tensor.numel()).astype(np.int64), tuple(tensor.shape))
    steps = zip(places, tensor.stride(), strict=True)
    first = np.zeros(len(shares), np.int64)
    return cast(NDArray[np.int64], sum((at * by for at, by in steps), first) * tensor.itemsize)


def _storage(array: object) -> int:
    return array.untyped_storage().data_ptr() if isinstance(array, torch.Tensor) else 0


def _marks(arrays: Sequence[object], shift: float) -> Sequence[object]:
    """See `_mark`; of tensors alone the loop is C's."""
    try:
        return list(map(_version_of, arrays))
    except (AttributeError, RuntimeError):  # An array of numpy's, a tensor of inference mode.
        return [_mark(array, shift) for array in arrays]


def _mark(array: object, shift: float) -> object:
    """What differs once the array is changed: the version that torch counts for a tensor, none for
    one of inference mode; a sample of an array's elements.
    """
    if not isinstance(array, torch.Tensor):
        return sample(cast(AnyArray, array), shift)
    return None if array.is_inference() else array._version
