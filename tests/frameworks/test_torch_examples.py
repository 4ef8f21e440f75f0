"""Every script of docs/examples, run as its first lines say: without a break and with one.

At one of two landings it goes on to the same bits where it was interrupted, at the other it trains
and saves. At one of three, its run without a break is the command as a user types it. Other runs
start warm: the same script in a process of its own, without seconds of imports.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.clikit import run
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
ALONE = [
    ("jax_fit.py", 2, 6),
    ("lightning_fit.py", 3, 6),
    ("torch_checkpointing_fit.py", 3, 6),
    ("transformers_trainer.py", 4, 8),
]
"""After which step it is interrupted, and its last one."""
SHARDED = [("lightning_fit.py", ("--sharded", "--devices", "2")), ("torch_dcp.py", ())]
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


@pytest.mark.parametrize(("script", "stop", "end"), in_turn(ALONE, every=2))
def test_an_interrupted_run_learns_the_same_bits(
    cluster: str, warm: Warm, script: str, stop: int, end: int
) -> None:
    name = script.removesuffix(".py")
    calm = run_example(script, cluster, f"{name}/calm", end, warm=first_start(script, warm))
    first = run_example(script, cluster, f"{name}/broken", stop, warm=warm)
    second = run_example(script, cluster, f"{name}/broken", end, warm=warm)
    assert (calm[:2], first[:2]) == (("None", str(end)), ("None", str(stop)))
    assert second == (str(stop), str(end), calm[2])


@pytest.mark.parametrize(("script", "stop", "_end"), in_turn(ALONE, every=2, first=1))
def test_a_run_trains_and_saves(
    cluster: str, warm: Warm, script: str, stop: int, _end: int
) -> None:
    name = f"{script.removesuffix('.py')}/short"
    found = run_example(script, cluster, name, stop, warm=first_start(script, warm))
    assert found[:2] == ("None", str(stop))
    assert saved_steps(cluster, name)[-1:] == [stop]


@pytest.mark.parametrize(("script", "more"), in_turn(SHARDED, every=2, first=1))
def test_a_sharded_run_trains_and_saves(
    cluster: str, warm: Warm, script: str, more: tuple[str, ...]
) -> None:
    name = f"{script.removesuffix('.py')}/sharded-short"
    start = warm if more else first_start(script, warm)
    found = run_example(script, cluster, name, 3, *more, ranks=2, warm=start)
    assert found[:2] == ("None", "3")
    assert saved_steps(cluster, name)[-1:] == [3]


def saved_steps(cluster: str, name: str) -> list[int]:
    """Of all runs below that name."""
    listed = run("ls", "--json", "--store", cluster).document()["steps"]
    return sorted(each["step"] for each in listed if f"{each['run']}/".startswith(f"{name}/"))


@pytest.mark.parametrize(("script", "more"), in_turn(SHARDED, every=2))
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


@at_turn(1, every=2)
def test_accelerate_trains_and_saves(cluster: str, warm: Warm, tmp_path: Path) -> None:
    start = first_start("accelerate_fit.py", warm)
    folder = ("--folder", str(tmp_path / "short"))
    found = run_example("accelerate_fit.py", cluster, "accelerate/short", 3, *folder, warm=start)
    assert found[:2] == ("None", "3")
    assert saved_steps(cluster, "accelerate/short")[-1:] == [3]


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
