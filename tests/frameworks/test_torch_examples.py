"""Every script of docs/examples, run as its first lines say: without a break and with one.

Each has its turn at one of two landings; the adapters that they use are tested at each. Within it,
at one of three, its run without a break is the command as a user types it. Other runs start warm:
the same script in a process of its own, without seconds of imports.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.test_torch_restarts import TORCHRUN, under_torchrun
from tests.frameworks.warm import Warm
from tests.landing import at_turn, has_turn, in_turn

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RUN_TIMEOUT_S = 280.0
TURNS = {
    "lightning_fit.py": 0,
    "nvrx_local.py": 0,
    "accelerate_fit.py": 1,
    "jax_fit.py": 1,
    "torch_checkpointing_fit.py": 1,
    "torch_dcp.py": 2,
    "transformers_trainer.py": 2,
}
"""At which of three landings it starts cold. torch_dcp.py does under torchrun, which
test_preemption.py starts cold at each."""
REPORT = re.compile(r"from (\S+) to (\d+): (\S+)$", re.MULTILINE)


def run_example(
    script: str,
    cluster: str,
    name: str,
    steps: int,
    *more: str,
    ranks: int = 0,
    warm: Warm | None = None,
) -> tuple[str, ...]:
    """(step it went on from, last step, what was learnt)."""
    line = [*["--store", cluster, "--name", name, "--steps", str(steps)], *more]
    path = EXAMPLES / script
    if warm is not None:
        agent = ["--standalone", "--nproc-per-node", str(ranks)]
        alone = warm.jax_command if script == "jax_fit.py" else warm.command
        command = under_torchrun(warm, agent, path, line) if ranks else alone(path, *line)
    else:
        torchrun = [str(TORCHRUN), "--standalone", "--nproc-per-node", str(ranks)]
        command = [*(torchrun if ranks else [sys.executable]), str(path), *line]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (report,) = REPORT.findall(done.stdout)
    return tuple(report)


def first_start(script: str, warm: Warm | None) -> Warm | None:
    """None: cold."""
    return None if script in TURNS and has_turn(TURNS[script], every=3) else warm


@pytest.mark.parametrize(
    ("script", "stop", "end"),
    in_turn(
        [
            ("jax_fit.py", 2, 6),
            ("lightning_fit.py", 3, 6),
            ("torch_checkpointing_fit.py", 3, 6),
            ("transformers_trainer.py", 4, 8),
        ],
        every=2,
    ),
)
def test_an_interrupted_run_learns_the_same_bits(
    cluster: str, warm: Warm, script: str, stop: int, end: int
) -> None:
    name = script.removesuffix(".py")
    calm = run_example(script, cluster, f"{name}/calm", end, warm=first_start(script, warm))
    first = run_example(script, cluster, f"{name}/broken", stop, warm=warm)
    second = run_example(script, cluster, f"{name}/broken", end, warm=warm)
    assert (calm[:2], first[:2]) == (("None", str(end)), ("None", str(stop)))
    assert second == (str(stop), str(end), calm[2])


@pytest.mark.parametrize(
    ("script", "more"),
    in_turn([("lightning_fit.py", ("--sharded", "--devices", "2")), ("torch_dcp.py", ())], every=2),
)
def test_a_sharded_run_goes_on_where_it_was_interrupted(
    cluster: str, warm: Warm, script: str, more: tuple[str, ...]
) -> None:
    name = f"{script.removesuffix('.py')}/sharded"
    start = warm if more else first_start(script, warm)
    calm = run_example(script, cluster, f"{name}/calm", 6, *more, ranks=2, warm=start)
    first = run_example(script, cluster, f"{name}/broken", 3, *more, ranks=2, warm=warm)
    second = run_example(script, cluster, f"{name}/broken", 6, *more, ranks=2, warm=warm)
    assert (calm[:2], first[:2]) == (("None", "6"), ("None", "3"))
    assert second == ("3", "6", calm[2])


@at_turn(0, every=2)
def test_accelerate_goes_on_with_its_weights_from_the_store(
    cluster: str, warm: Warm, tmp_path: Path
) -> None:
    script, folder = "accelerate_fit.py", "--folder"
    whole = folder, str(tmp_path / "calm")
    start = first_start(script, warm)
    calm = run_example(script, cluster, "accelerate/calm", 6, *whole, warm=start)
    broken = folder, str(tmp_path / "broken")
    first = run_example(script, cluster, "accelerate/broken", 3, *broken, warm=warm)
    second = run_example(script, cluster, "accelerate/broken", 6, *broken, warm=warm)
    assert (calm[:2], first[:2]) == (("None", "6"), ("None", "3"))
    assert second == ("3", "6", calm[2])


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in tests] == []
