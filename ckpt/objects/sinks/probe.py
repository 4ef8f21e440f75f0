"""Does a store keep its promise that an object is created once? Asked before anything relies on
it."""

from __future__ import annotations

import secrets

from ckpt.base.errors import Refused
from ckpt.objects.sinks.sink import Sink


def probe_conditional(sink: Sink) -> bool:
    """Create a scratch object twice: the second time must be refused, and change nothing.

    Whether the first was refused says nothing: its answer may have been lost, and the name is
    nobody else's. Raises NotFound without the bucket, Unauthorized, Unavailable.
    """
    key = f".ckpt-probe-{secrets.token_hex(8)}"
    try:
        sink.put_if_absent(key, b"first")
        is_overwritten = sink.put_if_absent(key, b"second")
        return not is_overwritten and sink.get(key) == b"first"
    except Refused:
        return False
    finally:
        sink.delete([key])
