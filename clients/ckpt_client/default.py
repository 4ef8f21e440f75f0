"""`ckpt.save` and `ckpt.load`, and adapters: on the one store of this process for each URL."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, SupportsFloat

from ckpt.base.errors import Refused
from ckpt_client.handlers import refuse_inside
from ckpt_client.save.handle import Save
from ckpt_client.store import GRACE_S, SIGNALS, Store
from ckpt_client.store import open as open_store

if TYPE_CHECKING:
    from ckpt_client.preemption.guard import PreemptionGuard


def save(
    run: str,
    step: int,
    state: object,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    replicated: bool = False,
    metrics: Mapping[str, SupportsFloat] | None = None,
) -> Save:
    """`Store.save` on the store that $CKPT_STORE names. It is opened once for this process, and
    closed when the interpreter ends. Raises what `open` and `Store.save` do.
    """
    return process_store().save(
        run, step, state, rank=rank, world_size=world_size, replicated=replicated, metrics=metrics
    )


def preemption(
    run: str,
    *,
    grace_s: float = GRACE_S,
    signals: Sequence[str] = SIGNALS,
    rank: int | None = None,
    world_size: int | None = None,
) -> PreemptionGuard:
    """`Store.preemption` on the store that $CKPT_STORE names; opened as by `save`. Raises what
    `open` and `Store.preemption` do.
    """
    return process_store().preemption(
        run, grace_s=grace_s, signals=signals, rank=rank, world_size=world_size
    )


def load(
    run: str,
    step: int | str | None = None,
    like: object = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    strict: bool = True,
    whole: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> object:
    """`Store.load` on the store that $CKPT_STORE names; opened as by `save`.

    run: a run's name; the URL of a checkpoint in a cluster, `ckpt+local:///DIR/RUN/STEP` or
        `ckpt://HOST:PORT/RUN/STEP`, without STEP the newest; or that of a drained one,
        `s3://BUCKET/RUN@STEP`, which asks no cluster. There each process fetches all that it wants,
        since ranks share reads through a cluster.
    storage_options: for the library that reads the object store of such a URL.

    Raises what `open` and `Store.load` do; for a URL Refused, NotFound, Corrupt, Unavailable.
    """
    # What is no text is refused by the store.
    named = run if isinstance(run, str) else ""
    if named.startswith(("ckpt://", "ckpt+local://")):
        from ckpt_client.step_url import parse_step_url

        url = parse_step_url(run)
        if step is not None and url.step is not None:
            raise Refused(f"{run} and step={step} both name a step")
        return process_store(url.store).load(
            url.run, step if url.step is None else url.step, like,
            rank=rank, world_size=world_size, strict=strict, whole=whole,
        )  # fmt: skip
    if "://" in named:
        from ckpt_client.load import from_store

        return from_store.load(
            run,
            like,
            rank=rank,
            world_size=world_size,
            strict=strict,
            whole=whole,
            storage_options=storage_options,
        )
    return process_store().load(
        run, step, like, rank=rank, world_size=world_size, strict=strict, whole=whole
    )


#: URL -> the process that opened it, and the store. A forked child finds its parent's, and opens
#: its own instead.
_stores: dict[str, tuple[int, Store]] = {}
_stores_lock = threading.Lock()


def process_store(url: str | None = None) -> Store:
    """This process's one store of that URL, else of $CKPT_STORE; closed when the interpreter ends.

    Raises as `open`.
    """
    refuse_inside()
    url = url or os.environ.get("CKPT_STORE", "")
    with _stores_lock:
        pid, store = _stores.get(url, (0, None))
        if store is None or pid != os.getpid() or store.closed:
            store = open_store(url or None)
            _stores[url] = (os.getpid(), store)
            atexit.register(_close_default, store, os.getpid())
        return store


def _forget_in_child() -> None:
    """Another thread of the parent may have held the lock."""
    global _stores_lock
    _stores_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def _close_default(store: Store, pid: int) -> None:
    if pid == os.getpid():  # A forked child leaves its parent's store alone.
        store.close()
