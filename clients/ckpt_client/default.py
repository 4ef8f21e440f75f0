"""`ckpt.save` and `ckpt.load`: on the one store of this process that $CKPT_STORE names."""

from __future__ import annotations

import atexit
import os
import threading

from ckpt_client.saving import Save
from ckpt_client.store import Store
from ckpt_client.store import open as open_store


def save(
    run: str,
    step: int,
    state: object,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    replicated: bool = False,
) -> Save:
    """`Store.save` on the store that $CKPT_STORE names, which is opened once for this process."""
    return _default_store().save(
        run, step, state, rank=rank, world_size=world_size, replicated=replicated
    )


def load(
    run: str,
    step: int | None = None,
    like: object = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    strict: bool = True,
    whole: bool = False,
) -> object:
    """`Store.load` on the store that $CKPT_STORE names."""
    return _default_store().load(
        run, step, like, rank=rank, world_size=world_size, strict=strict, whole=whole
    )


_default: tuple[str, int, Store] | None = None
_default_lock = threading.Lock()


def _default_store() -> Store:
    """One store for each process and value of $CKPT_STORE; closed when the interpreter ends."""
    global _default
    url = os.environ.get("CKPT_STORE", "")
    with _default_lock:
        if _default is not None and _default[:2] == (url, os.getpid()):
            return _default[2]
        store = open_store(url or None)
        _default = (url, os.getpid(), store)
        atexit.register(_close_default, store, os.getpid())
        return store


def _close_default(store: Store, pid: int) -> None:
    if pid == os.getpid():  # A forked child leaves its parent's store alone.
        store.close()
