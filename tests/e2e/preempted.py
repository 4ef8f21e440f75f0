"""The training of docs/preemption.md as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.ranks import LAUNCHER_NAMES
from tests.pages import ROOT, examples

PAGE = ROOT / "docs" / "preemption.md"
WAIT_S = 60.0
NAMES = """
import os, threading
import numpy as np
import ckpt

steps, every, state, work = 1_000_000, 50, {"w": np.zeros(1 << 16)}, threading.Event()

def say(line):  # At once: ranks have one stdout.
    os.write(1, f"{line}\\n".encode())

def train_one_step(state):
    if state["w"][0] == int(os.environ.get("SPEAKS_AT", 20)):
        say("trains")
    state["w"] += 1
    work.wait(0.001)

"""

END = """
say(f"ended at {step} {state['w'][0]:.0f}")
"""


def write_script(folder: Path) -> Path:
    """The page's loop, with what its reader has."""
    ((loop, _),) = examples(PAGE, "loop")
    script = folder / "train.py"
    script.write_text(NAMES + loop + END)
    return script


def scripts(kind: str) -> str:
    """The page's batch script of that kind."""
    (found,) = re.findall(
        rf"<!-- slurm: {kind} -->\n```bash\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    return str(found)


def start(url: str, folder: Path, *line: str, **environ: str) -> subprocess.Popen[str]:
    """A command in that folder, with this Python's commands ahead of others."""
    clean = {name: v for name, v in os.environ.items() if name not in LAUNCHER_NAMES}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, text=True,
        env={**clean, "CKPT_STORE": url, "PATH": path, **environ},
    )  # fmt: skip


def wait_until_it_trains(process: subprocess.Popen[str], ranks: int = 1) -> None:
    """All its ranks do: a signal ends one that has no guard yet."""
    assert process.stdout is not None
    for _ in range(ranks):
        assert process.stdout.readline() == "trains\n"


def ends(process: subprocess.Popen[str], code: int = 0) -> list[int]:
    """The steps that its ranks have ended at, with the state of that step."""
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, out
    return steps_said(out)


def steps_said(out: str) -> list[int]:
    """The steps at which ranks with this output have ended, each with the state of its step."""
    found = re.findall(r"^ended at (\d+) (\d+)$", out, re.MULTILINE)
    assert all(step == state for step, state in found), out
    return [int(step) for step, _ in found]
