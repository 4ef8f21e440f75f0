"""`python -m ckpt_client.stager FD --store URL --rank RANK/WORLD_SIZE`: started by the trainer,
which holds the other end of the socket. The words after FD are for people who list processes.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.collector import end_uncollected
from ckpt.aio.descriptors import raise_limit
from ckpt.aio.private import keep_private
from ckpt.base.errors import Aborted
from ckpt_client.stager.signals import hold_signals

NICE: Final = 10
"""A tenth of a trainer's share of the processor, where both want it: a rank that has staged must
slow neither ranks that still copy nor the training that goes on.
"""


def main() -> int:
    """Serve one trainer and its saves to their end. The exit code is that of Aborted when a save
    was given up of whose end nothing was heard: the log names it.
    """
    hold_signals()
    end_uncollected()
    keep_private()
    raise_limit()  # It may have a connection to each target of a large cluster.
    _step_back()
    trainer = socket.socket(fileno=int(sys.argv[1]))
    trainer.set_inheritable(False)

    from ckpt_client.stager.shell import serve

    return Aborted.exit_code if serve(trainer) else 0


def _step_back() -> None:
    """Nicer than the trainer, also where the scheduler weighs whole sessions, as ours is one."""
    os.nice(NICE)
    with suppress(OSError):  # Not every kernel has groups of sessions.
        Path("/proc/self/autogroup").write_text(str(NICE))


if __name__ == "__main__":
    sys.exit(main())
