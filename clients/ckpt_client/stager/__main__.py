"""`python -m ckpt_client.stager FD --store URL --rank RANK/WORLD_SIZE`: started by the trainer,
which holds the other end of the socket. The words after FD are for people who list processes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.private import keep_private

NICE: Final = 10
"""A tenth of a trainer's share of the processor, where both want it: a rank that has staged must
slow neither ranks that still copy nor the training that goes on.
"""


def main() -> int:
    """Serve one trainer and its saves to their end; the exit code is 0 unless
    something unforeseen broke.
    """
    # The terminal's signals are meant for the trainer; its saves go on.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep_private()
    _step_back()
    trainer = socket.socket(fileno=int(sys.argv[1]))
    trainer.set_inheritable(False)

    from ckpt_client.stager.shell import serve

    serve(trainer)
    return 0


def _step_back() -> None:
    """Nicer than the trainer, also where the scheduler weighs whole sessions, as ours is one."""
    os.nice(NICE)
    with suppress(OSError):  # Not every kernel has groups of sessions.
        Path("/proc/self/autogroup").write_text(str(NICE))


if __name__ == "__main__":
    sys.exit(main())
