"""`async_load`: a load whose first parts can be used while the rest is still read."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import TypeVar

import torch.distributed as dist

from ckpt.aio.threads import start_thread
from ckpt.base.printable import printable
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.store import Store
from ckpt_torch.modes import uncompiled
from ckpt_torch.place import CheckpointName, find_where, find_who
from ckpt_torch.reading.device_reads import RING_BYTES, DeviceReads
from ckpt_torch.reading.loading import (
    LoadJob,
    asked_to_fill,
    give_back,
    names_of,
    objects_of,
    tensors_of,
)
from ckpt_torch.reading.order import LoadOrder, paths_of
from ckpt_torch.reading.wants import NewLeaves

_log = logging.getLogger("ckpt.restore")
Value = TypeVar("Value")


@uncompiled
def async_load(
    state_dict: dict[str, object],
    *,
    order: Sequence[str],
    checkpoint_id: CheckpointName | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    store: Store | str | None = None,
    allow_pickle: bool = False,
    strict: bool = False,
    timeout_s: float = 30.0,
    ring_bytes: int = RING_BYTES,
) -> Loading:
    """Begin a `load` and return when the checkpoint is found; a thread reads it.

    order: paths that are read first, in that order, such as ["model"]; each has a future in
        `Loading.prefixes`. The other arguments are those of `load`.

    A prefix's future is done when every tensor there holds the step's bytes, verified, in its place
    on its device. This load never writes them again. But which step all ranks load is only settled
    when the whole load is. If the rest turns out to be damaged beyond repair, or other ranks load
    another generation, a `load` without futures begins again with that one. This one ends with Lost
    instead, once a prefix was handed out, and leaves what was handed out as it is: load again from
    the beginning. So use what you were given, but keep nothing that you made with it (a step of the
    optimizer, a save) before `Loading.result` has returned.

    Until `result` has returned, do not touch tensors whose future is not done.

    Raises Refused for an `order` that does not fit the state; NotFound, Unavailable, Lost. The
    futures and `result` raise what goes wrong later.
    """
    where, who = find_where(checkpoint_id, store), find_who(process_group, no_dist)
    state, order = asked_to_fill(state_dict), paths_of(order)
    loading = Loading(state_dict, state, order)
    futures = loading.prefixes
    parts = LoadOrder(order, names_of(state), lambda part: futures[part].set_result(None))
    job = LoadJob(state, who, parts, strict, allow_pickle, objects_of(state_dict))
    with ExitStack() as held:
        devices = held.enter_context(DeviceReads(tensors_of(state), ring_bytes))
        checkpoint = held.enter_context(
            where.store.resolve(
                where.run, where.step, rank=who.rank, world_size=who.world_size, timeout_s=timeout_s
            )
        )
        loading._begin(job, checkpoint, devices)
        held.pop_all()  # The thread lets go of them.
    return loading


class Loading:
    """A load that is under way. If nobody asks me for its error, the log `ckpt.restore` has it."""

    def __init__(
        self, state_dict: dict[str, object], state: dict[str, object], order: Sequence[str]
    ) -> None:
        """Made by `async_load`."""
        self.prefixes: Mapping[str, Future[None]] = {prefix: _begun() for prefix in order}
        """One future for each prefix, in the order of `order`: done when what lies there can be
        used. Raises what ended the load before that.
        """
        self._state_dict = state_dict
        self._state = state
        self._read: Future[tuple[NewLeaves, int]] = _begun()
        self._is_given_back = False
        #: What is loaded, until somebody has asked what became of it.
        self._unheard = ""

    def __del__(self) -> None:
        if self._unheard and self._read.done():
            _log_unheard(self._unheard, self._read)

    def result(self, timeout_s: float | None = None) -> int:
        """Wait for the whole load and return the step. Now whatever is not a tensor is replaced,
        and objects with `load_state_dict()` get their part, in the calling thread. Call it before
        the backward pass of what such objects have computed: they write their parameters once more,
        with the same bytes.

        Raises as `load` does, and TimeoutError while the rest is still being read.
        """
        wait([self._read], timeout_s)
        if self._read.done():
            self._unheard = ""
        found, step = self._read.result(0)
        if not self._is_given_back:
            give_back(self._state_dict, self._state, found)
            self._is_given_back = True
        return step

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._read.done()

    def _begin(self, job: LoadJob, checkpoint: Checkpoint, devices: DeviceReads) -> None:
        self._unheard = str(checkpoint.info.checkpoint)
        what = job, checkpoint, devices, self.prefixes, self._read, weakref.ref(self)
        start_thread(threading.Thread(target=_run, args=what, name="ckpt-load", daemon=True))


def _run(
    job: LoadJob,
    checkpoint: Checkpoint,
    devices: DeviceReads,
    prefixes: Mapping[str, Future[None]],
    read: Future[tuple[NewLeaves, int]],
    asker: weakref.ref[Loading],
) -> None:
    """In the load's thread. An error holds this frame, which holds no Loading: it would not be
    forgotten before the cyclic collector comes.
    """
    try:
        with devices, checkpoint:
            found = job.read(checkpoint, devices)
            step = checkpoint.step
    except BaseException as error:
        # Whoever asks hears it, whatever it is.
        for future in prefixes.values():
            if not future.done():
                future.set_exception(error)
        read.set_exception(error)
        if asker() is None:
            _log_unheard(str(checkpoint.info.checkpoint), read)
    else:
        read.set_result((found, step))


def _log_unheard(name: str, read: Future[tuple[NewLeaves, int]]) -> None:
    error = read.exception()
    if error is not None:
        _log.warning(printable(f"nobody asked what became of a load of {name}: {error}"))


def _begun() -> Future[Value]:
    """One that cannot be cancelled: nobody stops what it stands for."""
    future: Future[Value] = Future()
    future.set_running_or_notify_cancel()
    return future
