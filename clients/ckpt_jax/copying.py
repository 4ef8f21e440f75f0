"""How do arrays of JAX get into a half of the arena, and when is one gone?

    the call     their names, dtypes and shapes: none is waited for, none is copied
    the copy     begin the next ones' transfers ──> one array's host value ─┬─> its place, in parts
                                                                            └─> by several threads

JAX's arrays do not change. But a jitted function takes the memory of what is donated to it, as
`delete` does, and an array that is gone before its transfer is begun is gone for the save.

A device copies into JAX's page-locked host memory, `pinned_host`, where it has such: on an H100 at
50 GB/s, 1.4 into memory that is not locked. From there a thread copies on at 4 to 5 GB/s, without
the interpreter lock: so there are several.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Final, cast

import jax
import numpy as np

from ckpt.base.errors import Aborted
from ckpt.base.units import MiB
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.copying import Bytes, NumpyCopier
from ckpt_client.save.finite import check_finite
from ckpt_client.save.overlap import SampledCopier
from ckpt_client.save.packing import PackingPlan, picker
from ckpt_jax.arrays import SHARDINGS_MAX

IN_FLIGHT_BYTES: Final = 128 * MiB
"""Of transfers from devices that are begun, and of host values that JAX has not let go; one array
more, whatever its size.
"""
COPY_THREADS: Final = 4
PART_BYTES: Final = 8 * MiB
"""Of an array, for one thread. What is smaller than this the caller copies: a thread's turn costs
more.
"""
_LOCKED: Final = "pinned_host"
#: Of ml_dtypes.
_PACKED: Final = re.compile(r"(u?int|float)[1-7]([^0-9].*)?")


class Placeholders:
    """Planning a save of arrays whose values nobody looks at. I know which array stands for which,
    as long as I live.
    """

    def __init__(self) -> None:
        #: By the id of the array in its place, which lives as long as this.
        self._arrays: dict[int, tuple[AnyArray, jax.Array]] = {}

    def array(self, array: jax.Array) -> AnyArray:
        """An array of this dtype and shape, without memory. The array that it stands for lies on
        one device.
        """
        found = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        self._arrays[id(found)] = found, array
        return found

    def replaced(self, packing: PackingPlan) -> PackingPlan:
        """The plan with the real arrays in the place of their placeholders."""
        found = [self._arrays.get(id(one), (one, one)) for one in packing.arrays]
        return dataclasses.replace(packing, arrays=tuple(array for _, array in found))


def checked_finite(packing: PackingPlan) -> PackingPlan:
    """The plan with JAX's arrays to be looked at once they are copied. Raises Refused naming an
    array of numpy's that holds NaN or infinity.
    """
    ours = []
    for number, (name, one) in enumerate(zip(packing.layout.names, packing.arrays, strict=True)):
        if isinstance(one, jax.Array):
            ours.append(number)
        else:
            check_finite(name, cast(AnyArray, one))
    return dataclasses.replace(packing, checked=tuple(ours))


class JaxCopier(NumpyCopier):
    """Of arrays of JAX, each on one device, and of numpy arrays. See OverlapCopier."""

    kind: Hashable = "jax"

    def __init__(self, packing: PackingPlan, *, watched: bool) -> None:
        """watched: find which of numpy's arrays change while I copy; JAX's do not."""
        whole = packing.layout.whole
        #: Of the arrays that `copy` is given.
        self._names = cast(Sequence[str], picker(tuple(whole))(packing.layout.names))
        #: Numbers of numpy's arrays.
        self._plain = [n for n, one in enumerate(packing.arrays) if not isinstance(one, jax.Array)]
        plain = [packing.arrays[n] for n in self._plain]
        self._watch = SampledCopier(plain if watched else ())

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        """Raises Aborted by name for an array that is gone."""
        places = cast(Sequence[AnyArray], prepared)
        # Users forbid transfers that nobody asked for; these were.
        with jax.transfer_guard_device_to_host("allow"):
            _copy(places, _host_values(self._names, arrays))
        self._watch.note_copied(arrays, places)

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        super().copy_part(array, start, target)
        self._watch.note_part(array, start, target)

    def follow(self) -> None:
        self._watch.follow()

    def changed(self) -> Sequence[int]:
        return [self._plain[n] for n in self._watch.changed()]


def _copy(places: Sequence[AnyArray], values: Iterator[AnyArray]) -> None:
    """All of it is there, or nothing is under way any more, when this ends."""
    kept = 0
    with ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="ckpt-copying") as pool:
        copying: deque[tuple[int, list[Future[None]]]] = deque()
        for place, value in zip(places, values, strict=True):
            if value.nbytes < 2 * PART_BYTES:
                place[...] = value
            else:
                parts = [pool.submit(_copy_part, *part) for part in _parts(place, value)]
                copying.append((value.nbytes, parts))
            kept += value.nbytes
            while sum(size for size, _ in copying) > IN_FLIGHT_BYTES // 2:
                _wait_copied(copying.popleft()[1])
            if kept > IN_FLIGHT_BYTES:
                # JAX may free what it has copied to the host no sooner than at a collection.
                gc.collect(0)
                kept = 0
        for _, parts in copying:
            _wait_copied(parts)


def _parts(place: AnyArray, value: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Pairwise, of about PART_BYTES; along the first axis, so that any strides will do."""
    rows = max(1, len(value) * PART_BYTES // value.nbytes)
    for first in range(0, len(value), rows):
        yield place[first : first + rows], value[first : first + rows]


def _copy_part(place: AnyArray, value: AnyArray) -> None:
    place[...] = value


def _wait_copied(parts: Sequence[Future[None]]) -> None:
    for part in parts:
        part.result()


def _host_values(names: Sequence[str], arrays: Sequence[object]) -> Iterator[AnyArray]:
    """Of each array, in order, while the next ones' transfers are under way."""
    crossing: deque[tuple[str, jax.Array | AnyArray]] = deque()
    in_flight = 0
    for name, array in zip(names, arrays, strict=True):
        crossing.append((name, _begun(array)))
        in_flight += crossing[-1][1].nbytes
        while in_flight > IN_FLIGHT_BYTES:
            in_flight -= crossing[0][1].nbytes
            yield _host_value(*crossing.popleft())
    while crossing:
        yield _host_value(*crossing.popleft())


def _begun(array: object) -> jax.Array | AnyArray:
    """The transfer of a device's array is begun, to an object of its own: JAX keeps a host value as
    long as the object that was asked for it, and the state may live for ever.
    """
    if not isinstance(array, jax.Array) or lies_in_host_memory(array.sharding, array.dtype):
        return cast("jax.Array | AnyArray", array)
    with suppress(RuntimeError, ValueError):  # It is gone, and `_host_value` says so.
        locked = locked_memory(array.sharding)
        if locked is not None:
            return jax.device_put(array, locked)
        own = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
        own.copy_to_host_async()
        return own
    return array


@lru_cache(maxsize=SHARDINGS_MAX)
def locked_memory(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding | None:
    """The same sharding in page-locked host memory; None where a device has none, as many CPUs."""
    kinds = [
        {memory.kind for memory in device.addressable_memories()} for device in sharding.device_set
    ]
    return sharding.with_memory_kind(_LOCKED) if all(_LOCKED in one for one in kinds) else None


@lru_cache(maxsize=SHARDINGS_MAX)
def lies_in_host_memory(sharding: jax.sharding.Sharding, dtype: np.dtype[np.generic]) -> bool:
    """Whether numpy sees such an array where it lies: JAX packs elements of less than a byte."""
    on_cpu = all(device.platform == "cpu" for device in sharding.device_set)
    return on_cpu and _PACKED.fullmatch(dtype.name) is None


def _host_value(name: str, array: jax.Array | AnyArray) -> AnyArray:
    """Waits for the array's computation and its transfer; a view of memory that JAX does not donate
    meanwhile, or a copy in host memory.
    """
    try:
        return np.asarray(array)
    except RuntimeError:
        if not isinstance(array, jax.Array) or not array.is_deleted():
            raise
        raise Aborted(
            f"{name} was donated or deleted before it was copied",
            hint="let save.staged.wait(), or the manager's wait_until_staged(), come before the "
            'step that donates it, or save with staging="copy"',
        ) from None
