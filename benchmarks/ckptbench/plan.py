"""How often should a job save, and which tier does that take? `ckptbench plan`. Pure.

    delta   what a save costs the training: the copy into the arena (bytes of a rank / copy rate)
    T       until it is committed: bytes x n/k / (targets x rate)
    tau     Daly's interval for delta and the job's MTBF M, and no shorter than T / busy
    lost    delta/tau + (tau/2 + T + R)/M: saving, work since the last commit, loading it (R)

Young: sqrt(2 delta M). Daly: the same with two more terms, less delta; M when delta >= 2 M.
The tier is as small as both bounds let it be: a burst takes at most `busy` of an interval, and
`keep` checkpoints fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import TiB, format_bytes, format_number, format_seconds
from ckpt.erasure.code import Code
from ckptbench import models

BUSY_DEFAULT: Final = 0.5
TARGETS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is known of a job and of the storage."""

    checkpoint_bytes: int
    gpus: int
    mtbf_s: float
    """Of the whole job."""
    target_rate: float
    """Bytes per second that one target keeps up, write and read."""
    code: Code = field(default_factory=lambda: Code(4, 2))
    copy_rate: float = 5e9
    """Bytes per second of one rank's copy into host memory."""
    restart_s: float = 120.0
    """Until a restarted job begins to load."""
    target_bytes: int = 4 * TiB
    keep: int = 3
    busy: float = BUSY_DEFAULT
    """A burst may take so much of an interval."""
    targets: int = 0
    """0: as few as it takes."""

    def __post_init__(self) -> None:
        least = (self.checkpoint_bytes, self.gpus, self.mtbf_s, self.target_rate, self.copy_rate)
        if min(least) <= 0 or self.keep < 1 or self.target_bytes < 1:
            raise Refused("bytes, gpus, mtbf, rates and keep must be more than 0")
        if not 0 < self.busy <= 1:
            raise Refused(f"busy is a part of an interval, above 0 and at most 1, not {self.busy}")
        if self.targets and self.targets < self.code.n:
            raise Refused(f"code {self.code} needs {self.code.n} targets, not {self.targets}")


@dataclass(frozen=True, slots=True)
class TierPlan:
    """The tier that a job needs: interval, bandwidth, capacity, targets."""

    targets: int
    bound_by: str
    """`bandwidth`, `capacity`, `code` or `given`."""
    stall_s: float
    commit_s: float
    young_s: float
    daly_s: float
    interval_s: float
    """What to use: Daly's, unless the burst would not be done."""
    bandwidth: float
    """Bytes per second that the tier must take in."""
    capacity: int
    """Bytes that the tier must hold."""
    load_s: float
    lost_share: float
    """Of the job's time."""
    lost_gpu_s_per_save: float


def young(cost_s: float, mtbf_s: float) -> float:
    """Young's interval."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Daly's higher order estimate of the best interval of training between two saves."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def make_plan(request: PlanRequest) -> TierPlan:
    """The smallest tier and its interval."""
    stored = request.checkpoint_bytes * request.code.n / request.code.k
    stall = request.checkpoint_bytes / request.gpus / request.copy_rate
    wanted = daly(stall, request.mtbf_s)
    targets, bound_by = _targets(request, stored, wanted)
    rate = targets * request.target_rate
    commit = stored / rate
    interval = max(wanted, commit / request.busy)
    load = request.checkpoint_bytes / rate + request.restart_s
    return TierPlan(
        targets=targets,
        bound_by=bound_by,
        stall_s=stall,
        commit_s=commit,
        young_s=young(stall, request.mtbf_s),
        daly_s=wanted,
        interval_s=interval,
        bandwidth=stored / (interval * request.busy),
        capacity=math.ceil(stored * request.keep),
        load_s=load,
        lost_share=min(1.0, stall / interval + (interval / 2 + commit + load) / request.mtbf_s),
        lost_gpu_s_per_save=stall * request.gpus,
    )


def plan_text(request: PlanRequest, plan: TierPlan) -> str:
    """For people."""
    saves = 86400 / plan.interval_s
    return "\n".join(
        [
            f"checkpoint   {format_bytes(request.checkpoint_bytes)} "
            f"({request.checkpoint_bytes} bytes), {request.gpus} GPUs, "
            f"MTBF {format_seconds(request.mtbf_s)}",
            f"interval     {format_seconds(plan.interval_s)} ({saves:.0f} a day); "
            f"Young {format_seconds(plan.young_s)}, Daly {format_seconds(plan.daly_s)}",
            f"targets      {plan.targets} at {request.target_rate / 1e9:g} GB/s, {request.code} "
            f"(by {plan.bound_by})",
            f"bandwidth    {plan.bandwidth / 1e9:.4g} GB/s into the tier, "
            f"{format_bytes(plan.capacity)} of capacity for {request.keep} checkpoints",
            f"a save       stalls {format_seconds(plan.stall_s)} "
            f"({format_number(plan.lost_gpu_s_per_save)} GPU-seconds), is committed after "
            f"{format_seconds(plan.commit_s)}",
            f"a restart    loads after {format_seconds(plan.load_s)}",
            f"lost         {100 * plan.lost_share:.3g}% of the job's time",
        ]
    )


def model_bytes(name: str) -> int:
    """Of a checkpoint of this model. Raises Refused."""
    return sum(models.find(name).rank_bytes())


def _targets(request: PlanRequest, stored: float, interval_s: float) -> tuple[int, str]:
    if request.targets:
        return request.targets, "given"
    wanted = {
        "code": request.code.n,
        "bandwidth": math.ceil(stored / (interval_s * request.busy) / request.target_rate),
        "capacity": math.ceil(stored * request.keep / request.target_bytes),
    }
    bound_by = max(wanted, key=lambda name: wanted[name])
    if wanted[bound_by] > TARGETS_MAX:
        raise Refused(f"{wanted[bound_by]} targets: more than {TARGETS_MAX}", hint="see the units")
    return wanted[bound_by], bound_by
