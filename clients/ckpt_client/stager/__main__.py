"""`python -m ckpt_client.stager FD`: started by the trainer,
which holds the other end of the socket.
"""

from __future__ import annotations

import signal
import socket
import sys


def main() -> int:
    """Serve one trainer and its saves to their end; the exit code is 0 unless
    something unforeseen broke.
    """
    # The terminal's signals are meant for the trainer; its saves go on.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    trainer = socket.socket(fileno=int(sys.argv[1]))
    trainer.set_inheritable(False)

    from ckpt_client.stager.shell import serve

    serve(trainer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
