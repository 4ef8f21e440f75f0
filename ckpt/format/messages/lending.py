"""Bulks that are lent to a target of the same host instead of sent (ckpt.aio.lending)."""

from __future__ import annotations

from msgspec import Struct


class LendMemory(Struct, frozen=True, gc=False):
    """A memfd comes along (SCM_RIGHTS): bulks may lie in it from now on. Unix sockets only."""

    region: int
    size_bytes: int


class TakeBackMemory(Struct, frozen=True, gc=False):
    """The region is lent no more."""

    region: int


class MemoryReturned(Struct, frozen=True, gc=False):
    """The borrower is done with these bulks; lent ones are counted from 0 on each connection."""

    bulks: tuple[int, ...]
