"""What works beside the one who looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """It works beside the block until `over`; what goes wrong with it is raised behind it."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            over.set()

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
