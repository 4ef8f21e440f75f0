"""ckpt: checkpoint-burst storage. What a training script calls; everything is loaded on first use.

`import ckpt` itself loads no third-party module, no asyncio and no socket, so that a script that
may never save pays nothing (tests/client/test_facade.py compares sys.modules).

    import ckpt

    with ckpt.open("ckpt+local:///scratch/burst?targets=7&code=4+2") as store:
        save = store.save("run", step, {"w": w, "m": ckpt.Shard(m, (4096, 1024), (1024, 0))})
        ...
        print(save.wait().targets_survivable)
        state = store.load("run")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ckpt.base.errors import (
        Aborted,
        Busy,
        CkptError,
        Corrupt,
        Degraded,
        Fenced,
        Lost,
        NoSpace,
        NotFound,
        PeerError,
        Refused,
        Unauthorized,
        Unavailable,
    )
    from ckpt_client.default import load, preemption, save
    from ckpt_client.load.checkpoint import Checkpoint
    from ckpt_client.preemption.guard import PreemptionGuard
    from ckpt_client.save.handle import Commit, Save
    from ckpt_client.save.shards import Box, PerRank, Replicated, Shard, Shards
    from ckpt_client.store import Store, open

__all__ = [
    "Aborted",
    "Box",
    "Busy",
    "Checkpoint",
    "CkptError",
    "Commit",
    "Corrupt",
    "Degraded",
    "Fenced",
    "Lost",
    "NoSpace",
    "NotFound",
    "PeerError",
    "PerRank",
    "PreemptionGuard",
    "Refused",
    "Replicated",
    "Save",
    "Shard",
    "Shards",
    "Store",
    "Unauthorized",
    "Unavailable",
    "load",
    "open",
    "preemption",
    "save",
]

_ERRORS: Final = "ckpt.base.errors"
_HOMES: Final = {
    **dict.fromkeys(("Box", "PerRank", "Replicated", "Shard", "Shards"), "ckpt_client.save.shards"),
    **dict.fromkeys(("Commit", "Save"), "ckpt_client.save.handle"),
    **dict.fromkeys(("Store", "open"), "ckpt_client.store"),
    **dict.fromkeys(("load", "preemption", "save"), "ckpt_client.default"),
    "PreemptionGuard": "ckpt_client.preemption.guard",
    "Checkpoint": "ckpt_client.load.checkpoint",
}
"""Public name -> the module that defines it; names that are absent here are errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
