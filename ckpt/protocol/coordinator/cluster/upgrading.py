"""Is the upgrade to this version finished? Until it is no column moves, and no target leaves.

    open --FinishUpgrade, nobody here is older--> durable --> each live target keeps it --> finished

An earlier version reads and drops by the places of the index alone: what has moved since it takes
for strays. So moves begin when nobody speaks less, durably: in the catalog, which an earlier
version does not open any more, and on every target that takes part, which obeys none. A target that
comes later keeps it before it obeys. A catalog that this version has begun is finished at once.

Invariants: a move is made durable only while every live target has kept what is needed. What is
needed never falls; a target that has kept more than the catalog says teaches it that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.ids import TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.hello import MOVES_VERSION, PROTOCOL_VERSION, Role
from ckpt.format.messages.targets import KeepProtocol, ProtocolKept, RegisterTarget
from ckpt.format.messages.upgrading import FinishUpgrade, UpgradeNoted
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.coordinator.said import UpgradeFinished
from ckpt.protocol.events import Buffer, Session, SessionOpened

FINISH: Final = "ckpt upgrade finish"
NAMED_MAX: Final = 3
"""Most peers of a role that one sentence names."""
WORDS: Final = {Role.ADMIN: "command", Role.DRAIN: "worker"}
"""What people call a role, if that differs from its name."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One session's other end."""

    role: Role
    name: str
    version: int

    @property
    def kind(self) -> str:
        return WORDS.get(self.role, self.role.value)


class Upgrading:
    """I know who speaks what, and say when columns may move (`Desk.no_moves`)."""

    def __init__(self, desk: Desk, members: Membership, needs: int) -> None:
        """`needs`: what one has to speak, says the catalog."""
        desk.needs = needs
        self._desk = desk
        self._members = members
        self.colleagues: Callable[[], Mapping[str, int]] = dict
        """What the other coordinators of the cluster speak, by their ids. The shell sets it."""
        self.peers: dict[Session, Peer] = {}
        """Of every session."""
        self.spoke: dict[TargetId, int] = {}
        """What each target spoke when it registered last with this coordinator."""
        #: Live targets that were asked to keep it and have not.
        self._keeping: dict[TargetId, Session] = {}
        self._judge()

    @property
    def needs(self) -> int:
        """The version that is needed here, durably."""
        return self._desk.needs

    @property
    def is_finished(self) -> bool:
        return self._desk.needs >= MOVES_VERSION

    # ----------------------------------------------------------------------- who is here

    def opened(self, event: SessionOpened) -> None:
        """Somebody has proved itself; one who came as it was being finished is cut off."""
        self.peers[event.session] = peer = Peer(event.role, event.name, event.version)
        if event.version < PROTOCOL_VERSION:
            self._desk.speaks[event.session] = event.version
        self._cut(event.session, peer)

    def closed(self, session: Session) -> None:
        """It registers again, or nothing is asked of it."""
        self.peers.pop(session, None)
        self._desk.speaks.pop(session, None)
        keeping = {id: at for id, at in self._keeping.items() if at != session}
        if keeping != self._keeping:
            self._keeping = keeping
            self._judge()

    def registered(self, session: Session, message: RegisterTarget) -> None:
        """It obeys nobody before it has kept what one has to speak; and may know more than I do."""
        peer = self.peers.get(session)
        self.spoke[message.target] = PROTOCOL_VERSION if peer is None else peer.version
        # More than this version speaks nobody can have said to it.
        kept = min(message.protocol, PROTOCOL_VERSION)
        if kept > self._desk.needs:
            why = f"target {message.target} knows that it is"
            self._desk.report("warning", "the upgrade counts as finished", why=why)
            self._finish(kept, lambda: None)

    # ----------------------------------------------------------------------- finishing

    def finish(self, session: Session, request: int, message: FinishUpgrade) -> None:
        """Finish the upgrade; answered when that is durable. Raises Refused, which names the
        processes that stand against it.
        """
        against, away = tuple(self.against()), tuple(self.away())
        needs = max(self._desk.needs, PROTOCOL_VERSION)
        noted = UpgradeNoted(needs)
        if message.dry_run:
            self._desk.send(session, request, UpgradeNoted(needs, against, away))
        elif self._desk.needs >= PROTOCOL_VERSION:
            self._desk.send(session, request, noted)
        elif against:
            raise Refused(
                "; ".join(against), hint="upgrade these, or end them, then run the command again"
            )
        elif away and not message.force:
            raise Refused(
                "; ".join(away),
                hint="start them with this version; --force finishes all the same, and each has to"
                " be upgraded before it comes back",
            )
        else:
            self._desk.report("warning", "the upgrade is finished", protocol=needs)
            self._finish(needs, partial(self._desk.send, session, request, noted))

    def against(self) -> Iterator[str]:
        """The processes that are here and speak less than this coordinator does."""
        older: dict[tuple[str, int], list[str]] = {}
        for peer in self.peers.values():
            if peer.version < PROTOCOL_VERSION:
                older.setdefault((peer.kind, peer.version), []).append(peer.name)
        for id, version in self.colleagues().items():
            if version < PROTOCOL_VERSION:
                older.setdefault(("coordinator", version), []).append(id)
        for (kind, version), names in sorted(older.items()):
            named = ", ".join(sorted(names)[:NAMED_MAX])
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            yield f"{kind} {named}{more} speaks protocol {version}, not {PROTOCOL_VERSION}"

    def away(self) -> Iterator[str]:
        """Which targets are not here, and may come back as they were."""
        if self.is_finished:
            return
        for target in self._members.all():
            spoke = self.spoke.get(target.id)
            if target.session is None and spoke is None:
                yield f"target {target.id} is away, and what it speaks is not known"
            elif target.session is None and spoke is not None and spoke < PROTOCOL_VERSION:
                yield f"target {target.id} is away, and spoke protocol {spoke}"

    def _finish(self, needs: int, then: Then) -> None:
        def durable() -> None:
            self._desk.needs = max(self._desk.needs, needs)
            for session, peer in self.peers.items():
                self._cut(session, peer)
            self._ask_to_keep()
            self._judge()
            then()

        self._desk.persist((UpgradeFinished(needs),), durable)

    def _cut(self, session: Session, peer: Peer) -> None:
        """Close the session of a peer that speaks an older version than the cluster needs."""
        if peer.version < self._desk.needs:
            why = f"protocol {self._desk.needs} is needed, and it speaks {peer.version}"
            self._desk.close(session, why)

    def _ask_to_keep(self) -> None:
        for target in self._members.all():
            if target.session is not None:
                self._keeping[target.id] = session = target.session
                kept = partial(self._kept, target.id, session)
                self._desk.ask(session, KeepProtocol(self._members.term, self._desk.needs), kept)

    def _kept(self, id: TargetId, session: Session, answer: Message, _bulk: Buffer) -> None:
        if self._keeping.get(id) != session:
            return
        del self._keeping[id]
        if not isinstance(answer, ProtocolKept):
            # Until it can, it comes back and is held out.
            self._desk.close(session, f"target {id} does not keep what one has to speak")
        self._judge()

    def _judge(self) -> None:
        self._desk.no_moves = self._why_not()

    def _why_not(self) -> CkptError | None:
        if not self.is_finished:
            return Refused(
                "the upgrade of this cluster is not finished: nothing moves, and no target leaves",
                hint=f"upgrade whatever `ckpt upgrade status` names, then run: {FINISH}",
            )
        if self._keeping:
            waiting = ", ".join(sorted(self._keeping))
            return Unavailable(f"the upgrade was finished just now: {waiting} has not kept it yet")
        return None
