"""`ckptbench gpu`: what a save costs a training on an accelerator."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckpt.base.errors import CkptError
from ckpt.base.extras import needing
from ckpt.base.units import format_bytes, parse_bytes
from ckpt.erasure.code import Code
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.gpu.plan import CPU_WIDTH, GPU_WIDTH, LAYERS, GpuFigures, GpuPlan, usual_width
from ckptbench.gpu.progress import say
from ckptbench.report.gpu_text import gpu_text
from ckptbench.roofline import describe_machine

NONE = "NO ACCELERATOR: nothing was measured; --device=cpu measures the host's memory instead"


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 as well where there is no accelerator, which is said."""
    parser = argparse.ArgumentParser(
        prog="ckptbench gpu",
        description="Saves of tensors on an accelerator, one rank: how long training stands still, "
        "bandwidth beside a plain copy's, steps with and without saves, a load. Targets check what "
        "they are sent and drop it, so that no disk is measured.",
    )
    parser.add_argument(
        "--device", default="", metavar="NAME", help="as torch names it [the accelerator]"
    )
    parser.add_argument(
        "--size", type=parse_bytes, default="1Gi", metavar="BYTES", help="of the state [1Gi]"
    )
    parser.add_argument("--loops", type=int, default=5, metavar="COUNT", help="that count [5]")
    parser.add_argument(
        "--width", type=int, metavar="COUNT",
        help=f"of the training's layers [{GPU_WIDTH}, on a CPU {CPU_WIDTH}]",
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for what DCP writes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    device = options.device or _accelerator()
    if not device:
        print(NONE, file=sys.stderr)
        return 0
    width = options.width or usual_width(device)
    with tempfile.TemporaryDirectory(prefix="ckptbench-", dir=options.directory) as name:
        found = _measured(GpuPlan(device, name, options.size, loops=options.loops, width=width))
    machine = describe_machine()
    document = msgspec.json.encode({"machine": machine, "figures": found})
    print(msgspec.json.format(document).decode() if options.json else gpu_text(found, machine))
    return 0


def _accelerator() -> str:
    """torch's, empty when there is none. Raises Refused without torch."""
    say("torch is asked for an accelerator")
    with needing("ckpt_torch"):
        import torch
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "" if found is None else f"{found.type}:0"


def _measured(plan: GpuPlan) -> GpuFigures:
    say(
        f"{plan.device}: a state of {format_bytes(plan.size)}, a training of {LAYERS} layers of "
        f"width {plan.width}, 1 + {plan.loops} rounds of each; targets are started, then torch"
    )
    cluster = ClusterPlan(Code(4, 2), 6, discard=True, tcp=False, directory=Path(plan.directory))
    with BenchCluster(cluster) as running:
        line = [sys.executable, "-m", "ckptbench.gpu.measure", msgspec.json.encode(plan).decode()]
        process = subprocess.run(
            [*line, running.url, str(running.keep_file)],
            env=running.environment, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
    if process.returncode:
        raise why_ended(process.returncode)
    return msgspec.json.decode(process.stdout, type=GpuFigures)


def why_ended(status: int) -> CkptError:
    """What ended a measurement, by its process's status, which is not 0."""
    if status > 0:
        return CkptError("the measurement ended with an error, which stands above")
    hint = "the kernel ends what takes more memory than there is: try a smaller --size"
    name = signal.Signals(-status).name
    return CkptError(f"the measurement was ended by {name}", hint=hint if name == "SIGKILL" else "")
