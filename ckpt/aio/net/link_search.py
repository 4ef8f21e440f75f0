"""A link whose other end is still to be found: each address that is tried has a link of its own,
and the first that proves itself hands its socket over (ckpt.protocol.finding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from ckpt.aio.clock import draw, now_us
from ckpt.aio.net.address import parse_server
from ckpt.base.errors import CkptError
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Ticked
from ckpt.protocol.finding import (
    KNOWN_MAX,
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
from ckpt.protocol.pulse import Pulse

_learned: Final[dict[str, tuple[str, ...]]] = {}
"""Where coordinators are that were given as that text, as any link of this process knows: who led
last first.
"""


class SharedRoster(Roster):
    """A roster that begins with what other links of this process have learned: a load has links of
    its own, and what it was given may be gone by then.
    """

    def __init__(self, text: str) -> None:
        """Raises Refused for what is no list of addresses."""
        super().__init__(parse_server(text, Role.COORDINATOR))
        self._text = text
        self._order = [*dict.fromkeys((*_learned.get(text, ()), *self._order))][:KNOWN_MAX]

    def _know(self, leader: str, named: tuple[str, ...]) -> None:
        super()._know(leader, named)
        _learned[self._text] = self.addresses


class _Addressed(Protocol):
    """A link."""

    address: str


Link = TypeVar("Link", bound=_Addressed)
AnyLink = TypeVar("AnyLink", bound=_Addressed, contravariant=True)


class Linking(Protocol[AnyLink]):
    """What keeps the links."""

    def close(self, link: AnyLink) -> None:
        """It tries no more; nothing follows."""

    def adopt(self, link: AnyLink, found: AnyLink, peer: Established, pulse: Pulse | None) -> None:
        """`found` has tried an address for it: from here on its socket is the link's. `pulse`:
        where another one may lead meanwhile.
        """

    def lose(self, link: AnyLink, error: CkptError) -> None:
        """None was found, or it must not be used."""


class LinkSearch(Generic[Link]):
    """I find whom one link talks to. Made and fed by who has the links; over when `is_over`."""

    def __init__(
        self,
        loop: Linking[Link],
        link: Link,
        roster: Roster,
        caller: Caller,
        reach: Callable[[str, Caller, LinkSearch[Link]], Link],
    ) -> None:
        """`reach` begins a link to one address, or raises."""
        self._loop = loop
        self._link = link
        self._roster = roster
        self._caller = caller
        self._reach = reach
        self._search = Search(roster, draw)
        #: address -> the link that tries it.
        self._tries: dict[str, Link] = {}

    @property
    def is_over(self) -> bool:
        """Whether the search has nothing more to do."""
        return self._search.is_over

    @property
    def wake_us(self) -> int | None:
        """When `tick` is due."""
        return self._search.wake_us

    def tick(self) -> None:
        """Note that time has passed, or that the search begins."""
        self._pursue(Ticked(now_us()))

    def failed(self, link: Link, error: CkptError) -> None:
        """Note that a link which tries has closed."""
        if self._tries.pop(link.address, None) is link:
            self._pursue(AddressFailed(now_us(), link.address, error))

    def proved(self, link: Link, peer: Established) -> None:
        """Note that a link which tries has reached the leader."""
        self._pursue(AddressProved(now_us(), link.address, peer))

    def close(self) -> None:
        """Stop trying."""
        tries, self._tries = self._tries, {}
        for link in tries.values():
            self._loop.close(link)

    def _pursue(self, event: SearchEvent) -> None:
        events: list[SearchEvent] = [event]
        while events:
            for action in self._search.handle(events.pop(0)):
                error = self._perform(action)
                if error is not None:
                    events.append(error)

    def _perform(self, action: SearchAction) -> AddressFailed | None:
        match action:
            case TryAddress(address):
                return self._try(address)
            case DropAddress(address):
                self._loop.close(self._tries.pop(address))
            case LeaderFound(address, peer):
                pulse = Pulse() if self._roster.may_pass_on(peer) else None
                self._loop.adopt(self._link, self._tries.pop(address), peer, pulse)
            case SearchFailed(error):
                self._loop.lose(self._link, error)
        return None

    def _try(self, address: str) -> AddressFailed | None:
        caller = self._roster.for_cluster(self._caller)
        try:
            self._tries[address] = self._reach(address, caller, self)
        except CkptError as error:
            return AddressFailed(now_us(), address, error)
        return None
