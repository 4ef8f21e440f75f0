"""A daemon that did not start has said why in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ckpt.base.errors import ERROR_OF_EXIT, CkptError, Unavailable

LOG_TAIL_BYTES: Final = 4000


def why_it_ended(name: str, status: int | None, log: Path) -> CkptError:
    """What `ckptd NAME` said at its end, as an error of the kind that its status names."""
    try:
        lines = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    prefix = f"ckptd {name}: "
    told = lines[-1].removeprefix(prefix) if lines and lines[-1].startswith(prefix) else ""
    said, _, hint = told.partition("; ")
    # A command that it names stands last, so that it can be copied.
    hint = hint if "run: " in hint else "; ".join(filter(None, (hint, f"see {log}")))
    kind = ERROR_OF_EXIT.get(status or 0, Unavailable)
    text = f"the {name} did not start, status {status}"
    return kind(f"{text}: {said}" if said else text, hint=hint)
