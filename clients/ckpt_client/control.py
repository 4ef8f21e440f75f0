"""Blocking conversation with the coordinator: one connection for the life of a store,
found again when it moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ckpt.aio.clock import now_us
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.secret import read_secret
from ckpt.base.errors import (
    Busy,
    PeerError,
    Refused,
    Unauthorized,
    Unavailable,
    error_from_wire,
)
from ckpt.base.ids import LaunchNumber, Rank, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import AttemptAborted
from ckpt.format.messages.versions import of_version
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt.protocol.events import Buffer
from ckpt.protocol.handshake import Caller, Established
from ckpt_client.environment import process_name
from ckpt_client.local.cluster import revive
from ckpt_client.locate import Locator, client_name
from ckpt_client.wait_notice import WaitNotice

Reply = TypeVar("Reply")
Seat = tuple[RunName, Rank, int]
_steps_decoder = msgspec.json.Decoder(list[StepView])
CALL_TIMEOUT_S = 30.0
REJOIN_REQUEST: Final = 1 << 31
"""The first request number: above all that RpcClient counts, below those of the coordinator's own
questions.
"""


class Listener(Protocol):
    """Hears the coordinator. Called on the session's thread: must not wait or ask anything."""

    def joined(self, launch: LaunchNumber) -> None:
        """In a new session my seat has joined its launch again."""

    def heard(self, message: Message) -> None:
        """The coordinator has said this unasked."""


class Control:
    """I am thread safe.

    Every question may be asked twice on the wire; all of them are idempotent.
    """

    def __init__(
        self,
        locator: Locator,
        secret_file: Path,
        launch_key: str | None,
        role: Role = Role.READER,
    ) -> None:
        """`role`: a command is ADMIN, whom a daemon in need still hears."""
        self._role = role
        self.locator = locator
        #: Errors name it.
        self._secret_file = secret_file
        self.secret = read_secret(secret_file)
        self.launch_key = launch_key
        #: Guards `_rpc`.
        self._lock = threading.Lock()
        self._rpc: RpcClient | None = None
        #: What earlier joins answered. The session's thread sends it again in each new session, so
        #: that a restarted coordinator adopts it. The turn is that of the next resolution, which a
        #: restarted coordinator may not know.
        self._launches: dict[Seat, LaunchJoined] = {}
        #: When each of these launches was joined first; has the same seats.
        self._came_us: dict[Seat, int] = {}
        #: Seats that only load, with the key of their launch; None without one.
        self._readers: dict[Seat, str | None] = {}
        #: Who hears what the coordinator says unasked, and of each new session; by their seats. The
        #: session's thread goes through a copy.
        self._listeners: dict[Seat, Listener] = {}
        #: Seats that join again in the present session, by request; of the session's thread alone.
        self._rejoining: dict[int, Seat] = {}

    @property
    def cluster(self) -> str:
        """The cluster's id, once a question was answered."""
        peer = self._connection().peer
        if peer is None:
            self.ask("status")
            peer = self._connection().peer
        return peer.cluster if peer is not None else ""

    @property
    def server(self) -> str:
        """HOST:PORT of the coordinator that answered, once a question was answered."""
        return self._connection().server

    @property
    def trouble(self) -> str:
        """Why there is no session; empty while there is one, and until a try has failed."""
        return self._connection().trouble

    @property
    def protocol(self) -> int:
        """The version that both sides speak, once a question was answered; 0 without a session."""
        peer = self._connection().peer
        return peer.version if peer is not None else 0

    def call(
        self,
        message: Message,
        reply: type[Reply],
        bulk: Buffer = b"",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        look: Callable[[], None] | None = None,
    ) -> tuple[Reply, memoryview]:
        """The reply of the expected type, and its bulk.

        look: called now and then while nobody can be reached; by default a local cluster that was
            killed is started again.

        Raises what the coordinator reported, or Unavailable.
        """
        look = look or self._revive
        connection = self._connection()
        try:
            answer, answer_bulk = connection.call(message, bulk, timeout_s=timeout_s, look=look)
        except Unauthorized as error:
            where, file = self.locator.address(), self._secret_file
            hint = f"{error.hint}; this one's secret is in {file}" if error.hint else ""
            if hint and self.locator.directory:
                again = f"`ckpt local stop {self.locator.directory} && ckpt ls`"
                hint = f"{hint}; if another was put there, {again} serves with it"
            raise Unauthorized(f"{where}: {error.message}", hint=hint) from None
        except Refused as error:
            if not isinstance(message, Ask):
                raise
            raise of_version(error, message.what, self.protocol) from None
        if isinstance(answer, AttemptAborted):
            after_us = answer.retry_after_us
            after_s = None if after_us is None else after_us / US_PER_S
            raise error_from_wire(answer.code, answer.message, answer.hint, after_s)
        if not isinstance(answer, reply):
            raise PeerError(f"the coordinator answered with a {type(answer).__name__}")
        return answer, answer_bulk

    def ask(
        self,
        what: str,
        run: RunName | None = None,
        step: Step | None = None,
        *,
        look: Callable[[], None] | None = None,
    ) -> bytes:
        """The JSON that answers a question of people and tools. `look`, raises: as `call`."""
        _, bulk = self.call(Ask(what, run, step), Answer, look=look)
        return bytes(bulk)

    def last_duration_s(self, run: RunName, timeout_s: float) -> float | None:
        """How many seconds the run's newest commit took, from the save's call on; None when it has
        none. Raises as `call`.
        """
        _, bulk = self.call(Ask("steps", run), Answer, timeout_s=timeout_s)
        views = [view for view in _steps_decoder.decode(bulk) if view.state == "committed"]
        newest = max(views, key=lambda view: view.committed_at_s, default=None)
        return None if newest is None else newest.stall_s + newest.commit_s

    def unanswered(self, waited_s: float) -> Unavailable:
        """Why nobody has answered for so long."""
        return self._connection().unanswered(waited_s)

    def _join_again(self, _peer: Established) -> None:
        """A new session: the ranks that joined over the old one are still here."""
        rpc = self._rpc
        self._rejoining.clear()
        for seat in list(self._launches):
            if rpc is not None:
                request = REJOIN_REQUEST + len(self._rejoining)
                self._rejoining[request] = seat
                rpc.tell(self._joining(seat), request=request)

    def _pushed(self, request: int, message: Message, _bulk: Buffer) -> None:
        seat = self._rejoining.pop(request, None)
        if seat is None:
            for listener in list(self._listeners.values()):
                listener.heard(message)
        elif isinstance(message, LaunchJoined) and message.guards and seat in self._listeners:
            self._listeners[seat].joined(message.launch)

    def listen(self, seat: Seat, listener: Listener) -> bool:
        """Let the listener hear from now on; the seat has joined on return. False when the run has
        a listener already.
        """
        if any(run == seat[0] for run, _, _ in self._listeners):
            return False
        self._listeners[seat] = listener
        return True

    def forget(self, listener: Listener) -> None:
        """The listener hears nothing more."""
        self._listeners = {seat: one for seat, one in self._listeners.items() if one != listener}

    def tell(self, message: Message) -> None:
        """Send a message that is not answered; dropped while there is no session. Raises
        CkptError.
        """
        self._connection().tell(message)

    def join(self, run: RunName, rank: Rank, world_size: int) -> LaunchJoined:
        """The launch of this rank, and the turn of its next resolution. Joining begins nothing."""
        seat = (run, rank, world_size)
        self._readers.pop(seat, None)
        return self._joined(seat)

    def join_to_read(self, run: RunName, rank: Rank, world_size: int) -> LaunchJoined | None:
        """The launch whose ranks load the same generation of a step that this one asks for by its
        number. Holds no rank of a launch with a key: this may be a helper of the process that does.

        None when nobody loads with this rank, or the coordinator knows only of "newest".
        """
        seat = (run, rank, world_size)
        if world_size == 1:
            return None
        if seat not in self._launches:
            self._readers[seat] = self.launch_key
        try:
            joined = self._joined(seat)
        except Busy:  # A coordinator that does not know who only reads.
            return None
        except Refused:
            if self.launch_key is None:
                raise
            # A part of the launch's ranks, which load together: a launch of their own.
            self._readers[seat] = f"{self.launch_key} {world_size}"
            joined = self._joined(seat)
        return joined if joined.by_number else None

    def _joined(self, seat: Seat) -> LaunchJoined:
        known = self._launches.get(seat)
        address = self._connection().address
        waiting = WaitNotice(f"a rank of {seat[0]} waits for the coordinator at {address}")

        def look() -> None:
            self._revive()
            waiting.say(self.trouble)

        joined, _ = self.call(self._joining(seat), LaunchJoined, look=look)
        if known is None:
            self._came_us[seat] = now_us()
        else:
            joined = replace(joined, turn=max(joined.turn, known.turn))
        self._launches[seat] = joined
        return joined

    def _joining(self, seat: Seat) -> JoinLaunch:
        """As a rank of the launch that was joined before, and since when, or of a new one."""
        run, rank, world_size = seat
        known = self._launches.get(seat)
        reads = seat in self._readers
        key = self._readers[seat] if reads else self.launch_key
        if known is None:
            return JoinLaunch(run, key, rank, world_size, process_name(), reads=reads)
        came_ago_us = now_us() - self._came_us[seat]
        return JoinLaunch(
            run, key, rank, world_size, process_name(), known.launch, came_ago_us, reads=reads
        )

    def resolved(self, run: RunName, rank: Rank, world_size: int, turn: int) -> None:
        """Note that this turn's resolution was used; all of them count as one before the rank's
        first save.
        """
        seat = (run, rank, world_size)
        if turn:
            self._launches[seat] = replace(self._launches[seat], turn=turn + 1)

    def find(self) -> str:
        """Where the coordinator is now, as `Locator.address`, for a session that is to last: a
        local cluster that was killed is started again, which may take its time.
        """
        self._revive()
        return self.locator.address()

    def close(self) -> None:
        with self._lock:
            rpc, self._rpc = self._rpc, None
        if rpc is not None:
            rpc.close()

    def _connection(self) -> RpcClient:
        # A local cluster that somebody has stopped is not waited for.
        address = self.locator.address()
        with self._lock:
            if self._rpc is not None and not self._rpc.is_intact:
                self._rpc.close()
                self._rpc = None
            if self._rpc is None:
                self._rpc = RpcClient(
                    address,
                    Caller(self.secret, self._role, client_name()),
                    on_push=self._pushed,
                    on_opened=self._join_again,
                    locate=self.locator.address,
                )
            return self._rpc

    def _revive(self) -> None:
        """A local cluster that was killed while somebody waits for its answer."""
        if self.locator.directory:
            revive(Path(self.locator.directory))
