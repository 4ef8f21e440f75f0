"""Is it still the same process? An id alone is given again, and means another process in another
container.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def process_state(pid: int | None) -> str:
    """Its letter in /proc, as `S` or, of one that is stopped, `T`; empty when it does not run."""
    return (_stat(pid) or [""])[0]


def own_identity() -> str:
    """`PID START NAMESPACE`, which no other process of this host ever has."""
    pid = os.getpid()
    return f"{pid} {_start(pid)} {_namespace()}"


def has_ended(identity: str) -> bool:
    """Whether that process is known to have ended. One in another container cannot be seen from
    here, and what is no identity names none: then False.
    """
    pid, start, namespace = (*identity.split(), "", "", "")[:3]
    if not (pid.isascii() and pid.isdigit()) or namespace != _namespace():
        return False
    return _start(int(pid)) != start


def pid_of(identity: str) -> int | None:
    """The process id, while the process is seen to run."""
    pid, start, *_ = (*identity.split(), "", "")
    if not (pid.isascii() and pid.isdigit()):
        return None
    return int(pid) if start and _start(int(pid)) == start else None


def _start(pid: int) -> str:
    """In clock ticks since boot; empty when it does not run."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int | None) -> list[str]:
    """What /proc says after its name; empty when it does not run, or only its parent's word is
    missing.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []
    return [] if fields[:1] in ([], ["Z"], ["X"]) else fields


def _namespace() -> str:
    """In which our ids count."""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return "?"
