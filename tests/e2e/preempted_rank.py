"""A rank that trains until somebody asks it to end: `python -m tests.e2e.preempted_rank RUN`.

It says that it trains at step 20, and at its end the step that it has saved.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np

import ckpt
from tests.warm_start import start_warm


def train(run: str, rank: int, every: int) -> None:
    """Saves each `every` steps, and at the end."""
    state = {"a": np.arange(1 << 18) + rank}
    work = threading.Event()
    with ckpt.open(launch=run) as store, store.preemption(run, grace_s=60.0) as guard:
        for step in range(1_000_000):
            last = guard.should_save(step)
            state["a"][0] = step
            if last or step % every == every - 1:
                save = store.save(run, step, state)
                if rank == 0 and "SIGNAL_AMID" in os.environ:
                    os.kill(os.getpid(), signal.SIGTERM)  # It is handed over, not committed.
            if last:
                save.wait()
                say(f"saved {step} {guard.step} {guard.fits}")
                break
            if step == 20:
                say("trains")
            work.wait(0.001 * (1 + rank))  # Ranks are at different steps.


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    start_warm()
    train(sys.argv[1], int(os.environ["RANK"]), int(os.environ.get("EVERY", "1000000")))
