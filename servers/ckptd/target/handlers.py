"""Who hears of a target's sessions before its shell does: of its own port, and of the coordinator
that it dials.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.aio.net.bulk import Bulk
from ckpt.base.errors import CkptError, Refused
from ckpt.format.messages import Message
from ckpt.protocol.events import Session
from ckpt.protocol.finding import MixedList
from ckpt.protocol.handshake import Established
from ckptd.target.shell import TargetShell


class Relay:
    """A handler that exists before the shell it hands on to; nothing arrives before the loop
    turns.
    """

    def __init__(self) -> None:
        self.shell: TargetShell | None = None

    def opened(self, session: Session, peer: Established) -> None:
        assert self.shell is not None
        self.shell.opened(session, peer)

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        assert self.shell is not None
        self.shell.received(session, request, message, bulk)

    def closed(self, session: Session, reason: str) -> None:
        assert self.shell is not None
        self.shell.closed(session, reason)


class CoordinatorHandler:
    """The dialer's view of the shell.

    I stop the daemon when it is refused before it was ever taken in: whoever started it named
    another cluster, or coordinators of two. One that is refused later goes on dialing: then the
    mistake is the coordinator's, whose catalog may be new, and what this target holds is needed to
    rebuild it.
    """

    def __init__(self, shell: TargetShell, stop: Callable[[], None]) -> None:
        self._shell = shell
        self._stop = stop
        self._was_in = False
        self._refusal: Refused | None = None
        self.received = shell.received
        self.closed = shell.closed

    def opened(self, session: Session, peer: Established) -> None:
        self._was_in = True
        self._shell.coordinator_opened(session, peer)

    def failed(self, error: CkptError) -> None:
        """An attempt or a session ended so."""
        if isinstance(error, MixedList) or (isinstance(error, Refused) and not self._was_in):
            self._refusal = error
            self._stop()
        else:
            self._shell.coordinator_log.failed(error)

    def check(self) -> None:
        """Raises Refused when that is what stopped the daemon."""
        if self._refusal is not None:
            raise Refused(
                f"the coordinator refuses this target: {self._refusal.message}",
                hint="give --coordinator of the cluster that this directory belongs to",
            )
