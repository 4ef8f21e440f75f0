"""A jax.Array's shards as boxes of a global tensor, and boxes as the shards of a new array.

Every box is declared by one process only: the one that holds its replica number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import convert_element_type_p
from jax.sharding import SingleDeviceSharding

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_name
from ckpt_client.load.contents import Want
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.shards import Shard, Shards

Extent = tuple[int, ...]
Box = tuple[Extent, Extent]
"""(offset, shape)."""
Part = tuple[AnyArray, SingleDeviceSharding | None]
"""What was read, and where it goes; None: it is bound to no device."""
SHARDINGS_MAX: Final = 256
"""With their shapes: most arrays of a model have the same."""
_HOST_KINDS: Final = ("pinned_host", "unpinned_host")


def other_shape(name: str, stored: Extent, asked: Extent) -> Refused:
    """The error to raise when shapes differ: resharding cuts a tensor otherwise, its size stays."""
    return Refused(
        f"{name}: stored with shape {stored}, here {asked}",
        hint="ask for the stored global shape; how it is sharded is free",
    )


def declared(array: jax.Array, array_of: Callable[[jax.Array], AnyArray]) -> Shard | Shards | None:
    """What this process stores of it; None when others store everything.

    array_of: what is to stand for an array that lies on one device.

    Raises Refused for typed random keys, for an array that is gone, and inside of `jax.jit`.
    """
    if isinstance(array, jax.core.Tracer):
        raise Refused(
            "a value inside of a function that JAX traces",
            hint="save what the jitted function returns",
        )
    if array.is_deleted():
        raise Refused("it was donated or deleted", hint="save the array that came in its place")
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise Refused("a typed random key", hint="store jax.random.key_data(key)")
    shape = tuple(array.shape)
    boxes = tuple(
        Shard(array_of(shard.data), shape, box_of(shard.index, shape)[0])
        for shard in array.addressable_shards
        if shard.replica_id == 0
    )
    if not boxes:
        return None
    return boxes[0] if len(boxes) == 1 else Shards(boxes)


def box_of(index: Sequence[slice] | None, shape: Extent) -> Box:
    """The part of an array that an index names; all of it without an index."""
    index = index or (slice(None),) * len(shape)
    bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return tuple(start for start, _, _ in bounds), tuple(stop - start for start, stop, _ in bounds)


@lru_cache(maxsize=SHARDINGS_MAX)
def boxes_shared(sharding: jax.sharding.Sharding, shape: Extent) -> frozenset[Box]:
    """What devices of this process hold of such an array, and those of other processes too."""
    here = sharding.addressable_devices
    if len(here) == len(sharding.device_set):
        return frozenset()
    boxes: dict[bool, set[Box]] = {True: set(), False: set()}
    for device, index in sharding.devices_indices_map(shape).items():
        boxes[device in here].add(box_of(index, shape))
    return frozenset(boxes[True] & boxes[False])


def is_apart(sharding: jax.sharding.Sharding | None) -> bool:
    """Whether arrays of this sharding, or of none, lie in memory that is not the host's."""
    if sharding is None:
        return jax.default_backend() != "cpu"
    on_devices = any(device.platform != "cpu" for device in sharding.addressable_devices)
    return on_devices and sharding.memory_kind not in _HOST_KINDS


class WantedArray:
    """One array that a load makes: I know what to read for it, and put it together. Between `wants`
    and `take` it needs host memory.

    Without a sharding it is bound to no device, as arrays are that a program makes by itself.
    """

    def __init__(
        self,
        name: str,
        shape: Extent,
        dtype: np.dtype[np.generic],
        sharding: jax.sharding.Sharding | None,
        weak_type: bool = False,
    ) -> None:
        self.is_apart = is_apart(sharding)
        """See `is_apart`: what was read is copied from host memory, which is free after that."""
        self._name = name
        self._shape = shape
        self._dtype = dtype
        self._sharding = sharding
        self._weak_type = weak_type
        #: Each part that a device of this process needs, once, with the memory to read it into.
        self._boxes: dict[Box, AnyArray | None] = {}
        #: Those parts of them that other processes need as well.
        self._shared: frozenset[Box] = frozenset()
        #: The devices of this process and the part that each needs; empty without a sharding.
        self._devices: list[tuple[jax.Device, Box]] = []
        if sharding is None:
            self._boxes[(0,) * len(shape), shape] = None
            return
        self._shared = boxes_shared(sharding, shape)
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            box = box_of(index, shape)
            self._boxes[box] = None
            self._devices.append((device, box))

    @property
    def nbytes(self) -> int:
        """Of the host memory that it needs."""
        return sum(prod(shape) for _, shape in self._boxes) * self._dtype.itemsize

    @property
    def is_shared(self) -> bool:
        """Whether other processes may need a part of it as well."""
        return any(box in self._shared or box[1] == self._shape for box in self._boxes)

    def check(self, stored_dtype: str, stored_shape: Extent) -> None:
        """Raises Refused by name when dtype or shape differ."""
        if stored_dtype != dtype_name(self._dtype):
            raise Refused(f"{self._name}: stored as {stored_dtype}, here {self._dtype}")
        if jax.dtypes.canonicalize_dtype(self._dtype) != self._dtype:
            raise Refused(
                f"{self._name}: stored as {stored_dtype}, and JAX is set to 32 bits here",
                hint='jax.config.update("jax_enable_x64", True), or a numpy array in `like`',
            )
        if stored_shape != self._shape:
            raise other_shape(self._name, stored_shape, self._shape)

    def wants(
        self, rank: Rank, new_array: Callable[[Extent, np.dtype[np.generic]], AnyArray]
    ) -> list[Want]:
        """The boxes to read."""
        found = []
        for box in self._boxes:
            self._boxes[box] = array = new_array(box[1], self._dtype)
            found.append(Want(self._name, array, box[0], rank, replica=box in self._shared))
        return found

    def take(self) -> list[Part]:
        """What was read, for each device; it is not kept here."""
        boxes, self._boxes = self._boxes, dict.fromkeys(self._boxes)
        if self._sharding is None:
            return [(_read(found), None) for found in boxes.values()]
        kind = self._sharding.memory_kind
        return [(_read(boxes[box]), _alone_on(device, kind)) for device, box in self._devices]

    def joined(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The array. parts: what was taken, on its devices."""
        found = parts[0]
        if self._sharding is not None:
            found = jax.make_array_from_single_device_arrays(
                self._shape, self._sharding, list(parts)
            )
        if not self._weak_type:
            return found
        # It yields to the type of what it meets in an operation; the public functions end that.
        weak = convert_element_type_p.bind(
            found, new_dtype=found.dtype, weak_type=True, sharding=None
        )
        return jax.device_put(weak, self._sharding) if self._sharding is not None else weak


def arrays_of(targets: Sequence[WantedArray]) -> list[jax.Array]:
    """The arrays, once everything was read. JAX takes all their parts at once: to take one costs it
    as much as two or three of many.
    """
    taken = [target.take() for target in targets]
    parts = [part for each in taken for part in each]
    placed = iter(_placed(parts))
    return [
        target.joined(list(islice(placed, len(each))))
        for target, each in zip(targets, taken, strict=True)
    ]


def _placed(parts: Sequence[Part]) -> list[jax.Array]:
    """On their devices, in order."""
    free = [number for number, (_, place) in enumerate(parts) if place is None]
    bound = [number for number, (_, place) in enumerate(parts) if place is not None]
    found: dict[int, jax.Array] = {}
    found.update(zip(free, jax.device_put([parts[n][0] for n in free]), strict=True))
    places = [parts[n][1] for n in bound]
    found.update(zip(bound, jax.device_put([parts[n][0] for n in bound], places), strict=True))
    return [found[number] for number in range(len(parts))]


@lru_cache(maxsize=SHARDINGS_MAX)
def _alone_on(device: jax.Device, kind: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(device, memory_kind=kind)


def _read(found: AnyArray | None) -> AnyArray:
    assert found is not None, "wanted, and taken once"
    return found
