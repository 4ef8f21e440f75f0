"""Do all targets that can give the same when one is lost? A cluster of its own, in which every
payload has its columns where they were saved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ckpt.base.units import KiB
from ckptbench.cluster import BenchCluster
from ckptbench.repair.losses import Losses
from ckptbench.repair.plan import RepairPlan, TargetMade
from ckptbench.repair.rounds import cluster_plan
from ckptbench.repair.savers import saving

SIZE: Final = 256 * KiB
VICTIM: Final = "t0"


def measure_sources(plan: RepairPlan) -> TargetMade:
    """What one target held of so many payloads, made again. All code's columns are on as many
    targets: each of the others has one of every payload that is lost.
    """
    small = replace(plan, size=SIZE, large=SIZE, burst=SIZE, targets=plan.code.n)
    with BenchCluster(cluster_plan(small)) as cluster:
        with saving(cluster, "even", [SIZE]) as saver:
            saver.save_several(plan.sources)
        losses = Losses(cluster, small)
        return losses.make(losses.empty([VICTIM]))
