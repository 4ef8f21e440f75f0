"""A rank that ends spoils no job but its own."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist

from tests.frameworks.gloo import RankFailed, Ranks


def end_job() -> None:
    os._exit(3)


def rank_job() -> int:
    return dist.get_rank()


def test_a_rank_that_has_ended_is_named_and_another_has_its_place(ranks: Ranks) -> None:
    with pytest.raises(RankFailed, match=r"rank 0: process \d+ has ended"):
        ranks.run(1, end_job)
    assert ranks.run(2, rank_job) == [0, 1]
