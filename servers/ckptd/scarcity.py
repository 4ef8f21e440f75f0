"""What the system does not give a worker is no defect of it: it may give it later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.base.errors import Unavailable

NO_THREAD: Final = "can't start new thread"
"""As CPython says it."""


@contextmanager
def scarcity_is_unavailable(hint: str) -> Iterator[None]:
    """Raises Unavailable, with the hint, where memory or threads are short."""
    try:
        yield
    except MemoryError as error:
        raise Unavailable(f"not enough memory: {error}", hint=hint) from error
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise Unavailable(f"the system gives no thread: {error}", hint=hint) from error
