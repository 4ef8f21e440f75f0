"""Killed trainers: what was staged commits without them, and a run goes on with the same bits.

Agents and ranks start warm (tests/frameworks/warm.py); test_torch_examples.py has cold ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import ckpt
import ckpt_torch
from ckpt_client.demo.corpus import read_corpus
from tests.client.bits import bits_of
from tests.frameworks.clusters import local_cluster
from tests.frameworks.warm import Warm
from tests.landing import in_turn
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "torch_fsdp2.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
STEPS_PER_KILL = 3
STEPS_LEFT = 4
SIZES = "WIDTH, LAYERS, HEADS, BLOCK, BATCH = "
SMALL = "128, 2, 4, 16, 2"
"""As few as the example has, all of a rank's shards are below a MiB and travel in packs. What the
ranks of the example exchange in each step takes them six times as long.
"""
PATIENCE_S = 900.0

LEAVE = """
import os, signal, sys
import torch, ckpt_torch
torch.manual_seed(3)
state = {"w": torch.randn(20_000_000), "rank": "all"}
future = ckpt_torch.async_save(
    state, checkpoint_id=sys.argv[1], use_collectives=False, staging=sys.argv[2]
)
future.staged.wait()
print(future.done(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Five targets: one of them may die at any time."""
    with local_cluster(tmp_path_factory.mktemp("burst"), targets=5) as url:
        yield url


def under_torchrun(warm: Warm, agent: list[str], script: Path, line: list[str]) -> list[str]:
    """`torchrun AGENT SCRIPT LINE`, where the agent and each rank start warm."""
    return warm.command(TORCHRUN, *agent, "--no-python", *warm.command(script, *line))


@pytest.mark.parametrize("staging", in_turn(["copy", "overlap"], every=2))
def test_trainers_killed_between_save_and_commit_leave_a_committed_checkpoint(
    cluster: str, warm: Warm, tmp_path: Path, staging: str
) -> None:
    """So who must end, as at a preemption, waits for the staging alone."""
    script = tmp_path / "leave.py"
    script.write_text(LEAVE)
    trainers = [
        subprocess.Popen(
            warm.command(script, f"{cluster}/left-{staging}/5", staging),
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    committed = [trainer.communicate(timeout=400)[0].strip() for trainer in trainers]
    assert [trainer.returncode for trainer in trainers] == [-signal.SIGKILL] * 2
    assert "False" in committed, "the first to hand over was killed before the commit"
    with ckpt.open(cluster) as store:
        wait_until(
            lambda: store.latest(f"left-{staging}") == 5, "the stagers' commit", PATIENCE_S / 2
        )
        state: dict[str, object] = {"w": torch.zeros(20_000_000), "rank": ""}
        ckpt_torch.load(state, checkpoint_id=f"left-{staging}/5", store=store, no_dist=True)
    torch.manual_seed(3)
    assert torch.equal(state["w"], torch.randn(20_000_000))  # type: ignore[arg-type]


@dataclass
class Training:
    """A run of the example under the torchrun agent, followed by its log."""

    warm: Warm
    url: str
    script: Path
    run: str
    directory: Path
    ranks: int
    steps: int
    restarts: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        text = self.directory / "corpus.txt"
        text.write_bytes(read_corpus().tobytes())
        agent = [
            *["--standalone", "--nproc-per-node", str(self.ranks)],
            *["--max-restarts", str(self.restarts), "--monitor-interval", "0.2"],
        ]
        line = [
            *["--store", self.url, "--name", self.run, "--steps", str(self.steps)],
            *["--text", str(text), "--losses", str(self.log), "--pause", "0.05"],
        ]
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(
                under_torchrun(self.warm, agent, self.script, line),
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    # Else restarted ranks may be told the dead ones' gloo addresses.
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                },
            )

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"

    def lines(self) -> list[dict[str, object]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]

    def starts(self) -> list[dict[str, object]]:
        return [line for line in self.lines() if "pid" in line]

    def losses(self) -> dict[int, set[str]]:
        """Every value that any incarnation logged for a step."""
        found: dict[int, set[str]] = {}
        for line in self.lines():
            if "loss" in line:
                found.setdefault(int(str(line["step"])), set()).add(str(line["loss"]))
        return found

    def strike(self, chance: random.Random, incarnation: int, step: int) -> None:
        """Kill one rank of this incarnation once the run has reached the step."""
        wait_until(
            lambda: self._ended() or len(self.starts()) >= self.ranks * (incarnation + 1),
            f"incarnation {incarnation}",
            PATIENCE_S,
        )
        wait_until(lambda: self._ended() or self._reached(step), f"step {step}", PATIENCE_S)
        assert not self._ended(), self.output()
        pids = [int(str(line["pid"])) for line in self.starts()[-self.ranks :]]
        os.kill(chance.choice(pids), signal.SIGKILL)

    def _reached(self, step: int) -> bool:
        """In the newest incarnation."""
        lines = self.lines()
        begun = max(number for number, line in enumerate(lines) if "pid" in line)
        return any(int(str(line["step"])) >= step for line in lines[begun:] if "loss" in line)

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        return (self.directory / "output").read_text()[-6000:]

    def finish(self) -> None:
        try:
            assert self.process.wait(PATIENCE_S) == 0, self.output()
        finally:
            self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


def kill_a_target(url: str, chance: random.Random) -> None:
    """SIGKILL to one of the cluster's targets; its supervisor starts it again."""
    directory = Path(url.removeprefix("ckpt+local://"))
    supervisor = json.loads((directory / "ready.json").read_text())["pid"]
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    targets = []
    for pid in children:
        with suppress(OSError):
            if b"target" in Path(f"/proc/{pid}/cmdline").read_bytes():
                targets.append(int(pid))
    assert targets, "the supervisor has targets"
    os.kill(chance.choice(targets), signal.SIGKILL)


def example(folder: Path, sizes: str) -> Path:
    """The script, with a model of other sizes where there are any."""
    if not sizes:
        return EXAMPLE
    lines = EXAMPLE.read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith(SIZES)]
    lines[at] = SIZES + sizes
    script = folder / EXAMPLE.name
    script.write_text("\n".join(lines))
    return script


@pytest.mark.parametrize(
    ("kills", "ranks", "sizes"),
    [
        *in_turn([(1, 3, SMALL), (2, 3, SMALL)], every=2, first=1),
        pytest.param(20, 4, "", marks=[pytest.mark.slow, pytest.mark.timeout(3000)]),
    ],
    ids=["1", "2", "20"],
)
def test_a_gpt_that_is_killed_at_random_steps_learns_the_same_bits(
    cluster: str, warm: Warm, tmp_path: Path, kills: int, ranks: int, sizes: str
) -> None:
    """Few tensors of the model divide by three: shards of three ranks are of two sizes.

    Where test_gpu_tests.py kills ranks as well, one is killed once.
    """
    seed = int(os.environ.get("CKPT_SOAK_SEED", "11"))
    chance = random.Random(seed)
    steps = kills * STEPS_PER_KILL + STEPS_LEFT  # So the last kill meets a run that goes on.
    training = partial(Training, warm, cluster, example(tmp_path, sizes))
    calm = training(f"calm-{kills}", tmp_path / "calm", ranks, steps)
    calm.finish()
    reference = calm.losses()
    assert sorted(reference) == list(range(1, steps + 1))
    assert all(len(values) == 1 for values in reference.values())

    wild = training(f"wild-{kills}", tmp_path / "wild", ranks, steps, kills + 2)
    try:
        for number in range(kills):
            window = number * STEPS_PER_KILL
            wild.strike(chance, number, window + chance.randint(1, STEPS_PER_KILL))
            if number % 2 == (kills - 1) % 2:  # So one is when the last rank was.
                kill_a_target(cluster, chance)
        wild.finish()
    finally:
        wild.stop()
    assert len(wild.starts()) >= ranks * (kills + 1), f"seed {seed}"
    assert wild.losses() == reference, f"seed {seed}"
    with ckpt.open(cluster) as store:
        states = [
            store.load(f"{name}-{kills}", steps, whole=True, rank=0, world_size=ranks)
            for name in ("calm", "wild")
        ]
        assert bits_of(states[0]) == bits_of(states[1]), f"seed {seed}"
    if kills > 1:
        go_on_by_others(partial(training, f"wild-{kills}"), tmp_path, steps, reference)


def go_on_by_others(
    training: Callable[[Path, int, int], Training],
    folder: Path,
    steps: int,
    reference: dict[int, set[str]],
) -> None:
    """By two ranks, and then by three."""
    fewer = training(folder / "fewer", 2, steps + 2)
    fewer.finish()
    assert [line["start"] for line in fewer.starts()] == [steps] * 2
    (last,) = fewer.losses()[steps + 2]
    assert np.isfinite(float.fromhex(last))
    assert float.fromhex(last) < float.fromhex(next(iter(reference[1])))

    more = training(folder / "more", 3, steps + 3)
    more.finish()  # The third rank finds no random state of its own in what two have saved.
    assert [line["start"] for line in more.starts()] == [steps + 2] * 3
    assert list(more.losses()) == [steps + 3]
