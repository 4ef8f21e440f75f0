"""The bytes of a file that is being written: memory with a descriptor, until they are on targets.

A memfd grows as it is written and has a real descriptor, so `os.fsync` on it works and costs
nothing. Only `close`, which waits for the targets, shows whether the bytes are safe. When the file
is complete it is mapped and encoded in place: no byte is copied again.
"""

from __future__ import annotations

import mmap
import os

from ckpt.base.system_errors import system_error
from ckpt.format.checksum import xxh3_128
from ckpt.format.members import Member, MemberPlan, plan_member
from ckpt_client.save.packing import TAIL_BYTES


class Spool:
    """I own a descriptor, and a mapping once sealed. Close me."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._descriptor = os.memfd_create("ckpt-file", os.MFD_CLOEXEC)
        self._length: int | None = None
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    def duplicate(self) -> int:
        """A descriptor of its own for who writes."""
        return os.dup(self._descriptor)

    def seal(self, name: str) -> tuple[Member, MemberPlan, memoryview]:
        """Everything is written: what it is under that name, how it becomes a payload, and the
        payload's memory with room for the last stripe. May be called again. Raises Refused,
        Scarce or NoSpace where the system gives no descriptor or no memory.
        """
        if self._view is None:
            if self._length is None:  # A try that failed has made it longer.
                self._length = os.fstat(self._descriptor).st_size
            self._map = self._mapped(plan_member(name, self._length).payload_bytes)
            self._view = memoryview(self._map)
            self._fingerprint = xxh3_128(self._view[: self._length])
        assert self._length is not None
        plan = plan_member(name, self._length)
        self._view[plan.document_offset : plan.payload_bytes] = plan.document
        return Member(name, self._length, self._fingerprint), plan, self._view

    def _mapped(self, size: int) -> mmap.mmap:
        """So many bytes, and a stripe's end."""
        try:
            os.ftruncate(self._descriptor, size + TAIL_BYTES)
            return mmap.mmap(self._descriptor, size + TAIL_BYTES, flags=mmap.MAP_SHARED)
        except OSError as error:
            raise system_error(f"cannot seal {self.name}", error) from error

    def close(self) -> None:
        """Idempotent. The memory goes with the last view of it."""
        self._view = self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()
