"""A process that may open nothing more, as under a low `ulimit -n`."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """All numbers below the limit are in use, but for so many."""
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    for one in free:
        os.close(one)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
