"""A change that is under way while its tensor is copied: torch counts it as it ends."""

from __future__ import annotations

import torch

import ckpt
import ckpt_torch
from tests.frameworks.test_overlap import WAIT_S

LARGE = 60_000_000
"""Elements: one thread takes longer to change them all than to copy the first ones."""
SAVED = 1000


def test_a_change_that_began_before_the_copy_and_ends_after_it_is_seen(cluster: str) -> None:
    whole = torch.zeros(LARGE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torn = 0
    try:
        with ckpt.open(cluster) as store:
            for step in range(1, 6):
                before = float(whole[0])
                future = ckpt_torch.async_save(
                    {"a": whole[:SAVED]}, checkpoint_id=f"long/{step}", store=store,
                    staging="overlap",
                )  # fmt: skip
                whole.add_(1)
                error = future.exception(WAIT_S)
                if error is not None:
                    assert "changed while rank 0 staged it" in str(error)
                    torn += 1
                    continue
                found = {"a": torch.full((SAVED,), -1.0)}
                ckpt_torch.load(found, checkpoint_id=f"long/{step}", store=store)
                assert torch.equal(found["a"], torch.full((SAVED,), before))
    finally:
        torch.set_num_threads(threads)
    assert torn, "the copies were overtaken"
