"""What does an exit code say? Scripts rely on the table; errors carry theirs (ckpt.base.errors)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Codes that commands return themselves; the others come from a CkptError."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DEGRADED = 3
    LOST = 4
    NOT_FOUND = 10
    BUSY = 11
    UNAUTHORIZED = 12
    NO_SPACE = 13
    TRY_LATER = 75


MEANINGS: Final = (
    ("0", "done"),
    ("1", "failed"),
    ("2", "wrong usage, or refused: nothing was changed"),
    ("3", "degraded, partial, or not running"),
    ("4", "data is lost, or does not verify"),
    ("10", "no such cluster, run, step or target"),
    ("11", "busy: somebody else holds it"),
    ("12", "not authorized"),
    ("13", "no space"),
    ("75", "out of reach for now: try later"),
    ("128+N", "ended by signal N (130: Ctrl-C)"),
)

SIGNAL_BASE: Final = 128


def exit_code_lines() -> str:
    """The table as help texts show it."""
    return "\n".join(f"  {code:<6} {meaning}" for code, meaning in MEANINGS)
