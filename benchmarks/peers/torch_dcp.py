"""ckpt beside torch.distributed.checkpoint, in one run: stall, background work, cold load, reshard.

    python benchmarks/peers/torch_dcp.py --ranks 4 --mib 512 --rounds 3

Every rank holds a transformer block's weights (bf16) and Adam state (fp32) as DTensors. All figures
are of the slowest rank, medians over rounds; the report gives them as ratios of this run. DCP runs
at its defaults and tuned (process mode, a shared stager, plan cache; writer threads for its loads).
Cold: page caches are dropped before each load, which needs root; else it says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from beside import cluster, drop_caches
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ckpt
import ckpt_torch
from ckpt.base.units import MiB

COLUMNS = 4096
SMALL_COUNT = 5000
SMALL_ROUNDS = 5
BUSY_SIZE = 256
"""Rows of the matrices that a training loop beside a background write multiplies."""
State = dict[str, DTensor]
Figures = dict[str, float]


class DcpBench:
    """One rank's state, and what is measured with it."""

    def __init__(self, options: argparse.Namespace, place: Path, url: str) -> None:
        self.options = options
        self.place = place
        # The states repeat; what is measured is writing.
        self.store = ckpt.open(url, references=False)
        self.step = 0
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.talk = dist.new_group(backend="gloo")
        self.stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=True,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self.state = self.made(0)

    def made(self, dim: int) -> State:
        """Local parts of equal size, global tensors cut along `dim`."""
        rows = self.options.mib * MiB // (14 * COLUMNS)  # 2 bytes of weight, 12 of Adam's fp32.
        size = dist.get_world_size()
        rows -= rows % (size * size)
        shape = (rows, COLUMNS) if dim == 0 else (rows * size, COLUMNS // size)
        kinds = {
            "w": torch.bfloat16,
            "master": torch.float32,
            "m": torch.float32,
            "v": torch.float32,
        }
        state: State = {}
        for name, kind in kinds.items():
            local = torch.empty(shape, dtype=kind).uniform_()
            state[name] = DTensor.from_local(local, self.mesh, [Shard(dim)], run_check=False)
        return state

    # ----------------------------------------------------------------------- saves

    def ckpt_save(self) -> Callable[[], object]:
        self.step += 1
        return ckpt_torch.async_save(
            self.state, checkpoint_id=f"peer/{self.step}", store=self.store
        ).result

    def dcp_save(self) -> Callable[[], object]:
        self.step += 1
        writer = FileSystemWriter(self.place / f"default-{self.step}")
        answer = dcp.async_save(self.state, storage_writer=writer, process_group=self.talk)
        assert isinstance(answer, Future)
        return answer.result

    def dcp_save_tuned(self) -> Callable[[], object]:
        self.step += 1
        place = self.place / f"tuned-{self.step}"
        answer = dcp.async_save(
            self.state,
            storage_writer=FileSystemWriter(place, single_file_per_rank=False, thread_count=2),
            process_group=self.talk,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self.stager,
            planner=dcp.DefaultSavePlanner(enable_plan_caching=True),
        )
        future = answer if isinstance(answer, Future) else answer.upload_completion
        return future.result

    def stall(self, name: str, save: Callable[[], Callable[[], object]]) -> Figures:
        """Seconds of the call, and how often a training loop comes round meanwhile."""
        dist.barrier()
        begun = time.perf_counter()
        wait = save()
        stall_s = time.perf_counter() - begun
        dist.barrier()
        busy = torch.ones(BUSY_SIZE, BUSY_SIZE)
        loops, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < self.options.beside_s:
            torch.mm(busy, busy)
            loops += 1
        pace = loops / (time.perf_counter() - begun)
        wait()
        dist.barrier()
        return {f"{name} stall": stall_s, f"{name} pace": pace}

    def copy_s(self) -> float:
        """A warm copy of the same arrays."""
        parts = [tensor.to_local() for tensor in self.state.values()]
        targets = [torch.empty_like(part) for part in parts]
        for _ in range(2):  # The first one pays the first touch.
            dist.barrier()
            begun = time.perf_counter()
            for target, part in zip(targets, parts, strict=True):
                target.copy_(part)
            found = time.perf_counter() - begun
        return found

    # ----------------------------------------------------------------------- loads

    def load_s(self, load: Callable[[State], object], dim: int) -> float:
        state = self.made(dim)  # Touched: the destination is the trainer's own memory.
        dist.barrier()
        if dist.get_rank() == 0:
            drop_caches()
        dist.barrier()
        begun = time.perf_counter()
        load(state)
        dist.barrier()
        return time.perf_counter() - begun

    def small(self) -> Figures:
        """5,000 tensors of 1 to 64 KiB; all ranks at once, the loop as the saves."""
        sizes = [1024 * (1 + n % 64) // 4 for n in range(SMALL_COUNT)]
        parts = {str(n): torch.ones(size) for n, size in enumerate(sizes)}
        targets = [torch.ones(size) for size in sizes]
        loops, saves = [], []
        for step in range(1 + SMALL_ROUNDS):  # The first makes the arena and the plan.
            parts["0"] += 1  # A state that stands still would be warned of.
            dist.barrier()
            begun = time.perf_counter()
            for target, part in zip(targets, parts.values(), strict=True):
                target.copy_(part)
            loops.append(time.perf_counter() - begun)
            name = f"small-{dist.get_rank()}/{step}"
            dist.barrier()
            begun = time.perf_counter()
            future = ckpt_torch.async_save(
                parts, checkpoint_id=name, no_dist=True, store=self.store
            )
            saves.append(time.perf_counter() - begun)
            future.result()
        loop_s, found = statistics.median(loops[1:]), statistics.median(saves[1:])
        return {"small loop": loop_s, "small ckpt": found}

    def run(self) -> dict[str, list[Figures]]:
        """All figures of this rank, by round."""
        ways = {"ckpt": self.ckpt_save, "dcp": self.dcp_save, "dcp-tuned": self.dcp_save_tuned}
        saves: list[Figures] = []
        for number in range(1 + self.options.rounds):
            found = {"copy": self.copy_s(), **self.stall("alone", lambda: lambda: None)}
            for name, save in ways.items():
                found |= self.stall(name, save)
            if number:  # The first one warms everything up.
                saves.append(found)
            if number < self.options.rounds and dist.get_rank() == 0:
                for old in (*self.place.glob("default-*"), *self.place.glob("tuned-*")):
                    shutil.rmtree(old)
        loads = [
            {
                f"{name} {what}": self.load_s(load, dim)
                for what, dim in (("cold", 0), ("reshard", 1))
                for name, load in self.loaders().items()
            }
            for _ in range(self.options.rounds)
        ]
        return {"saves": saves, "loads": loads, "small": [self.small()]}

    def loaders(self) -> dict[str, Callable[[State], object]]:
        newest = f"peer/{self.step - 2}"
        default, tuned = self.place / f"default-{self.step - 1}", self.place / f"tuned-{self.step}"
        return {
            "ckpt": lambda state: ckpt_torch.load(
                dict(state), checkpoint_id=newest, store=self.store
            ),
            "dcp": lambda state: dcp.load(dict(state), checkpoint_id=default),
            "dcp-tuned": lambda state: dcp.load(dict(state), checkpoint_id=tuned),
        }


def serve(rank: int, options: argparse.Namespace, place: Path, url: str) -> None:
    """One rank's life."""
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=options.ranks
    )
    bench = DcpBench(options, place, url)
    found = bench.run()
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    bench.stager.close()
    bench.store.close()
    dist.destroy_process_group()


def report(found: list[dict[str, list[Figures]]]) -> Figures:
    """Ratios of this run: of the slowest rank, medians over rounds."""
    figures: Figures = {}
    for kind, rounds in found[0].items():
        for name in rounds[0]:
            worst = min if name.endswith("pace") else max
            each = [worst(one[kind][n][name] for one in found) for n in range(len(rounds))]
            figures[name] = statistics.median(each)
    best = {
        what: min(figures[f"dcp {what}"], figures[f"dcp-tuned {what}"])
        for what in ("cold", "reshard")
    }
    stall, alone = figures["ckpt stall"], figures["alone pace"]
    return {
        "warm copy, s": figures["copy"],
        "stall, s": stall,
        "stall / warm copy": stall / figures["copy"],
        "stall / dcp.async_save": stall / figures["dcp stall"],
        "stall / dcp.async_save tuned": stall / figures["dcp-tuned stall"],
        "loop's pace beside ckpt": figures["ckpt pace"] / alone,
        "loop's pace beside dcp": figures["dcp pace"] / alone,
        "loop's pace beside dcp tuned": figures["dcp-tuned pace"] / alone,
        "cold load, s": figures["ckpt cold"],
        "best dcp / ckpt, cold load": best["cold"] / figures["ckpt cold"],
        "best dcp / ckpt, reshard": best["reshard"] / figures["ckpt reshard"],
        "5,000 small tensors: stall / plain loop": figures["small ckpt"] / figures["small loop"],
    }


def main() -> int:
    """Run it and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=512, help="of state for each rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside-s", type=float, default=1.0, help="how long the loop is counted")
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="peers-") as name:
        place = Path(name)
        with cluster(place / "burst") as url:
            context = multiprocessing.get_context("spawn")
            ranks = [
                context.Process(target=serve, args=(rank, options, place, url))
                for rank in range(options.ranks)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
        if any(process.exitcode for process in ranks):
            return 1
        texts = [(place / f"rank-{rank}.json").read_text() for rank in range(options.ranks)]
    for what, value in report([json.loads(text) for text in texts]).items():
        print(f"{what:42} {value:.3f}")
    if not drop_caches():
        print("page caches could not be dropped (that needs root): loads were warm")
    return 0


if __name__ == "__main__":  # Ranks that are spawned import this too.
    sys.exit(main())
