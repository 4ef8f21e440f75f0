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
        """Whether the device is past it; asks and does not wait. Raises Aborted."""

    def wait(self) -> None:
        """Until the device is past it, without the interpreter lock. Raises Aborted."""


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
        """Let the device copy from and to this memory by itself. False when it cannot: copies go
        through locked memory of the accelerator's own then, and are slower.
        """

    def unlock_pages(self, memory: memoryview) -> None:
        """Before the memory is unmapped; copies that use it must be through."""

    def plan_out(self, sources: Sequence[object], targets: Sequence[object]) -> OutPlan:
        """How arrays like these sources get into these targets; holds no source."""

    def copy_out(self, plan: OutPlan, sources: Sequence[object], after: StreamPoint) -> StreamPoint:
        """Queue copies of device memory into the plan's targets, to be done after `after`; the
        StreamPoint when they are through. The caller keeps the sources until then. Raises Aborted.
        """

    def copy_in(self, sources: Sequence[object], targets: Sequence[object]) -> StreamPoint:
        """Queue copies of host memory into device memory, to be done after what the calling thread
        has queued; the StreamPoint when they are through. The caller keeps both until then. Raises
        Aborted.
        """

    def follow(self, moment: StreamPoint) -> None:
        """What the calling thread queues from now on is done after `moment`. Does not wait."""
