"""A worker's process is asked to end by a signal, whichever of its threads takes it."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from ckpt.aio.secret import make_secret
from tests.waiting import WAIT_S, wait_until
from tests.warm_child import start_daemon

NOBODY = "127.0.0.1:1"


def sleeps(pid: int) -> bool:
    """Its main thread."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(") ")[2]
    return fields.startswith("S")


def send_to_thread(pid: int, thread: int, number: signal.Signals) -> None:
    assert ctypes.CDLL(None).tgkill(pid, thread, number) == 0


def test_a_drain_ends_by_a_signal_that_its_main_thread_has_slept_through(tmp_path: Path) -> None:
    """As one does that comes when Python has looked for signals and has not begun to wait."""
    secret = tmp_path / "secret"
    make_secret(secret)
    words = [
        "drain", "--to", f"file://{tmp_path}/store", "--coordinator", NOBODY,
        "--secret-file", str(secret),
    ]  # fmt: skip
    drain = start_daemon(words, stderr=2)
    assert drain.stdout is not None
    with drain.stdout:
        try:
            assert drain.stdout.readline().startswith(b'{"ready":')
            wait_until(lambda: sleeps(drain.pid), "it waits for its end")
            others = {int(name) for name in os.listdir(f"/proc/{drain.pid}/task")} - {drain.pid}
            send_to_thread(drain.pid, max(others), signal.SIGTERM)
            assert drain.wait(WAIT_S) == 0
        finally:
            drain.kill()
