"""The measurements of `ckptbench gpu`, in a process beside the cluster:
`python -m ckptbench.gpu.measure PLAN`. Each kind of save takes its turn in every loop.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

import ckpt
import ckpt_torch
from ckpt.aio.collector import end_uncollected
from ckpt.base.units import format_seconds
from ckptbench import proc
from ckptbench.gpu.plan import (
    MODES,
    PREFIXES,
    SMALL_BYTES,
    SMALL_COUNT,
    FirstRow,
    GpuFigures,
    GpuPlan,
    LoadRow,
    StagingRow,
    TrainingRow,
)
from ckptbench.gpu.progress import RoundProgress
from ckptbench.gpu.savers import Saver, plain_copy_s, state_of, synchronize
from ckptbench.gpu.training import GpuTraining, expected_s
from ckptbench.run.counters import ARENA_NAME

Tensors = dict[str, torch.Tensor]


def measure(plan: GpuPlan, url: str, keep_file: Path) -> GpuFigures:
    """All of it. keep_file: while it is there, the cluster's targets keep what they are sent.

    Raises CkptError where a save fails.
    """
    large = _large(plan)
    progress = RoundProgress()
    takes = format_seconds(expected_s(plan))
    progress.say(f"the training's {plan.training_steps} steps are to take about {takes}")
    first = [_first(plan, progress, url, large, prepared=prepared) for prepared in (False, True)]
    store = ckpt.open(url, references=False, unchanged="ignore")
    saver = Saver(store, Path(plan.directory), plan.device)
    with store:
        staging = _staging(plan, progress, saver, "large", large)
        load = _load(saver, large, keep_file)
        del large
        staging += _staging(plan, progress, saver, "small", _small(plan))
        training = _training(plan, progress, saver)
        saver.close()
    return GpuFigures(_name_of(plan.device), str(torch.__version__), first, staging, training, load)


def _large(plan: GpuPlan) -> Tensors:
    elements = plan.size // plan.tensors // 4
    return {
        f"{n * PREFIXES // plan.tensors}/{n:04}": torch.randn(elements, device=plan.device)
        for n in range(plan.tensors)
    }


def _small(plan: GpuPlan) -> Tensors:
    elements, count = SMALL_BYTES // 4, min(SMALL_COUNT, plan.size // SMALL_BYTES)
    return {f"s/{n:04}": torch.randn(elements, device=plan.device) for n in range(count)}


def _private_bytes() -> int:
    return proc.private_bytes(os.getpid(), ARENA_NAME)


# --------------------------------------------------------------------------- the first save


def _first(
    plan: GpuPlan, progress: RoundProgress, url: str, tensors: Tensors, *, prepared: bool
) -> FirstRow:
    """Of a launch of its own, for which no stager is there."""
    progress.say("first save, prepared" if prepared else "first save")
    prepare_s = 0.0
    with ckpt.open(url, launch=f"first-{prepared}", references=False, unchanged="ignore") as store:
        state = state_of(tensors)
        synchronize()
        if prepared:
            begun = time.perf_counter()
            ckpt_torch.prepare(state, store=store, no_dist=True).result()
            prepare_s = time.perf_counter() - begun
        saver = Saver(store, Path(plan.directory), plan.device)
        save = saver.begin(state, "copy")
        save.wait_saved()
        saver.close()
        return FirstRow(prepare_s, save.call_s)


# --------------------------------------------------------------------------- staging


def _staging(
    plan: GpuPlan, progress: RoundProgress, saver: Saver, name: str, tensors: Tensors
) -> list[StagingRow]:
    plain_s = plain_copy_s(list(tensors.values()), plan.loops)
    before = _private_bytes()
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    grown: dict[str, int] = {}
    for _ in progress.rounds(f"staging, {name}", plan.loops):
        for mode in MODES:
            found[mode].append(_one_staging(saver, tensors, mode))
            grown.setdefault(mode, _private_bytes() - before)
    return [
        StagingRow(
            name, mode, sum(one.nbytes for one in tensors.values()),
            call_s=statistics.median(call for call, _ in times[1:]),
            staged_s=statistics.median(staged for _, staged in times[1:]),
            plain_s=plain_s, private_bytes=grown[mode],
        )
        for mode, times in found.items()
    ]  # fmt: skip


def _one_staging(saver: Saver, tensors: Tensors, mode: str) -> tuple[float, float]:
    """Seconds of the call, and until the state may be changed."""
    synchronize()
    begun = time.perf_counter()
    save = saver.begin(state_of(tensors), mode)
    save.wait_staged()
    staged_s = time.perf_counter() - begun
    save.wait_saved()
    return save.call_s, staged_s


def _load(saver: Saver, tensors: Tensors, keep_file: Path) -> LoadRow:
    keep_file.touch()
    saver.begin(state_of(tensors), "copy").wait_saved()
    before = _private_bytes()
    first_s, whole_s = saver.load(state_of(tensors), [str(n) for n in range(PREFIXES)])
    keep_file.unlink()
    size = sum(one.nbytes for one in tensors.values())
    return LoadRow(size, first_s, whole_s, _private_bytes() - before)


# --------------------------------------------------------------------------- training


def _training(plan: GpuPlan, progress: RoundProgress, saver: Saver) -> list[TrainingRow]:
    training = GpuTraining(plan.device, plan.width)
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    plain: list[float] = []
    with ckpt_torch.guard(training.optimizer) as guard:
        for _ in progress.rounds("training", plan.loops):
            plain.append(_steps_s(plan, training))
            for mode in MODES:
                before_s = guard.waited_s
                took_s = _steps_s(plan, training, saver, mode)
                found[mode].append((took_s, guard.waited_s - before_s))
    plain_s = statistics.median(plain[1:])
    return [
        TrainingRow(mode, plan.steps, _median(times, 0), plain_s, _median(times, 1))
        for mode, times in found.items()
    ]


def _steps_s(
    plan: GpuPlan, training: GpuTraining, saver: Saver | None = None, mode: str = ""
) -> float:
    """Seconds of some steps, after the call of a save if there is a saver; it is over on return."""
    synchronize()
    begun = time.perf_counter()
    save = saver.begin(training.state(), mode) if saver is not None else None
    for number in range(plan.steps):
        training.forward_and_back()
        if number == 0 and save is not None and mode == "dcp":
            save.wait_staged()
        training.optimizer.step()
    synchronize()
    took_s = time.perf_counter() - begun
    if save is not None:
        save.wait_saved()
    return took_s


def _median(times: Sequence[tuple[float, float]], place: int) -> float:
    """Without the first."""
    return statistics.median(one[place] for one in times[1:])


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def main(argv: Sequence[str]) -> None:
    """Prints the figures as JSON."""
    end_uncollected()
    plan, url, keep_file = argv
    # torch.distributed says that it is not there; a single process is what is measured.
    warnings.simplefilter("ignore")
    found = measure(msgspec.json.decode(plan, type=GpuPlan), url, Path(keep_file))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
