"""What staging and loading need of a device whose memory is not the host's: a GPU, for example.

    training's stream  ──step n──┬─────step n + 1─────┬──optimizer──
                                 │ now()              │ follow(copied)
    copies' own stream           └──copy_out──copied──┘

Work is queued on streams, in whose order the device does it; a StreamPoint is a place in such a
queue. Nothing here waits for the device but StreamPoint.wait. No framework is imported: torch's
streams are used by `ckpt_torch.device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StreamPoint(Protocol):
    """A place in a device's queue of work."""

    @property
    def passed(self) -> bool:
        """Whether the device is past it; does not wait. Raises Aborted."""

    def wait(self) -> None:
        """Wait until the device is past it, without the interpreter lock. Raises Aborted."""


class OutPlan(Protocol):
    """What an Accelerator has prepared for copies into the same memory, again and again."""


class Accelerator(Protocol):
    """One device of this process, with a stream of its own for copies.

    `sources` and `targets` are arrays of the framework, pairwise of one dtype and shape; those in
    host memory are contiguous. Calls may come from any thread.
    """

    @property
    def name(self) -> str:
        """As the framework calls it, such as cuda:0."""

    def now(self) -> StreamPoint:
        """Where the stream of the calling thread stands."""

    def lock_pages(self, memory: memoryview) -> bool:
        """Let the device copy from and to this memory by itself. False when it cannot: then copies
        go through locked memory of the accelerator's own, which is slower.
        """

    def unlock_pages(self, memory: memoryview) -> None:
        """Undo `lock_pages` before the memory is unmapped; copies that use it must have ended."""

    def plan_out(self, sources: Sequence[object], targets: Sequence[object]) -> OutPlan:
        """Prepare copies of arrays like these sources into these targets; keeps no source."""

    def copy_out(self, plan: OutPlan, sources: Sequence[object], after: StreamPoint) -> StreamPoint:
        """Queue copies of device memory into the plan's targets, to run after `after`. Returns the
        StreamPoint at which they are done; the caller keeps the sources until then. Raises Aborted.
        """

    def copy_in(self, sources: Sequence[object], targets: Sequence[object]) -> StreamPoint:
        """Queue copies of host memory into device memory, to run after what the calling thread has
        queued. Returns the StreamPoint at which they are done; the caller keeps both until then.
        Raises Aborted.
        """

    def follow(self, moment: StreamPoint) -> None:
        """What the calling thread queues from now on runs after `moment`. Does not wait."""
