"""Ranks and daemons of ckptbench that start warm: a job file starts dozens, which mostly import.

tests/bench_e2e has cold ones, as users have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ckptbench import cluster
from ckptbench.job.jobs import JobList
from ckptbench.rank import RankPlan
from ckptbench.ranks import RankGroup, Ranks
from ckptbench.results import RunResult
from ckptbench.run.session import check_all, run_jobs
from ckptbench.run.shelf import Context
from tests.frameworks import bench_rank
from tests.frameworks.warm import Warm
from tests.warm_child import start_bench_daemon

SCRIPT = Path(bench_rank.__file__)


def run_warm(warm: Warm, jobs: JobList) -> RunResult:
    """`ckptbench JOBS` on this host, where its processes start warm."""
    check_all(jobs, isolated=False)

    def make_ranks(
        plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
    ) -> RankGroup:
        return Ranks(plans, environment, log_directory, program=warm.command(SCRIPT)[1:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "start_child", start_bench_daemon)
        return run_jobs(jobs, Context(False, make_ranks, 1, lambda name, one: None))
