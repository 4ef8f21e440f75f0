"""The memory that staging copies into: made and faulted in by the stager,
mapped by the trainer too.

A half is a memfd. Its first touch is the dearest thing on the whole path (0.1 to 0.8 s/GB), so it
is paid once, off the stager's loop, and the memory is used again for every save that fits. Not
/dev/shm: that has 64 MB in many containers. The size is sealed: nobody can shrink it under
another's mapping.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

from ckpt.aio.lending import Lendable
from ckpt.aio.sealed_memory import mapped, populate, sealed_memory
from ckpt.base.errors import CkptError, NoSpace
from ckpt.base.system_errors import system_error
from ckpt.base.units import MiB, align_up, format_bytes
from ckpt_client.control_group import limited_groups

HALF_UNIT_BYTES: Final = 2 * MiB
GROWTH_SHARE: Final = 16
"""A half that must grow gets 1/16 more than asked, so that a slowly growing state grows it rarely.
"""
_HINT: Final = "lower arena_bytes_max, or give the job more memory"


@dataclass(frozen=True, slots=True)
class Half:
    """One mapped half. The memory lives as long as anyone maps it or holds a descriptor."""

    memory: memoryview
    """Writable, `size` bytes."""
    descriptor: int
    """Owned here; -1 in a trainer, which needs none."""
    lendable: Lendable | None = None
    """How the stager lends it to targets of this host."""

    @property
    def size(self) -> int:
        return len(self.memory)


def half_size(asked_bytes: int, current_bytes: int) -> int:
    """The size to make a half that must hold `asked_bytes` and had `current_bytes` before."""
    slack = asked_bytes // GROWTH_SHARE if current_bytes else 0
    return align_up(max(asked_bytes + slack, 1), HALF_UNIT_BYTES)


def make_half(size: int) -> Half:
    """New memory of `size` bytes, every page of it present.

    Raises NoSpace; slow, call it off the loop.
    """
    for group in limited_groups():
        # Nobody is asked: the kernel kills a process of the group, such as the trainer.
        if size > group.free_bytes:
            raise NoSpace(
                f"the job's control group has {format_bytes(group.free_bytes)} of memory free, "
                f"the arena needs {format_bytes(size)}",
                hint=_HINT,
            )
    try:
        descriptor, view = sealed_memory("ckpt-arena", size, present=True)
        return Half(view, descriptor, Lendable.of(descriptor, view))
    except OSError as error:
        what = f"the host gives no {format_bytes(size)} of memory for the arena"
        if error.errno == errno.EFBIG:
            raise system_error(what, error) from None
        raise NoSpace(f"{what}: {error.strerror}", hint=_HINT) from None


def map_half(descriptor: int, size: int) -> Half:
    """The trainer's view of a half that its stager made.

    Takes the descriptor over and closes it. Raises NoSpace.
    """
    try:
        if os.fstat(descriptor).st_size < size:
            raise CkptError(f"the stager sent an arena smaller than {format_bytes(size)}")
        view = mapped(descriptor, size)
        populate(view)
        return Half(view, -1)
    except OSError as error:
        raise system_error(f"cannot map {format_bytes(size)} of the arena", error) from None
    finally:
        os.close(descriptor)


def drop_half(half: Half) -> None:
    """Give up this process's hold; the mapping goes with the last view of it."""
    if half.descriptor >= 0:
        os.close(half.descriptor)
