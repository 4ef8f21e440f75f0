"""Copying while the training goes on: what was changed too early is found, and nothing torn is
saved.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, cast

import numpy as np

from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.copying import Bytes, Copier, NumpyCopier

SAMPLE_ELEMENTS: Final = 64
"""Of each array, evenly spread; which ones differs from save to save."""


class OverlapCopier(Copier, Protocol):
    """A Copier that is made when its arrays are as they are to be saved."""

    def follow(self) -> None:
        """From here on the calling thread may change the arrays; called when all is copied or
        queued.
        """

    def changed(self) -> Sequence[int]:
        """Numbers of the arrays that were changed before `follow`, or before this."""


class ChangeWatch:
    """I compare what `look` says of each array now and when nobody may have changed it yet."""

    def __init__(self, look: Callable[[], Sequence[object]]) -> None:
        self._look = look
        self._before = look()
        #: Both the training's thread and the one that copies ask.
        self._lock = threading.Lock()
        self._changed: list[int] | None = None
        #: What `note` has said.
        self._noted: set[int] = set()

    def note(self, numbers: Iterable[int]) -> None:
        """Note that somebody who was seen changes these; afterwards all may change."""
        with self._lock:
            self._noted.update(numbers)

    def note_unlike(self, looks: Iterable[tuple[int, object]]) -> None:
        """The same of those of which something else was copied than was there at first, even if it
        is there again: (number, what `look` would say of the copy).
        """
        self.note(n for n, look in looks if look != self._before[n])

    def at_first(self, number: int) -> object:
        """What `look` said of this one, until `changed` was asked."""
        return self._before[number]

    def changed(self) -> list[int]:
        """Numbers of those that differ; found once, since afterwards all may change."""
        with self._lock:
            if self._changed is None:
                after, found = self._look(), set[int]()
                # Mostly they are equal, which C finds sooner.
                if after != self._before:
                    pairs = zip(self._before, after, strict=True)
                    found = {n for n, (before, now) in enumerate(pairs) if before != now}
                self._changed = sorted(found | self._noted)
                self._before = after
            return self._changed


class SampledCopier(NumpyCopier):
    """Of numpy arrays, which have no version: a sample of each is compared before and after, and
    with the copy. What changes between the sampled elements alone is not seen.
    """

    def __init__(self, arrays: Sequence[object]) -> None:
        self._start = start = random.random()
        self._arrays = arrays
        self._watch = ChangeWatch(lambda: [sample(cast(AnyArray, one), start) for one in arrays])

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        super().copy(prepared, arrays)
        self.note_copied(arrays, cast(Sequence[AnyArray], prepared))

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        super().copy_part(array, start, target)
        self.note_part(array, start, target)

    def note_copied(self, arrays: Sequence[object], places: Sequence[AnyArray]) -> None:
        """Note where these were copied to; those that are not mine do not count."""
        numbers = {id(one): n for n, one in enumerate(self._arrays)}
        self._watch.note_unlike(
            (numbers[id(one)], sample(place, self._start))
            for one, place in zip(arrays, places, strict=True)
            if id(one) in numbers
        )

    def note_part(self, array: object, start: int, target: Bytes) -> None:
        """The same of its bytes from `start` on."""
        for number, one in enumerate(self._arrays):
            if one is array:
                before = cast(bytes, self._watch.at_first(number))
                if differs(before, cast(AnyArray, array), self._start, start, target):
                    self._watch.note([number])

    def follow(self) -> None:
        self._watch.changed()

    def changed(self) -> Sequence[int]:
        return self._watch.changed()


def sample(array: AnyArray, start: float) -> bytes:
    """Bytes of some elements; start: in [0, 1), shifts which ones."""
    places = _sampled(array, start)
    if array.flags.c_contiguous:
        return array.reshape(-1)[places.start :: places.step].tobytes()
    return array[np.unravel_index(np.asarray(places), array.shape)].tobytes()


def differs(before: bytes, array: AnyArray, start: float, first: int, copy: Bytes) -> bool:
    """Whether a copy of bytes of the array, from `first` on, has other elements than this sample
    of it, which was made with `start`.
    """
    size = array.itemsize
    at = np.asarray(_sampled(array, start)) * size - first
    inside = (at >= 0) & (at <= copy.size - size)
    copied = copy[at[inside, None] + np.arange(size)]
    return not np.array_equal(copied, np.frombuffer(before, np.uint8).reshape(-1, size)[inside])


def _sampled(array: AnyArray, start: float) -> range:
    """Numbers of elements, in C order."""
    step = max(1, array.size // SAMPLE_ELEMENTS)
    return range(int(start * min(step, max(array.size, 1))), array.size, step)
