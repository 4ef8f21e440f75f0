"""ckpt under torch: `save`, `async_save` and `load` of whole state dicts, with DCP's signatures.

import ckpt_torch

future = ckpt_torch.async_save({"model": model.state_dict(), "step": step},
                               checkpoint_id=f"ckpt://10.0.0.1:7070/gpt/{step}")
...
ckpt_torch.load(state, checkpoint_id="ckpt://10.0.0.1:7070/gpt")

What DCP itself calls is loaded on first use: its package takes longer to import than all else here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from ckpt.base.extras import needing

with needing("ckpt_torch"):
    from ckpt_torch.place import launch_key
    from ckpt_torch.preparing import prepare
    from ckpt_torch.reading.async_loading import async_load
    from ckpt_torch.reading.loading import load
    from ckpt_torch.reading.whole import load_whole
    from ckpt_torch.saving import async_save, save
    from ckpt_torch.staging.guard import guard

if TYPE_CHECKING:
    from ckpt_torch.dcp_reader import CkptReader
    from ckpt_torch.dcp_stager import CkptStager
    from ckpt_torch.dcp_writer import CkptWriter

__all__ = [
    "CkptReader",
    "CkptStager",
    "CkptWriter",
    "async_load",
    "async_save",
    "guard",
    "launch_key",
    "load",
    "load_whole",
    "prepare",
    "save",
]

_HOMES: Final = {
    "CkptReader": "ckpt_torch.dcp_reader",
    "CkptStager": "ckpt_torch.dcp_stager",
    "CkptWriter": "ckpt_torch.dcp_writer",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
