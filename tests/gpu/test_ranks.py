"""Ranks on an accelerator that are killed at random steps: what they go on with has the same bits.

Two ranks share the accelerator, each with its part of a sharded state; and the example of FSDP2
runs on it with as many ranks as there are accelerators, up to four.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.finding import accelerator
from tests.waiting import wait_until

torch: Any = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
MODULE = "tests.gpu.rank"
RANK = ROOT.joinpath(*MODULE.split(".")).with_suffix(".py")
EXAMPLE = ROOT / "docs" / "examples" / "torch_fsdp2.py"
WAIT_S = 300.0
KILLS = 3
STEPS = 14
PAUSE_S = 0.3
"""After each step, so that a kill finds the job still at it."""


Torchrun = Callable[[list[str], Path, list[str]], list[str]]
"""`torchrun AGENT SCRIPT LINE`, as a command line."""


@pytest.fixture
def torchrun() -> Torchrun:
    """Ranks start as a user starts them."""

    def command(agent: list[str], script: Path, line: list[str]) -> list[str]:
        return [sys.executable, "-m", "torch.distributed.run", *agent, str(script), *line]

    return command


class Job:
    """Ranks of one script under torchrun, and what they noted."""

    def __init__(
        self, torchrun: Torchrun, directory: Path, script: Path, line: Sequence[str], ranks: int
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._ranks = ranks
        self._notes = directory / "notes.jsonl"
        self._output = directory / "output"
        flag = "--notes" if script == RANK else "--losses"
        agent = [
            *["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(2 * KILLS)],
            *["--monitor-interval", "0.2"],
        ]
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                torchrun(agent, script, [*line, flag, str(self._notes)]),
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                    # What cuBLAS needs to give the same bits each time.
                    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                },
            )

    def notes(self) -> list[dict[str, Any]]:
        if not self._notes.exists():
            return []
        return [json.loads(line) for line in self._notes.read_bytes().splitlines()]

    def values(self) -> dict[int, set[Any]]:
        """Each value that any start of the job noted for a step."""
        found: dict[int, set[Any]] = {}
        for note in self.notes():
            if "step" in note:
                found.setdefault(note["step"], set()).add(note.get("bits", note.get("loss")))
        return found

    def kill_one(self, chance: random.Random, before: int, step: int) -> None:
        """A rank of the newest start, once that has come to the step; before: starts until then."""
        starts = self._ranks * (before + 1)
        wait_until(lambda: self._ended() or self._at(starts, step), f"step {step}", WAIT_S)
        assert not self._ended(), self.output()
        pids = [note["pid"] for note in self.notes() if "pid" in note][-self._ranks :]
        with suppress(ProcessLookupError):  # It died of its peer's death.
            os.kill(chance.choice(pids), signal.SIGKILL)

    def _at(self, starts: int, step: int) -> bool:
        notes = self.notes()
        begun = [number for number, note in enumerate(notes) if "pid" in note]
        if len(begun) < starts:
            return False
        return any(note.get("step", 0) >= step for note in notes[begun[-1] :])

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def output(self) -> str:
        return self._output.read_text()[-6000:]

    def finish(self) -> None:
        assert self._process.wait(WAIT_S) == 0, self.output()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended():
            self._process.terminate()
            self._process.wait(WAIT_S)


def killed_and_calm(
    torchrun: Torchrun, url: str, directory: Path, script: Path, options: Sequence[str],
    ranks: int, seed: int,
) -> tuple[dict[int, set[Any]], dict[int, set[Any]]]:  # fmt: skip
    """What a job that was killed KILLS times noted, and what one noted that nobody touched."""
    chance = random.Random(seed)

    def line(name: str, pause_s: float) -> list[str]:
        place = ["--store", url, "--name", name, "--steps", str(STEPS)]
        return [*options, *place, "--pause", str(pause_s)]

    name = f"seed{seed}"
    with Job(torchrun, directory / "calm", script, line(f"calm-{name}", 0), ranks) as calm:
        calm.finish()
    with Job(torchrun, directory / "wild", script, line(f"wild-{name}", PAUSE_S), ranks) as wild:
        for number in range(KILLS):
            wild.kill_one(chance, number, number * 4 + chance.randint(1, 4))
        wild.finish()
        starts = [note["start"] for note in wild.notes() if "start" in note]
    assert len(starts) >= ranks * (KILLS + 1)
    assert starts[-1] > 0, "the last start went on, and did not begin again"
    return wild.values(), calm.values()


def test_ranks_that_share_an_accelerator_go_on_with_the_same_bits(
    torchrun: Torchrun, url: str, tmp_path: Path
) -> None:
    options = ["--device", accelerator() or "cpu"]
    wild, calm = killed_and_calm(torchrun, url, tmp_path, RANK, options, ranks=2, seed=5)
    assert sorted(calm) == list(range(1, STEPS + 1))
    assert all(len(values) == 1 for values in calm.values())
    assert wild == calm
    # One rank reads what two have saved.
    line = [*options, "--store", url, "--name", "calm-seed5", "--steps", str(STEPS + 2)]
    with Job(torchrun, tmp_path / "alone", RANK, line, 1) as alone:
        alone.finish()
    assert [note["start"] for note in alone.notes() if "start" in note] == [STEPS]
    assert sorted(alone.values()) == [STEPS + 1, STEPS + 2]


def test_fsdp2_on_accelerators_learns_the_same_bits(
    torchrun: Torchrun, url: str, tmp_path: Path
) -> None:
    text = tmp_path / "corpus.txt"
    text.write_bytes(EXAMPLE.read_bytes())
    options = ["--text", str(text)]
    ranks = min(4, torch.accelerator.device_count())
    wild, calm = killed_and_calm(torchrun, url, tmp_path, EXAMPLE, options, ranks, seed=6)
    assert sorted(calm) == list(range(1, STEPS + 1))
    assert all(len(values) == 1 for values in calm.values())
    assert wild == calm
