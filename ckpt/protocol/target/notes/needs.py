"""What does one have to speak here? What a coordinator says once counts for ever.

    1 --TargetRegistered(protocol), KeepProtocol--> durable --> older peers are cut off, and no
                                                                older coordinator is obeyed

A column that has moved here is a stray for a coordinator of an earlier version, which has it
dropped. Such a one may come with a copy of the catalog from before: then the targets are the ones
who know (docs/decisions/0041).
"""

from __future__ import annotations

from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION, Role
from ckpt.format.messages.targets import KeepProtocol, ProtocolKept
from ckpt.protocol.events import CloseSession, Session, SessionOpened
from ckpt.protocol.target.core import Core, Step
from ckpt.protocol.target.disk_events import DiskFailed
from ckpt.protocol.target.space import Reservations
from ckpt.protocol.target.term import protocol_steps, remove_steps


class Needs:
    """I know it, keep it, and cut off who speaks less."""

    def __init__(self, core: Core, reservations: Reservations) -> None:
        self.version = OLDEST_VERSION
        """What is durable here."""
        self._core = core
        self._reservations = reservations
        #: Open sessions whose peers speak less than this version does.
        self._older: dict[Session, int] = {}
        self._reported = 0  # Of a coordinator that was cut off: that is said once.

    def opened(self, peer: SessionOpened) -> bool:
        """False when it is cut off."""
        if peer.version < PROTOCOL_VERSION:
            self._older[peer.session] = peer.version
        self._cut()
        well = peer.version >= self.version
        if not well and peer.role is Role.COORDINATOR and self._reported != peer.version:
            self._reported = peer.version
            why = f"it speaks protocol {peer.version}, and {self.version} is needed here"
            remedy = "upgrade it, or start the one that leads this cluster"
            self._core.report("error", "older coordinator", why=why, remedy=remedy)
        return well

    def closed(self, session: Session) -> None:
        self._older.pop(session, None)

    def steps(self, version: int, aside: str) -> list[Step]:
        """How that becomes durable; none where it is."""
        version = min(version, PROTOCOL_VERSION)
        return protocol_steps(version, aside) if version > self.version else []

    def kept(self, version: int) -> None:
        """It is durable, or was found at the start."""
        # More than this version speaks nobody can mean.
        self.version = max(self.version, min(version, PROTOCOL_VERSION))
        self._cut()

    def keep(self, session: Session, request: int, message: KeepProtocol) -> None:
        """Answered when it is durable."""
        aside = self._reservations.new_file("protocol")

        def written(failure: DiskFailed | None) -> None:
            if failure is not None:
                self._core.chain(remove_steps(aside), lambda _: None)
                self._core.fail(session, request, "unavailable", failure.errno_name)
                return
            self._core.send(session, request, ProtocolKept())
            self.kept(message.protocol)

        version = max(self.version, min(message.protocol, PROTOCOL_VERSION))
        self._core.chain(protocol_steps(version, aside), written)

    def _cut(self) -> None:
        for session, version in list(self._older.items()):
            if version < self.version:
                del self._older[session]
                why = f"protocol {self.version} is needed here, and the peer speaks {version}"
                self._core.out.append(CloseSession(session, why))
