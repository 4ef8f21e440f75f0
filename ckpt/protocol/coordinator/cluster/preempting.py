"""Who hears that a rank's process is to end: the guards of its launch, in their own sessions."""

from __future__ import annotations

from ckpt.base.ids import LaunchNumber, Rank, RunName, check_step
from ckpt.format.messages.preempting import GuardStanding
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.events import Session


class Preempting:
    """I pass what guards say to their launch, and its answers to them."""

    def __init__(self, desk: Desk, launches: Launches) -> None:
        self._desk = desk
        self._launches = launches
        #: session -> the guards that speak there: one process may be several ranks.
        self._speaking: dict[Session, set[tuple[RunName, LaunchNumber, Rank]]] = {}

    def heard(self, session: Session, standing: GuardStanding) -> None:
        """Of a process that has not joined the launch as that rank, or not any more, nothing.
        Raises Refused for what is no step.
        """
        for step in (standing.reached, standing.stop, standing.saves):
            if step is not None:
                check_step(step)
        launch = self._launches.get(standing.run, standing.launch)
        member = launch.members.get(standing.rank) if launch is not None else None
        if launch is None or member is None or session not in member.sessions:
            return
        seat = (standing.run, standing.launch, standing.rank)
        self._speaking.setdefault(session, set()).add(seat)
        for to, message in launch.guards.heard(session, standing):
            self._desk.send(to, 0, message)

    def session_closed(self, session: Session) -> None:
        """Note that guards of this session come back in another one, or that their processes have
        ended.
        """
        for run, number, rank in sorted(self._speaking.pop(session, ())):
            launch = self._launches.get(run, number)
            if launch is not None:
                launch.guards.gone(session, rank)
