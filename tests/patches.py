"""A method of the code, replaced by another for as long as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def patched(owner: type[object], name: str, replacement: Callable[..., object]) -> Iterator[None]:
    """`owner.name` is the replacement."""
    was = owner.__dict__[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, was)
