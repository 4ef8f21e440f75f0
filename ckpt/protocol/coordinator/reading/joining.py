"""A process says which start of its run it belongs to: it is answered when a restart would find the
same launch, or, where the catalog has no room, when its ranks meet in it all the same.
"""

from __future__ import annotations

from ckpt.base.errors import NoSpace
from ckpt.base.ids import Rank
from ckpt.format.messages.hello import Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.protocol.coordinator.catalog import LaunchForgotten
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.reading.rounds import LaunchRounds
from ckpt.protocol.events import Session

_Asked = tuple[Session, int]


class Joining:
    """I answer JoinLaunch."""

    def __init__(self, desk: Desk, launches: Launches, rounds: LaunchRounds) -> None:
        self._desk = desk
        self._launches = launches
        self._rounds = rounds
        #: Who waits until what its launch needs is durable: the answer by the question, and whether
        #: it may have it before.
        self._waiting: dict[_Asked, tuple[LaunchJoined, bool]] = {}

    def join(self, session: Session, request: int, message: JoinLaunch, role: Role) -> None:
        """Raises NoSpace for a launch that only the catalog would hold together, while it is full;
        as `Launches.join`.
        """
        if not _is_one_launch(message):
            self._desk.check_room()
        launch, entries = self._launches.join(
            session, message, self._desk.now_us, from_stager=role is Role.STAGER
        )
        for entry in entries:
            if isinstance(entry, LaunchForgotten):
                self._rounds.launch_forgotten(entry.run, entry.launch)
        turn = self._rounds.next_turn(message.run, launch, message.rank)
        joined = LaunchJoined(
            launch.number, turn, references=True, by_number=True, guards=True, claims=True,
            counts=role is Role.STAGER and _is_first(launch, message.rank),
        )  # fmt: skip
        if not entries and not launch.unwritten:
            self._desk.send(session, request, joined)
            return
        asked = session, request

        def durable() -> None:
            launch.unwritten -= 1
            self._answer(asked)

        launch.unwritten += 1
        self._waiting[asked] = joined, _is_one_launch(message)
        self._desk.persist(entries, durable)
        if self._desk.full is not None:
            self._answer(asked)

    def full(self, error: NoSpace) -> None:
        """Answer all who wait: the catalog has no room."""
        for asked, (_, is_one) in list(self._waiting.items()):
            if is_one:
                self._answer(asked)
            else:
                del self._waiting[asked]
                self._desk.fail(*asked, error)

    def session_closed(self, session: Session) -> None:
        self._waiting = {asked: v for asked, v in self._waiting.items() if asked[0] != session}

    def _answer(self, asked: _Asked) -> None:
        found = self._waiting.pop(asked, None)
        if found is not None:
            self._desk.send(*asked, found[0])


def _is_first(launch: Launch, rank: Rank) -> bool:
    """Whether this stager's saves are all that the rank has done in this launch, or has missed."""
    if launch.counted is None or rank in launch.counted:
        return False
    launch.counted.add(rank)
    return True


def _is_one_launch(message: JoinLaunch) -> bool:
    """Whether its ranks meet in one launch also when a restart knows nothing of this one: by its
    key, by the number that they say, or since there is one rank alone.
    """
    return message.key is not None or message.launch is not None or message.world_size == 1
