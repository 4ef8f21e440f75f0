"""Did anything change since the last save? A training whose saves repeat is one that stands still.

Each rank's stager compares the fingerprints of its tensors with those of the save before; the
coordinator adds the ranks up when it commits. Both halves are here.

Optimizer state is known by its path: a segment that begins with `optim`, `opt` or `opt_state`
itself, or a leaf that torch's optimizers name so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ckpt.base.units import counted
from ckpt.format.messages.saving import Repeats
from ckpt.format.table import RankTable

Fingerprints = Mapping[tuple[str, tuple[int, ...]], bytes]
"""(name, box offset) -> xxh3-128, of one rank's tensors that have bytes; empty: it was not made."""

_PREFIX: Final = "optim"
_SEGMENTS: Final = frozenset(("opt", "opt_state"))
_LEAVES: Final = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"))
_HINT: Final = re.compile("opt|exp_avg|momentum_buffer")
"""Occurs in every name of optimizer state."""


def fingerprints_of(table: RankTable) -> Fingerprints:
    """Of a table."""
    return {
        (entry.name, entry.offset): entry.fingerprint
        for entry in table.entries
        if 0 not in entry.shape
    }


def compare_saves(last_step: int, last: Fingerprints, now: Fingerprints) -> Repeats:
    """What of a rank's save repeats its last one."""
    same = {key for key, digest in now.items() if digest and last.get(key) == digest}
    optimizer = {key for key in now if is_optimizer_state(key[0])}
    return Repeats(last_step, len(now), len(same), len(optimizer), len(optimizer & same))


def repeat_warning(ranks: Sequence[Repeats | None]) -> str:
    """What to warn of a save, from all its ranks; empty when something changed or is not known."""
    steps = {rank.step if rank is not None else None for rank in ranks}
    known = [rank for rank in ranks if rank is not None]
    if len(steps) != 1 or len(known) != len(ranks):
        return ""
    (step,) = steps
    tensors, same = sum(rank.tensors for rank in known), sum(rank.same for rank in known)
    optimizer = sum(rank.optimizer_tensors for rank in known)
    if tensors and same == tensors:
        return (
            f"nothing has changed since step {step}: {counted(tensors, 'tensor')} on "
            f"{counted(len(ranks), 'rank')}, bit for bit the same"
        )
    if optimizer and sum(rank.optimizer_same for rank in known) == optimizer:
        return (
            f"no optimizer state has changed since step {step}: {counted(optimizer, 'tensor')} on "
            f"{counted(len(ranks), 'rank')}, bit for bit the same; of all {tensors}, "
            f"{tensors - same} changed"
        )
    return ""


def is_optimizer_state(name: str) -> bool:
    """Whether a tensor's path says so."""
    lowered = name.lower()
    if not _HINT.search(lowered):
        return False  # As of nearly all tensors.
    segments = lowered.split("/")
    return segments[-1] in _LEAVES or any(
        one.startswith(_PREFIX) or one in _SEGMENTS for one in segments
    )
