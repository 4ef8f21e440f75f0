"""`save` and `load` of JAX states: arrays of any sharding, in and out of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, SupportsFloat, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import Rank
from ckpt.base.units import MiB
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.tree import Scalar
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.trees import are_global, listed
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.handle import Save
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.shards import Replicated
from ckpt_client.save.turn import staging_overlaps
from ckpt_client.store import Store
from ckpt_jax.arrays import WantedArray, arrays_of, declared, other_shape
from ckpt_jax.copying import JaxCopier, Placeholders, checked_finite
from ckpt_jax.known import recall, remember
from ckpt_jax.trees import check_lengths, is_plain, mapped, rebuilt

BATCH_BYTES: Final = 128 * MiB
"""Of host memory through which arrays come to devices; two are there at a time."""
State = TypeVar("State")


def save(
    store: Store,
    run: str,
    step: int,
    state: object,
    *,
    check_finite: bool = False,
    metrics: Mapping[str, SupportsFloat] | None = None,
    staging: str = "copy",
) -> Save:
    """Copy the state; sending and committing go on beside the training. Every process calls it.

    state: jax.Arrays of any sharding, numpy arrays and plain values, in any nodes that JAX knows. A
        jax.Array is one global array; all else must be the same on all processes. You may change
        the state when this returns.
    check_finite: refuse a tensor that holds NaN or infinity, and name it, before anything is sent.
    metrics: what was measured at the step, as `Store.save` takes it.
    staging: `copy`, or `overlap`, which returns before the state is copied, or even computed.
        Donate or delete no array of it, and change no numpy array, before `Save.staged.wait()`. If
        you do, the save ends on all processes with an error that names the array; of numpy's arrays
        a sample is compared. With `overlap`, a lack of staging memory, and what `check_finite`
        finds in JAX's arrays, end the Save, not this call.

    Raises Refused, with its path, for what cannot be stored, such as an array that was donated,
    before anything is staged; the other processes' saves of the step are aborted.

    A process that saves alone also raises the error of an earlier save that was not raised yet. Of
    several processes, one would raise it and save nothing while the others save; so there the
    earlier save's `wait` raises it, else `Store.close`.
    """
    rank, world_size = jax.process_index(), jax.process_count()
    turn = store.turn(run, step, rank=rank, world_size=world_size)
    if world_size == 1:
        store.check_for_errors()
    with turn:
        overlaps = staging_overlaps(staging)
        turn.say(metrics)
        packing = _packing_of(store, turn.lay_out, state)
        turn.take(checked_finite(packing) if check_finite else packing)
        copier = JaxCopier(packing, watched=overlaps)
    return turn.overlap(copier) if overlaps else turn.stage(copier)


def prepare(store: Store, state: object) -> Future[None]:
    """Start this process's stager and make its staging memory, beside the training, so that the
    first save of a state like this one is as fast as the others.

    No save needs to wait for it, and it waits for no array and reads none. Call it again when the
    state has grown. All processes may call it, or only some. The future is done when all is ready,
    or raises what a save would: NoSpace, Unavailable, Aborted. You need not ask it: its error is
    logged. Raises Refused, with its path, for what cannot be stored.
    """
    rank, world_size = jax.process_index(), jax.process_count()
    preparation = store.preparation(rank=rank, world_size=world_size)
    packing = _packing_of(store, preparation.lay_out, state)
    return preparation.begin(packing, JaxCopier(packing, watched=False))


def load(store: Store, run: str, step: int | None, like: State) -> State:
    """A new state like `like`, whose arrays have its shapes, dtypes and shardings.

    step: None is the newest, the same for all processes.
    like: jax.Arrays, jax.ShapeDtypeStructs, numpy arrays and plain values, in any nodes that JAX
        knows. Dtypes and global shapes must be the saved ones; the sharding may be any. An array
        that is not bound to a device, or a struct without a sharding, gives an array that is not
        bound either. Weak types, and what JAX does not count among a node's parts, are `like`'s.

    Each process reads what its devices need, each byte once. Raises Refused for a name that the
    checkpoint lacks, a list or tuple of which it has more items, another dtype or shape, and 64 bit
    where JAX is set to 32; NotFound, Unavailable, Lost.
    """
    rank, world_size = jax.process_index(), jax.process_count()
    with store.resolve(run, step, rank=rank, world_size=world_size) as checkpoint:
        return checkpoint.read(lambda contents: _Reading(contents, rank, world_size).run(like))


def load_whole(store: Store, run: str, step: int | None) -> object:
    """The whole state as dicts, lists and tuples of numpy arrays. Raises as `load`."""
    rank, world_size = jax.process_index(), jax.process_count()
    return store.load(run, step, whole=True, rank=rank, world_size=world_size)


def shapes(store: Store, run: str, step: int) -> object:
    """The same with a jax.ShapeDtypeStruct in place of each array; reads no array."""
    rank, world_size = jax.process_index(), jax.process_count()
    with store.resolve(run, step, rank=rank, world_size=world_size) as checkpoint:
        found = checkpoint.read(lambda contents: contents.shapes())
    return mapped(found, lambda _, leaf: _struct_of(leaf))


def _struct_of(leaf: object) -> object:
    if isinstance(leaf, np.ndarray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def _packing_of(
    store: Store, lay_out: Callable[[object], PackingPlan], state: object
) -> PackingPlan:
    """The state laid out as the last one of its form, else its form remembered: of nodes of ours,
    since another thread may change the caller's between two looks at them.
    """
    known = recall(store, jax.process_index(), jax.process_count())
    packing = known.packing(state) if known is not None else None
    if packing is not None:
        return packing
    try:
        taken = rebuilt(state, lambda _, leaf: leaf)
    except Exception:  # Nodes of users may not be made twice; what is amiss is said below.
        return _laid_out(lay_out, state)
    packing = _laid_out(lay_out, taken)
    remember(store, taken, packing)
    return packing


def _laid_out(lay_out: Callable[[object], PackingPlan], state: object) -> PackingPlan:
    """Every leaf looked at; raises Refused by path."""
    placeholders = Placeholders()
    tree = mapped(state, partial(_declare, placeholders))
    return placeholders.replaced(lay_out(tree))


def _declare(placeholders: Placeholders, name: str, leaf: object) -> object:
    try:
        if isinstance(leaf, jax.Array):
            return declared(leaf, placeholders.array)
        if isinstance(leaf, np.ndarray | np.generic) or is_plain(leaf):
            return Replicated(leaf)
        raise Refused(f"a {type(leaf).__module__}.{type(leaf).__qualname__} cannot be stored")
    except CkptError as error:
        raise Refused(f"{name or 'the state'}: {error.message}", hint=error.hint) from None


@dataclass(slots=True)
class _Reading:
    """One attempt: look every leaf up, name all that is absent, read what stays in host memory at
    once, and what goes to devices in batches.
    """

    contents: Contents
    process: int
    process_count: int
    wants: list[Want] = field(default_factory=list)
    targets: dict[str, WantedArray] = field(default_factory=dict)
    made: dict[str, jax.Array] = field(default_factory=dict)
    """Of the targets."""
    arrays: dict[str, AnyArray] = field(default_factory=dict)
    values: dict[str, Scalar] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def run(self, like: State) -> State:
        ranks = self.contents.ranks()
        rank = Rank(self.process) if self.process in ranks else ranks[0]
        values = self.contents.values(rank)
        check_lengths(like, self.contents.tree(rank))
        mapped(like, lambda name, leaf: self._look_up(name, leaf, rank, values))
        if self.absent:
            stored = {tensor.name for tensor in self.contents.tensors()} | set(values)
            more = sorted(stored - {*self.targets, *self.arrays, *self.values})
            hint = f"it has {listed(more)}, which `like` does not name" if more else "leave it out"
            raise Refused(f"the checkpoint has no {listed(self.absent)}", hint=hint)
        self._fill(rank)
        return cast(State, rebuilt(like, self._made))

    def _fill(self, rank: Rank) -> None:
        """A batch's copies to devices are under way while the next one is read. What processes
        share they read by one call: they would have to cut it alike.
        """
        new_array, crossing = self.contents.new_array, list[jax.Array]()
        alone = {
            name: target
            for name, target in self.targets.items()
            if target.is_apart and not (self.process_count > 1 and target.is_shared)
        }
        for name, target in self.targets.items():
            if name not in alone:
                self.wants += target.wants(rank, new_array)
        self.contents.fill(self.wants)
        rest = {name: target for name, target in self.targets.items() if name not in alone}
        for batch in _batches(rest):
            self.made |= _named(batch, rest)
        for batch in _batches(alone):
            # Nothing here keeps the memory of an earlier batch.
            self.contents.fill(
                [want for name in batch for want in alone[name].wants(rank, new_array)]
            )
            arrays = _named(batch, alone)
            jax.block_until_ready(crossing)
            crossing = list(arrays.values())
            self.made |= arrays
        jax.block_until_ready(crossing)

    def _look_up(self, name: str, leaf: object, rank: Rank, values: dict[str, Scalar]) -> None:
        found = self.contents.variants(name)
        if is_plain(leaf):
            if name in values:
                self.values[name] = values[name]
            elif found:
                raise Refused(f"{name}: stored as an array, here it is a {type(leaf).__name__}")
            else:
                self.absent.append(name)
        elif name in values and not (values[name] is None and are_global(found)):
            # Else None stands for what other processes alone hold.
            raise Refused(f"{name}: stored as a plain value, here it is an array")
        elif not found:
            self.absent.append(name)
        elif isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise Refused(f"{name}: a typed random key", hint="load jax.random.key_data(key)")
            bound = not isinstance(leaf, jax.Array) or leaf.committed
            sharding = leaf.sharding if bound else None
            target = WantedArray(
                name, tuple(leaf.shape), np.dtype(leaf.dtype), sharding, bool(leaf.weak_type)
            )
            target.check(found[0].dtype, found[0].global_shape)
            self.targets[name] = target
        elif isinstance(leaf, np.ndarray | np.generic):
            self._whole(name, found[0], np.asarray(leaf), rank)
        else:
            raise Refused(f"{name}: a {type(leaf).__qualname__} cannot be loaded")

    def _whole(self, name: str, stored: IndexTensor, leaf: AnyArray, rank: Rank) -> None:
        if stored.global_shape != leaf.shape:
            raise other_shape(name, stored.global_shape, leaf.shape)
        kept = dtype_of(stored.dtype)
        # Text is as long as its longest.
        if kept != leaf.dtype and not (kept.kind == leaf.dtype.kind and kept.kind in "SU"):
            raise Refused(f"{name}: stored as {stored.dtype}, here {leaf.dtype}")
        array: AnyArray = self.contents.new_array(leaf.shape, kept)
        self.arrays[name] = array
        self.wants.append(Want(name, array, (0,) * array.ndim, rank))

    def _made(self, name: str, leaf: object) -> object:
        if name in self.made:
            return self.made[name]
        if name not in self.arrays:
            return self.values[name]
        array = self.arrays[name]
        return array[()] if isinstance(leaf, np.generic) else array


def _named(batch: Sequence[str], targets: Mapping[str, WantedArray]) -> dict[str, jax.Array]:
    """The arrays of a batch, of which all was read, by name."""
    return dict(zip(batch, arrays_of([targets[name] for name in batch]), strict=True))


def _batches(targets: Mapping[str, WantedArray]) -> Iterator[list[str]]:
    """Their names, in order: BATCH_BYTES together, or one that is larger."""
    batch, size = list[str](), 0
    for name, target in targets.items():
        if batch and size + target.nbytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += target.nbytes
    if batch:
        yield batch
