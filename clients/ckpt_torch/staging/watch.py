"""Which tensors change while a save copies them?

versions     torch counts what it writes, as the call that writes ends
steps        of optimizers that nobody guards: not all that they change is counted
elements     some of each tensor in host memory, others in each save: what is written past
             torch's counting, by `tensor.data`, a collective, a numpy view or a kernel
addresses    `parameter.data = other` puts other memory under a tensor, and counts nothing; on
             devices as well

Elements and addresses are compared with what is copied as well: averages of weights that are
swapped in for an evaluation, and out again, are gone when all is copied. Of tensors on devices the
copy alone is looked at (device_samples).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ckpt_client.save.arrays import ARRAYS, AnyArray
from ckpt_client.save.copying import Bytes
from ckpt_client.save.overlap import ChangeWatch, differs, sample
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
_is_cpu: Final = attrgetter("is_cpu")
_type_of: Final = attrgetter("dtype")
_address_of: Final = torch.Tensor.data_ptr
_memory_of: Final = torch.Tensor.untyped_storage


class TensorWatch:
    """I find which of a save's arrays change, whoever changes them."""

    def __init__(
        self, arrays: Sequence[object], wholes: Sequence[Whole], *, all_here: bool = False
    ) -> None:
        """wholes: what some of the arrays are local parts of.
        all_here: it is known that all lie in host memory.
        """
        self._marks = _Marks(arrays, wholes, all_here)
        self._watch = ChangeWatch(self._marks.now)
        #: What `note_unlike` has said.
        self._unlike: set[int] = set()
        watch_steps(self)

    def note_step(self, addresses: set[int]) -> None:
        """See StepWatcher."""
        self._watch.note(self._marks.places_in(addresses))

    def note_held(self, tensors: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> bool:
        """Note what is copied in the place of some of the tensors. Whether any has other memory
        than it had, or none.
        """
        moved = self._marks.elsewhere(tensors, held)
        self._watch.note(moved)
        return bool(moved)

    def note_copied(self, tensors: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
        """Note where some of them, which were held, were copied to, in the host's memory."""
        self._watch.note(self._marks.unlike(tensors, places))

    def note_part(self, tensor: torch.Tensor, start: int, target: Bytes) -> None:
        """The same of bytes of one of them, from `start` on."""
        self._watch.note(self._marks.unlike_part(tensor, start, target))

    def note_array(self, array: AnyArray, place: AnyArray) -> None:
        """The same of one of numpy's."""
        self._watch.note_unlike([(self._marks.of_array(array), sample(place, self._marks.shift))])

    def note_array_part(self, array: AnyArray, start: int, target: Bytes) -> None:
        """The same of bytes of one of numpy's."""
        mark = self._marks.of_array(array)
        before = cast(bytes, self._watch.at_first(mark))
        if differs(before, array, self._marks.shift, start, target):
            self._watch.note([mark])

    def note_unlike(self, numbers: Iterable[int]) -> None:
        """Note arrays of which a device has copied something else, at any time."""
        self._unlike = self._unlike.union(numbers)

    def changed(self) -> list[int]:
        """Their numbers, once, but for what `note_unlike` says later."""
        return sorted({*map(self._marks.owner, self._watch.changed()), *self._unlike})


class _Marks:
    """What differs once one of the arrays is changed, of all of them: mostly by C's loops, since a
    training stands still meanwhile.

        | versions | addresses | versions of wholes | samples of numpy's | words of the host's |
    """

    def __init__(self, arrays: Sequence[object], wholes: Sequence[Whole], all_here: bool) -> None:
        self._numbers: Sequence[int] = range(len(arrays))
        self._tensors = cast(Sequence[torch.Tensor], arrays)
        #: (number, array) of those that are numpy's.
        self._others: list[tuple[int, AnyArray]] = []
        if not ARRAYS.isdisjoint(map(type, arrays)):
            self._numbers = [n for n, one in enumerate(arrays) if type(one) not in ARRAYS]
            self._tensors = [cast(torch.Tensor, arrays[n]) for n in self._numbers]
            self._others = [
                (n, cast(AnyArray, one)) for n, one in enumerate(arrays) if type(one) in ARRAYS
            ]
        #: Of each tensor, and each of the others, by its id: where it is among them. Made when the
        #: first are copied.
        self._places: dict[int, int] = {}
        self._arrays: dict[int, int] = {}
        self._wholes = wholes
        self.shift = random.random()
        """Of the samples of numpy's arrays."""
        #: Nobody else gets this memory, so that an address stands for what lies there now.
        self._memory = list(map(_memory_of, self._tensors))
        self._words = _Words(self._tensors, all_here)
        #: Where the tensors are, for the first `now`: to ask thousands of tensors takes a while.
        self._known: list[int] | None = self._words.addresses

    def now(self) -> list[object]:
        addresses, self._known = self._known or list(map(_address_of, self._tensors)), None
        return [
            *_versions(self._tensors),
            *addresses,
            *_versions([whole for _, whole in self._wholes]),
            *(sample(one, self.shift) for _, one in self._others),
            *self._words.now(addresses),
        ]

    def owner(self, place: int) -> int:
        """The number of the array whose mark that is."""
        tensors = len(self._tensors)
        if place < 2 * tensors:
            return self._numbers[place % tensors]
        place -= 2 * tensors
        few = [*(n for n, _ in self._wholes), *(n for n, _ in self._others)]
        if place < len(few):
            return few[place]
        return self._numbers[self._words.owner(place - len(few))]

    def elsewhere(
        self, tensors: Sequence[torch.Tensor], held: Sequence[torch.Tensor]
    ) -> Sequence[int]:
        """Marks of those of the tensors in whose place other memory is held."""
        if not self._places:
            self._places.update((id(one), n) for n, one in enumerate(self._tensors))
        numbers = list(map(self._places.__getitem__, map(id, tensors)))
        before = list(map(self._words.addresses.__getitem__, numbers))
        now = list(map(_address_of, held))
        if now == before:
            return ()
        return [n for n, a, b in zip(numbers, before, now, strict=True) if a != b]

    def unlike(
        self, tensors: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
    ) -> Iterable[int]:
        """Marks of words that are not in the copies of these tensors."""
        to = np.zeros(len(self._tensors), np.int64)
        to[list(map(self._places.__getitem__, map(id, tensors)))] = list(map(_address_of, places))
        if torch.bool in set(map(_type_of, tensors)):
            # A copy of one has the byte 1 for whatever else is true.
            to[[n for n, one in enumerate(self._tensors) if one.dtype is torch.bool]] = 0
        first = 2 * len(self._tensors) + len(self._wholes) + len(self._others)
        return (first + word for word in self._words.unlike(to))

    def unlike_part(self, tensor: torch.Tensor, start: int, target: Bytes) -> Iterable[int]:
        """The same of a copy of its bytes from `start` on."""
        first = 2 * len(self._tensors) + len(self._wholes) + len(self._others)
        number = self._places[id(tensor)]
        return (first + word for word in self._words.unlike_part(number, start, target))

    def of_array(self, array: AnyArray) -> int:
        """The mark of one of numpy's arrays: its sample."""
        if not self._arrays:
            self._arrays.update((id(one), n) for n, (_, one) in enumerate(self._others))
        return 2 * len(self._tensors) + len(self._wholes) + self._arrays[id(array)]

    def places_in(self, addresses: set[int]) -> Iterator[int]:
        """Of a mark of each tensor whose memory, as a whole, is at one of these addresses."""
        return (n for n, one in enumerate(self._memory) if one.data_ptr() in addresses)


class _Words:
    """Some words of tensors in host memory, evenly spread; of small ones what there is."""

    def __init__(self, tensors: Sequence[torch.Tensor], all_here: bool) -> None:
        self.addresses = list(map(_address_of, tensors))
        """Of all tensors."""
        #: Of the tensors that lie here.
        self._here: Sequence[int] = range(len(tensors))
        if not (all_here or all(map(_is_cpu, tensors))):
            self._here = [n for n, one in enumerate(tensors) if one.is_cpu]
            tensors = [tensors[n] for n in self._here]
        firsts = np.array([self.addresses[n] for n in self._here], np.int64)
        each = max(1, min(ELEMENTS_EACH_MAX, ELEMENTS // max(1, len(tensors))))
        shares = (np.arange(each) + random.random()) / each
        sizes = np.fromiter(map(_bytes_of, tensors), np.int64, len(tensors))
        # One whose memory was freed under it has none to look at.
        sizes[firsts == 0] = 0
        dense = np.fromiter(map(torch.Tensor.is_contiguous, tensors), np.bool_, len(tensors))
        starts = (shares[:, None] * sizes).astype(np.int64) // WORD_BYTES * WORD_BYTES
        lengths = np.minimum(sizes - starts, WORD_BYTES)
        dense_starts = starts.copy()
        for n in np.flatnonzero(~dense & (sizes > 0)):
            tensor = tensors[int(n)]
            starts[:, n] = _strided(tensor, shares)
            lengths[:, n] = tensor.itemsize
            dense_starts[:, n] = (shares * tensor.numel()).astype(np.int64) * tensor.itemsize
        words, self._places = np.nonzero(lengths > 0)
        first = firsts[self._places] + starts[words, self._places]
        beside = np.minimum(np.arange(WORD_BYTES), lengths[words, self._places][:, None] - 1)
        #: Addresses of the bytes of each word; of a short one the last is named several times.
        self._bytes = first[:, None] + beside
        #: Where they are in a copy that has no gaps.
        self._offsets = dense_starts[words, self._places][:, None] + beside
        #: What they were at first, once `now` was asked; None where others moved them meanwhile.
        self._before: NDArray[np.uint64] | None = None

    def owner(self, word: int) -> int:
        """Which of the tensors it is a word of."""
        return self._here[int(self._places[word])]

    def unlike(self, to: NDArray[np.int64]) -> list[int]:
        """Numbers of words that are others in the tensors' copies at these addresses; 0: none."""
        addresses = to[np.array(self._here, np.int64)][self._places]
        there = np.flatnonzero(addresses)
        if self._before is None:
            return []
        words = _words_at(addresses[there, None] + self._offsets[there])
        found: list[int] = there[words != self._before[there]].tolist()
        return found

    def unlike_part(self, number: int, start: int, target: Bytes) -> list[int]:
        """The same of a copy of a tensor's bytes from `start` on."""
        if self._before is None:
            return []
        mine = np.flatnonzero(np.array(self._here, np.int64)[self._places] == number)
        inside = (self._offsets[mine] >= start) & (self._offsets[mine] < start + target.size)
        mine = mine[inside.all(axis=1)]
        words = _words_at(target.ctypes.data - start + self._offsets[mine])
        found: list[int] = mine[words != self._before[mine]].tolist()
        return found

    def now(self, addresses: list[int]) -> Sequence[object]:
        """The words as they are, of tensors that are at these addresses; None of one that was
        elsewhere: its memory may be gone.
        """
        if addresses == self.addresses:
            found = _words_at(self._bytes)
            if self._before is None:
                self._before = found
            return cast(list[int], found.tolist())
        stays = np.equal(addresses, self.addresses)[np.array(self._here, np.int64)][self._places]
        words = iter(_words_at(self._bytes[stays]).tolist())
        return [next(words) if one else None for one in stays]


def _words_at(addresses: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Of [words, WORD_BYTES] addresses of this process's memory."""
    if not addresses.size:
        return np.zeros(0, np.uint64)
    # To call ctypes for each word takes longer than all else that an overlapped save's call does.
    memory = (ctypes.c_uint8 * MEMORY_BYTES).from_address(MEMORY_BEGIN)
    words = np.frombuffer(memoryview(memory), np.uint8)[addresses - MEMORY_BEGIN]
    return words.view(np.uint64)[:, 0]


def _strided(tensor: torch.Tensor, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where elements lie, in bytes from the first one."""
    places = np.unravel_index((shares * tensor.numel()).astype(np.int64), tuple(tensor.shape))
    steps = zip(places, tensor.stride(), strict=True)
    first = np.zeros(len(shares), np.int64)
    return cast(NDArray[np.int64], sum((at * by for at, by in steps), first) * tensor.itemsize)


def _versions(tensors: Sequence[torch.Tensor]) -> Sequence[object]:
    """That torch counts; None of those of inference mode, for which it counts nothing."""
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:
        return [None if one.is_inference() else one._version for one in tensors]
