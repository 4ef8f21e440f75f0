"""The dialing side of a daemon: one session to one server, kept up.

    resting --backoff is over--> searching --one proved itself--> open
       ^                             |                              |
       +--------- all failed --------+--------- gone, cut off ------+

The server is a target at one address, or the coordinator, of which there may be several: which one
leads is searched for (ckpt.protocol.finding), and what was learned of them stays with the dialer.

The rest between two attempts doubles from `backoff_s[0]` to `backoff_s[1]`, each with jitter, so
that all targets of a cluster do not come back in one instant; a session that stood for longer than
that resets it. A server that refuses us may ask for a longer one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from ckpt.aio.clock import draw, now_us
from ckpt.aio.net.address import parse_server
from ckpt.aio.net.approach import Approach
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import Channel, SessionHandler
from ckpt.aio.net.send_queue import Sent
from ckpt.aio.net.serving.watch import Watch
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import Epoch
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Ping, Pong
from ckpt.protocol.events import Buffer, Session, Ticked
from ckpt.protocol.finding import (
    AddressFailed,
    AddressProved,
    DropAddress,
    LeaderFound,
    Roster,
    Search,
    SearchAction,
    SearchEvent,
    SearchFailed,
    TryAddress,
)
from ckpt.protocol.handshake import Caller, Established
from ckpt.protocol.pulse import Beat, Pulse

QUEUED_BYTES_MAX: Final = 64 * MiB
BACKOFF_S: Final = (0.05, 0.5)
"""First and longest rest between two attempts: another coordinator may lead by then."""
REST_S_MAX: Final = 60.0
"""Longest one that a server may ask for."""
_FEEL_S: Final = 0.25
"""Pause between two looks at the pulse of a session."""
OnFailure = Callable[[CkptError], None]


class Dialer:
    """I keep one session to the server at `address` up and tell the handler of it, as servers do.

    Bulks lie in memory of their own. Every method belongs to the loop's thread.
    """

    def __init__(
        self,
        handler: SessionHandler,
        caller: Caller,
        *,
        address: str,
        backoff_s: tuple[float, float] = BACKOFF_S,
        unchecked: frozenset[type] = frozenset(),
        on_failure: OnFailure | None = None,
    ) -> None:
        """`address`: of coordinators, commas part them. `on_failure` hears of each attempt and each
        session that failed, before the rest.
        """
        self.epoch = Epoch(0)
        """Goes out with every frame; the owner sets it."""
        caller.check()
        self._handler = handler
        self._roster = Roster(parse_server(address, caller.server_role))
        self._caller = caller
        self._backoff_s = backoff_s
        #: What the server that was cut off last has asked for.
        self._retry_after_s = 0.0
        self._unchecked = unchecked
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._search: Search | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: address -> the connection that is being made to it.
        self._approaches: dict[str, Approach] = {}
        #: Tasks of all that began in this attempt: they are awaited at its end.
        self._tasks: set[asyncio.Task[None]] = set()
        #: The one that proved itself.
        self._found: Approach | None = None
        #: Of a coordinator that is one of several.
        self._pulse: Pulse | None = None
        self._ended: asyncio.Future[CkptError] | None = None

    def start(self) -> None:
        """Dial, and dial again, until `close`."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="ckpt-dial")

    @property
    def session(self) -> Session | None:
        """The session that stands now."""
        return None if self._watch is None else self._watch.channel.session

    def send(
        self,
        session: Session,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        sent: Sent | None = None,
    ) -> None:
        """As `Server.send`: dropped silently when `session` is gone;
        a bulk stays as it is until `sent`.
        """
        watch = self._watch
        if watch is None or watch.channel.closed or self.session != session:
            if sent is not None:
                sent()
            return
        watch.channel.send(request, message, bulk, epoch=self.epoch, sent=sent)
        if self._pulse is not None:
            self._pulse.asked(now_us())
        if watch.channel.queued_bytes > QUEUED_BYTES_MAX:
            self._fail(Unavailable("the peer does not read what is sent to it"))
        else:
            watch.update()

    def queued_bytes(self, session: Session) -> int:
        """What the peer has not taken yet; 0 when the session is gone."""
        return (
            0
            if self._watch is None or self.session != session
            else self._watch.channel.queued_bytes
        )

    def close_session(self, session: Session, reason: str, *, retry_after_s: float = 0.0) -> None:
        """Cut the server off and dial again; after about so long, if that is later than usual."""
        if self._watch is not None and self.session == session:
            self._retry_after_s = min(retry_after_s, REST_S_MAX)
            self._fail(Unavailable(reason))

    async def close(self) -> None:
        """End the session and dial no more; `closed` was called when this returns."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # ----------------------------------------------------------------------- the approaches' owner

    def proved(self, address: str, peer: Established) -> None:
        """An approach calls this."""
        self._pursue(AddressProved(now_us(), address, peer))

    def failed(self, address: str, error: CkptError) -> None:
        """An approach calls this, also when it was taken."""
        if self._approaches.pop(address, None) is None:
            self._fail(error)
        else:
            self._pursue(AddressFailed(now_us(), address, error))

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """An approach that was taken calls this."""
        if self._pulse is not None:
            self._pulse.heard(now_us())
        if isinstance(message, Pong) or self._roster.heard(message):
            return
        self._handler.received(channel.session, request, message, bulk)

    # ----------------------------------------------------------------------- dialing

    async def _keep_up(self) -> None:
        rests = Rests(*self._backoff_s, draw)
        while True:
            begun_us = now_us()
            error = await self._attempt()
            if self._on_failure is not None:
                self._on_failure(error)
            if now_us() - begun_us > self._backoff_s[1] * US_PER_S:
                rests.begin_again()
            await asyncio.sleep(rests.next_s(at_least_s=self._retry_after_s))
            self._retry_after_s = 0.0

    async def _attempt(self) -> CkptError:
        """A search, and the session that it found, from its beginning to its end: why it ended."""
        self._ended = asyncio.get_running_loop().create_future()
        self._search = Search(self._roster, draw)
        try:
            self._pursue(Ticked(now_us()))
            return await self._ended
        finally:
            await self._end()

    def _pursue(self, event: SearchEvent) -> None:
        search = self._search
        if search is None:
            return
        for action in search.handle(event):
            self._perform(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if search.wake_us is not None:
            rest_s = max(0, search.wake_us - now_us()) / US_PER_S
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(rest_s, lambda: self._pursue(Ticked(now_us())))

    def _perform(self, action: SearchAction) -> None:
        match action:
            case TryAddress(address):
                caller = self._roster.for_cluster(self._caller)
                approach = Approach(address, caller, self, self._unchecked)
                self._approaches[address] = approach
                self._tasks.add(approach.task)
                approach.task.add_done_callback(self._tasks.discard)
            case DropAddress(address):
                self._approaches.pop(address).close()
            case LeaderFound(address, peer):
                found = self._found = self._approaches.pop(address)
                assert found.watch is not None
                if self._roster.may_pass_on(peer):
                    self._pulse = Pulse()
                    self._feel(found)
                self._handler.opened(found.watch.channel.session, peer)
            case SearchFailed(error):
                self._fail(error)

    def _feel(self, found: Approach) -> None:
        """Now and then while its session stands."""
        watch = found.watch
        if self._found is not found or self._pulse is None or watch is None:
            return
        match self._pulse.beat(now_us()):
            case Beat.PING:
                self.send(watch.channel.session, 0, Ping())
            case Beat.GIVE_UP:
                self._fail(Unavailable("the coordinator is silent"))
                return
            case Beat.NOTHING:
                # The usual case; the next look is below.
                watch.update()
        asyncio.get_running_loop().call_later(_FEEL_S, self._feel, found)

    @property
    def _watch(self) -> Watch | None:
        """Of the session."""
        return None if self._found is None else self._found.watch

    def _fail(self, error: CkptError) -> None:
        """The session is over, or none was found; what remains is done by `_attempt`."""
        if self._found is not None:
            self._found.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(error)

    async def _end(self) -> None:
        found, ended = self._found, self._ended
        self._search = self._found = self._ended = self._pulse = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for approach in self._approaches.values():
            approach.close()
        self._approaches.clear()
        if found is not None and found.watch is not None:
            found.close()
            reason = "we closed it"
            if ended is not None and ended.done() and not ended.cancelled():
                reason = ended.result().message
            self._handler.closed(found.watch.channel.session, reason)
        await asyncio.gather(*self._tasks, return_exceptions=True)
