"""What the system does not give a worker is no defect of it: it may give it later."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.aio.threads import NO_THREAD
from ckpt.base.errors import Unavailable

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""The process has as many as it may, or the system."""


@contextmanager
def scarcity_is_unavailable(hint: str) -> Iterator[None]:
    """Raises Unavailable, with the hint, where memory, threads or descriptors are short."""
    try:
        yield
    except MemoryError as error:
        raise Unavailable(f"not enough memory: {error}", hint=hint) from error
    except OSError as error:
        if error.errno == errno.ENOMEM:  # As mmap says it.
            raise Unavailable(f"not enough memory: {error}", hint=hint) from error
        if error.errno not in NO_DESCRIPTOR:
            raise
        raise Unavailable(f"no descriptor is left: {error}", hint=hint) from error
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise Unavailable(f"the system gives no thread: {error}", hint=hint) from error
