"""Arrays within arrays, deeper than a decoder goes: who sends them finds no process to end."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

DEPTHS: Final = (3_000, 30_000, 300_000, 3_000_000)
"""From Python 3.14 on the stack alone sets a limit, and the recursion limit does not."""


def too_deep(most_bytes: int) -> bytes:
    """Of at most so many bytes; without such the test is skipped."""
    for depth in DEPTHS:
        value = b"\x91" * depth + b"\xc0"
        if len(value) <= most_bytes and _is_refused(value):
            return value
    pytest.skip("in so few bytes this Python decodes any depth")


class _Message(msgspec.Struct, array_like=True):
    """What follows its fields is passed over, which goes deepest."""


def _is_refused(value: bytes) -> bool:
    try:
        msgspec.msgpack.decode(b"\x91" + value, type=_Message)
    except RecursionError:
        return True
    return False
