"""The file in which `ckptd drain` tells how far it is; `ckpt status` shows a local cluster's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

STATE_NAME: Final = "drain.json"
"""In the directory of a local cluster."""


class StoreView(msgspec.Struct, frozen=True):
    """One store in the drain's state file."""

    url: str
    state: str
    """`idle`, `draining`, or `failing` with the reason in `error`."""
    backlog: int = 0
    """Checkpoints that are not there yet."""
    backlog_bytes: int = 0
    oldest_undrained_at_s: float = 0.0
    """Unix time of that one's commit; 0 without one."""
    checkpoint: str = ""
    """What is being drained."""
    written_bytes: int = 0
    """Of it, written and read back."""
    bytes_per_s: float = 0.0
    """While draining, since this process began."""
    end_in_s: float = 0.0
    """When the backlog will be done at that rate; 0 when that is unknown."""
    last: str = ""
    """What was drained last by this process."""
    drained: int = 0
    """Checkpoints, by this process."""
    conditional: bool = True
    """The store creates an object only once; otherwise run one worker alone."""
    error: str = ""


class DrainState(msgspec.Struct, frozen=True):
    """The whole file."""

    pid: int
    stores: tuple[StoreView, ...]


def read_state(path: Path) -> DrainState | None:
    """None when nothing is drained from here."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DrainState)
    except (OSError, msgspec.MsgspecError):
        return None
