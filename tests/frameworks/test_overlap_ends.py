"""A process that ends with a save that overlaps nothing any more: it stays until the device's bytes
are staged, and no longer. The stager, which outlives it, commits the step.

A copy stands at the device's gate. It is let through once the main thread is seen to wait for it at
the interpreter's end, so nothing here depends on how long anything takes.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import torch

import ckpt
import ckpt_torch
from tests.e2e.preempted import start
from tests.frameworks.device.emulated import Emulated
from tests.frameworks.warm import Warm
from tests.pages import ROOT
from tests.waiting import wait_until

WAIT_S = 60.0
ELEMENTS = 1 << 20
ENDED = "ended, staged: True"
SCRIPT = """
import atexit, os, signal, sys, threading
from pathlib import Path

root, library, run, how, count = sys.argv[1:]
sys.path.insert(0, root)
import torch
import ckpt_torch
from tests.frameworks.device.emulated import NAME, Fault, loaded
from tests.waiting import wait_until

def say(line):
    os.write(1, f"{line}\\n".encode())

def is_at_the_end():  # The main thread waits for threads that have work.
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code.co_name != "_python_exit":
        frame = frame.f_back
    return frame is not None

def open_the_gate():
    if how == "lost":
        device.fail(Fault.DEVICE)
    gate.__exit__(None, None, None)

def let_through():
    wait_until(is_at_the_end, "the main thread waits")
    say(f"waits, staged: {save.staged.done}")
    open_the_gate()

os.dup2(1, 2)  # What is raised as it ends is said as well.
device = loaded(Path(library))
attached = device.attached()
attached.__enter__()
state = {"w": torch.arange(int(count), dtype=torch.float32).to(NAME)}
torch.accelerator.synchronize()
gate = device.held_link()
gate.__enter__()
save = ckpt_torch.async_save(state, checkpoint_id=f"{run}/1", staging="overlap", no_dist=True)
device.wait_held()
atexit.register(lambda: say(f"ended, staged: {save.staged.done}"))
if how == "killed":
    open_the_gate()
    save.staged.wait()
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=let_through, daemon=True).start()
if how == "signal":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say("trains")
    threading.Event().wait()
sys.exit(5)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    found = tmp_path / "ends.py"
    found.write_text(SCRIPT)
    return found


def begin(
    cluster: str, emulated: Emulated, warm: Warm, script: Path, how: str
) -> subprocess.Popen[str]:
    run = f"ends-{how}"
    line = warm.command(script, str(ROOT), str(emulated.library), run, how, str(ELEMENTS))
    return start(cluster, script.parent, *line)


def said(process: subprocess.Popen[str]) -> list[str]:
    """What it says until it has ended."""
    try:
        return process.communicate(timeout=WAIT_S)[0].splitlines()
    finally:
        process.kill()


def check_commits(cluster: str, run: str) -> None:
    with ckpt.open(cluster) as store:
        wait_until(lambda: store.latest(run) == 1, f"{run}@1 is committed", WAIT_S)
        found = {"w": torch.zeros(ELEMENTS)}
        ckpt_torch.load(found, checkpoint_id=f"{run}/1", store=store, no_dist=True)
    assert torch.equal(found["w"], torch.arange(ELEMENTS, dtype=torch.float32))


def test_an_exit_right_after_the_call_waits_for_staging(
    cluster: str, emulated: Emulated, warm: Warm, script: Path
) -> None:
    process = begin(cluster, emulated, warm, script, "exit")
    assert said(process) == ["waits, staged: False", ENDED]
    assert process.returncode == 5
    check_commits(cluster, "ends-exit")


def test_a_signal_that_ends_the_trainer_waits_for_staging(
    cluster: str, emulated: Emulated, warm: Warm, script: Path
) -> None:
    process = begin(cluster, emulated, warm, script, "signal")
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    process.send_signal(signal.SIGTERM)
    assert said(process) == ["waits, staged: False", ENDED]
    assert process.returncode == 143
    check_commits(cluster, "ends-signal")


def test_who_is_killed_after_staging_has_saved_the_step(
    cluster: str, emulated: Emulated, warm: Warm, script: Path
) -> None:
    process = begin(cluster, emulated, warm, script, "killed")
    assert said(process) == []
    assert process.returncode == -signal.SIGKILL
    check_commits(cluster, "ends-killed")


def test_a_device_that_is_lost_as_the_process_ends_aborts_the_step_by_name(
    cluster: str, emulated: Emulated, warm: Warm, script: Path
) -> None:
    process = begin(cluster, emulated, warm, script, "lost")
    waits, *rest = said(process)
    assert waits == "waits, staged: False"
    assert ENDED in rest
    text = "\n".join(rest)
    assert "Aborted: the device emulated:0 failed: emulated device: the device is lost" in text
    assert process.returncode == 5
    with ckpt.open(cluster) as store:
        assert store.latest("ends-lost") is None
