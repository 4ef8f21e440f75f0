"""All that `ckptbench repair` measures, in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ckpt.base.errors import Refused
from ckptbench.figures import rebuild_bound
from ckptbench.repair.plan import RepairFigures, RepairPlan
from ckptbench.repair.queue import measure_queue
from ckptbench.repair.rounds import RepairRounds, Tell
from ckptbench.repair.sources import measure_sources
from ckptbench.roofline import RooflinePlan, core_count, measure_costs, measure_read


def measure_repair(plan: RepairPlan, tell: Tell) -> RepairFigures:
    """Raises Refused for a plan that cannot be, CkptError when something is not made again."""
    check_plan(plan)
    tell("measuring what each stage costs alone")
    roofline = RooflinePlan(1, plan.code, plan.directory, plan.quick)
    costs, _ = measure_costs(roofline)
    with tempfile.TemporaryDirectory(prefix="ckptbench-", dir=plan.directory) as name:
        costs, _ = measure_read(costs, Path(name), roofline)
    with RepairRounds(plan, tell) as run:
        rounds = []
        for number in range(plan.loops):
            tell(f"round {number + 1} of {plan.loops}")
            rounds.append(run.measure())
        several, moved, beside = run.lose_several(), run.move(), run.beside()
    tell(f"{plan.sources} small payloads for which sources are compared")
    even = measure_sources(plan)
    tell(f"{plan.lost_columns} lost columns before a coordinator")
    queue = measure_queue(plan.code, plan.lost_columns)
    bound = rebuild_bound(costs, plan.code, core_count())
    return RepairFigures(
        tuple(rounds), several, even, queue, costs, bound, core_count(), beside, moved
    )


def check_plan(plan: RepairPlan) -> None:
    """Raises Refused."""
    if plan.code.m < 1:
        raise Refused(f"code {plan.code} has no parity: nothing that is lost comes back")
    if plan.targets <= plan.code.n:
        text = f"{plan.targets} targets: one that stays away needs more than the code's"
        raise Refused(f"{text} {plan.code.n}", hint=f"--targets={plan.code.n + 1}")
    counts = plan.payloads, plan.loops, plan.bursts, plan.sources, plan.lost_columns
    if min(plan.size, plan.burst, *counts) < 1 or plan.floor_s <= 0:
        text = "size, payloads, loops, bursts, sources and lost columns are at least 1"
        raise Refused(f"{text}, seconds above 0")
    if plan.large <= plan.size:
        raise Refused("the large payload is larger than the others", hint="raise --large")
