"""Which jobs do the rules need? Sections of a job file, as anybody could write them.

Jobs that are compared take turns, so that a ratio is of the same round. Those whose figures are
against the raw disk run alone: rounds in which its speed drifted are repeated, and no others have
these. The job that kills targets is the last one.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.units import MiB, exact_bytes

RANKS: Final = 4
SIZE: Final = 512 * MiB
"""What the rules are stated for: so many ranks, and bytes of each."""
PAGE_BYTES: Final = 4096

COMMON: Final = "loops=7"
TIER: Final = "code=4+2 targets=6"
SECTIONS: Final = (
    ("null", f"rw=save {TIER} sink=null warmups=2 roofline interleave"),
    ("null-many", f"rw=save {TIER} sink=null warmups=2 interleave run=many"),
    ("null-lent", f"stonewall rw=save {TIER} sink=null tcp=0 warmups=2"),
    ("null-8+2", "stonewall rw=save code=8+2 targets=10 sink=null warmups=2 roofline"),
    ("null-6+0", "stonewall rw=save code=6+0 targets=6 sink=null warmups=2 roofline"),
    ("disk-8+2", "stonewall rw=save code=8+2 targets=10 warmups=2 baseline"),
    ("disk-6+0", "stonewall rw=save code=6+0 targets=6 warmups=2 baseline"),
    ("disk", f"stonewall rw=save {TIER} warmups=2 baseline"),
    ("tensors", f"stonewall rw=save {TIER} warmups=2 baseline tensor_size=1k-64k run=tensors"),
    ("save", f"stonewall interleave rw=save {TIER} warmups=1"),
    ("save-lent", f"interleave rw=save {TIER} tcp=0 warmups=1"),
    ("save-torch", "interleave rw=save ioengine=torch_save warmups=1"),
    ("save-direct", "interleave rw=save ioengine=posix direct bs=4Mi warmups=1"),
    ("load", f"stonewall interleave rw=load {TIER} warmups=1"),
    ("load-lent", f"interleave rw=load {TIER} tcp=0 warmups=1"),
    ("load-file", "interleave rw=load ioengine=posix bs=4Mi warmups=1"),
    ("load-torch", "interleave rw=load ioengine=torch_save warmups=1"),
    ("restore", f"stonewall rw=degraded {TIER} roofline baseline"),
)
"""Name and settings, in the order of the run; `section_texts` adds ranks and bytes."""


def section_texts(ranks: int, size: int) -> list[tuple[str, str]]:
    """Of each section its name and settings, when a usual job is so many ranks of `size` bytes.

    The same bytes are four times as many ranks in `null-many`. `tensors` has the bytes of 5,000
    of its tensors when `size` is what the rules are stated for.
    """
    shapes = {"null-many": (4 * ranks, size // 4), "tensors": (1, size * 5 // 16)}
    found = []
    for name, text in SECTIONS:
        count, rank_bytes = shapes.get(name, (ranks, size))
        pages = max(1, rank_bytes // PAGE_BYTES)
        shape = f"numjobs={count} size={exact_bytes(pages * PAGE_BYTES)}"
        found.append((name, f"{COMMON} {shape} {text}"))
    return found
