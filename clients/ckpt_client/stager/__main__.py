"""`python -m ckpt_client.stager FD --store URL --rank RANK/WORLD_SIZE`: started by the trainer,
which holds the other end of the socket. The words after FD are for people who list processes.
"""

from __future__ import annotations

import socket
import sys

from ckpt.aio.collector import end_uncollected
from ckpt.aio.descriptors import raise_limit
from ckpt.aio.private import keep_private
from ckpt.base.errors import Aborted
from ckpt_client.stager.signals import hold_signals


def main() -> int:
    """Serve one trainer and its saves to their end. The exit code is that of Aborted when a save
    was given up of whose end nothing was heard: the log names it.
    """
    hold_signals()
    end_uncollected()
    keep_private()
    raise_limit()  # It may have a connection to each target of a large cluster.
    trainer = socket.socket(fileno=int(sys.argv[1]))
    trainer.set_inheritable(False)

    from ckpt_client.stager.shell import serve

    return Aborted.exit_code if serve(trainer) else 0


if __name__ == "__main__":
    sys.exit(main())
