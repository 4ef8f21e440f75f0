"""Does a store keep its promise that an object is created once? Asked before anything relies on
it."""

from __future__ import annotations

import secrets

from ckpt.base.errors import Refused
from ckpt.objects.sink import Sink


def probe_conditional(sink: Sink) -> bool:
    """Create a scratch object twice: the second time must be refused, and change nothing."""
    key = f".ckpt-probe-{secrets.token_hex(8)}"
    try:
        first = sink.put_if_absent(key, b"first")
        second = sink.put_if_absent(key, b"second")
        return first and not second and sink.get(key) == b"first"
    except Refused:
        return False
    finally:
        sink.delete([key])
