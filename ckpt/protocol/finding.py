"""Which of several addresses leads the cluster's coordinators, and which one is tried when.

    WAITING --its turn--> TRYING --proved itself--> found: all others are let go
       ^                    |
       |                    +--failed--> FAILED --all have failed--> the search has failed
       +------ it rested, and another one may still answer ----+

Turns: the one that led last comes first. The next one's turn comes as soon as the one before has
failed, or has been silent for STAGGER_US: so an address at which nothing ever answers costs that,
and not its timeout. Source: RFC 8305 ("Happy Eyeballs"), section 5, whose delay is 250 ms and may
be from 10 ms to 2 s.

A standby says who leads (`Elsewhere`): that one is tried at once, whether it is in the list or not.
No address is tried twice for that, so two that name each other lead nowhere. While an address is
silent, those that have failed are asked again after a rest: a standby may lead by then.

What was found stays in the Roster, for as long as its owner lives: the next search begins there,
and goes on to whom that one named, in its handshake or since, so that coordinators which were
replaced are followed.

A list may only name one cluster's. Whoever proves to be of another one than a member of the list
that was met earlier ends the search by name, and so does what a standby says that is asked for the
known cluster. Once in a Roster's life the members of the list that the leader did not name are
asked for that (CHECKING), aside: the session stands meanwhile. A list that is found wrong until
then is of no use any more; later, an address may have gone to another cluster, and the others are
still good.

Invariants:
- At most one address is found, and it is found once.
- An address is tried by one connection at a time.
- A search ends if each connection does, within its owner's timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ckpt.base.errors import CkptError, Refused, Unauthorized, Unavailable
from ckpt.base.rests import Draw, Rests
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import CoordinatorsNamed
from ckpt.protocol.events import Ticked
from ckpt.protocol.handshake import Caller, Elsewhere, Established, OtherCluster

LISTED_MAX: Final = 16
"""Addresses that a person may list."""
KNOWN_MAX: Final = 32
"""Most addresses that are known, including those that a leader names."""
REDIRECTS_MAX: Final = 4
"""Most addresses in one search that are known only because standbys name them."""
STAGGER_US: Final = 200_000
REST_S: Final = (0.1, 0.5)
"""First and longest rest before an address that has failed is asked again."""

assert LISTED_MAX < KNOWN_MAX, "who listed many still learns of others"


@dataclass(frozen=True, slots=True)
class AddressFailed:
    """A connection that was being made has ended so."""

    now_us: int
    address: str
    error: CkptError


@dataclass(frozen=True, slots=True)
class AddressProved:
    """A connection's other end has proved itself as a coordinator that leads."""

    now_us: int
    address: str
    peer: Established


SearchEvent = Ticked | AddressFailed | AddressProved


@dataclass(frozen=True, slots=True)
class TryAddress:
    """Begin a connection; AddressFailed or AddressProved follows, unless it is dropped."""

    address: str


@dataclass(frozen=True, slots=True)
class DropAddress:
    """End that connection."""

    address: str


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """This connection is the one."""

    address: str
    peer: Established


@dataclass(frozen=True, slots=True)
class SearchFailed:
    """None is; or, after LeaderFound, that one must not be used."""

    error: CkptError


SearchAction = TryAddress | DropAddress | LeaderFound | SearchFailed


class MixedList(Refused):
    """A person listed coordinators of two clusters: the list is of no use."""


class Roster:
    """Where a cluster's coordinators are, as far as one who dials them knows."""

    def __init__(self, listed: tuple[str, ...]) -> None:
        assert 0 < len(listed) <= LISTED_MAX
        assert len(set(listed)) == len(listed)
        self.is_checked = len(listed) == 1
        """No member of the list was of another cluster, as far as could be seen."""
        self.refusal: MixedList | None = None
        """The list is of no use."""
        self._listed = listed
        #: All that are known: who led last first, who failed last at the end.
        self._order = list(listed)
        #: address -> the cluster that it proved to be of, or said so.
        self._clusters: dict[str, str] = {}
        #: The cluster that was found last.
        self._cluster = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """In the order in which they are to be tried."""
        return tuple(self._order)

    def may_pass_on(self, peer: Established) -> bool:
        """Another one may lead after this leader, which knows of such things."""
        return len(self._order) > 1 and bool(peer.coordinators)

    def is_listed(self, address: str) -> bool:
        """A person named it."""
        return address in self._listed

    def for_cluster(self, caller: Caller) -> Caller:
        """The caller that wants the known cluster: then a standby also says of which one it is."""
        wants = len(self._order) > 1 and not caller.cluster
        return replace(caller, cluster=self._cluster) if wants else caller

    def unnamed_by(self, leader: str, peer: Established) -> list[str]:
        """Listed addresses that the leader does not name: they may be of another cluster."""
        named = (leader, *peer.coordinators)
        return [address for address in self._listed if address not in named]

    def failed(self, address: str) -> None:
        """The address does not answer: try it last."""
        if address in self._order:
            self._order.remove(address)
            self._order.append(address)

    def met(self, address: str, cluster: str) -> Refused | None:
        """Note the cluster of the coordinator at `address`.

        Returns the error to raise when another address of the list is of another cluster.
        """
        for other, known in self._clusters.items():
            if other != address and known != cluster:
                return self._contradiction(other, known, address, cluster)
        self._clusters[address] = cluster
        return None

    def _contradiction(self, other: str, known: str, address: str, cluster: str) -> Refused:
        text = f"{other} is a coordinator of cluster {known}, {address} is one of {cluster}"
        hint = "name the coordinators of one cluster only"
        if self.is_checked or not self.is_listed(address):
            return Refused(text, hint=hint)
        self.refusal = MixedList(text, hint=hint)
        return self.refusal

    def led_by(self, leader: str, peer: Established) -> None:
        """`leader` leads; `peer` names all coordinators that it knows."""
        self._cluster = peer.cluster
        self._know(leader, peer.coordinators)

    def heard(self, message: Message) -> bool:
        """Who leads said this in its session: whether it was for me."""
        if not isinstance(message, CoordinatorsNamed):
            return False
        self._know(self._order[0], message.addresses)
        return True

    def _know(self, leader: str, named: tuple[str, ...]) -> None:
        known = (leader, *self._order, *named)
        kept = {leader, *self._listed, *named}
        self._order = [one for one in dict.fromkeys(known) if one in kept][:KNOWN_MAX]
        self._clusters = {one: of for one, of in self._clusters.items() if one in kept}


class _State(Enum):
    """Of an address in one search."""

    WAITING = "waiting"
    TRYING = "trying"
    FAILED = "failed"


@dataclass(slots=True)
class _Candidate:
    """An address in one search."""

    state: _State = _State.WAITING
    error: CkptError | None = None
    """Why it failed last."""
    again_us: int = 0
    """When it may be asked again, having failed."""


class _Phase(Enum):
    """Of a search."""

    SEARCHING = "searching"
    CHECKING = "checking"
    """Found; members of the list are asked for their cluster."""
    OVER = "over"


class Search:
    """One search for whom to talk to. See the module. Begin me with Ticked."""

    def __init__(self, roster: Roster, draw: Draw) -> None:
        self._roster = roster
        self._rests = Rests(*REST_S, draw)
        self._phase = _Phase.SEARCHING
        #: In the order of their turns.
        self._candidates = {address: _Candidate() for address in roster.addresses}
        #: Whom a standby has just named.
        self._urgent: list[str] = []
        self._redirects = 0
        #: When the last turn was.
        self._turn_us: int | None = None

    @property
    def is_over(self) -> bool:
        """Nothing more follows from any event."""
        return self._phase is _Phase.OVER

    @property
    def wake_us(self) -> int | None:
        """When Ticked is due; None: nothing comes by time alone."""
        if self._phase is not _Phase.SEARCHING:
            return None
        times = []
        if self._turn_us is not None and self._those(_State.WAITING):
            times.append(self._turn_us + STAGGER_US)
        if self._is_one_silent:
            times += [one.again_us for one in self._those(_State.FAILED).values()]
        return min(times, default=None)

    def handle(self, event: SearchEvent) -> list[SearchAction]:
        """What is to be done now. What comes of a connection that was dropped changes nothing."""
        match event:
            case Ticked() if self._roster.refusal is not None and not self.is_over:
                return self._end(self._roster.refusal)
            case Ticked(now_us):
                return self._go_on(now_us)
            case AddressFailed(now_us, address, error) if self._is_tried(address):
                return self._fail(now_us, address, error)
            case AddressProved(now_us, address, peer) if self._is_tried(address):
                return self._prove(now_us, address, peer)
        return []

    # ----------------------------------------------------------------------- what came

    def _fail(self, now_us: int, address: str, error: CkptError) -> list[SearchAction]:
        candidate = self._candidates[address]
        candidate.state, candidate.error = _State.FAILED, error
        candidate.again_us = now_us + int(self._rests.next_s() * US_PER_S)
        self._roster.failed(address)
        if isinstance(error, OtherCluster) and self._roster.is_listed(address):
            refusal = self._roster.met(address, error.cluster)
            if refusal is not None:
                return self._end(refusal)
        if isinstance(error, Elsewhere):
            self._follow(error.leader)
        return self._go_on(now_us)

    def _prove(self, now_us: int, address: str, peer: Established) -> list[SearchAction]:
        refusal = self._roster.met(address, peer.cluster)
        if refusal is None:
            return self._find(address, peer)
        self._roster.failed(address)
        if self._roster.is_listed(address):
            return self._end(refusal)
        return [DropAddress(address), *self._fail(now_us, address, refusal)]

    def _find(self, address: str, peer: Established) -> list[SearchAction]:
        """It is the one; or, when that is known, one more of the same cluster."""
        candidate = self._candidates[address]
        candidate.state = _State.FAILED
        if self._phase is _Phase.CHECKING:
            return [DropAddress(address), *self._checked()]
        self._roster.led_by(address, peer)
        dropped = self._drop_all()
        return [*dropped, LeaderFound(address, peer), *self._check(address, peer)]

    def _follow(self, leader: str) -> None:
        """A standby named who leads."""
        known = self._candidates.get(leader)
        if known is None and self._redirects < REDIRECTS_MAX:
            self._redirects += 1
            known = self._candidates[leader] = _Candidate()
        if known is not None and known.error is None and known.state is _State.WAITING:
            self._urgent.append(leader)

    # ----------------------------------------------------------------------- what follows

    def _go_on(self, now_us: int) -> list[SearchAction]:
        match self._phase:
            case _Phase.SEARCHING:
                actions = self._turns(now_us)
                return actions if self._those(_State.TRYING) else self._end(self._why())
            case _Phase.CHECKING:
                return self._checked()
            case _Phase.OVER:
                return []

    def _turns(self, now_us: int) -> list[SearchAction]:
        named, self._urgent = self._urgent, []
        chosen = list(dict.fromkeys(named)) or self._next(now_us)
        if chosen:
            self._turn_us = now_us
        if self._is_one_silent:
            rested = self._those(_State.FAILED).items()
            chosen += [address for address, one in rested if one.again_us <= now_us]
        return [self._try(address) for address in chosen]

    def _next(self, now_us: int) -> list[str]:
        """Whose turn it is, among those that were not tried yet."""
        began_us = self._turn_us
        if began_us is not None and self._is_one_silent and now_us < began_us + STAGGER_US:
            return []
        return list(self._those(_State.WAITING))[:1]

    def _try(self, address: str) -> TryAddress:
        self._candidates[address].state = _State.TRYING
        return TryAddress(address)

    def _check(self, leader: str, peer: Established) -> list[SearchAction]:
        """Once, whether the list names another cluster's."""
        doubtful = [] if self._roster.is_checked else self._roster.unnamed_by(leader, peer)
        self._phase = _Phase.CHECKING
        return [self._try(address) for address in doubtful] or self._checked()

    def _checked(self) -> list[SearchAction]:
        if not self._those(_State.TRYING):
            self._roster.is_checked, self._phase = True, _Phase.OVER
        return []

    def _end(self, error: CkptError) -> list[SearchAction]:
        self._phase = _Phase.OVER
        return [*self._drop_all(), SearchFailed(error)]

    def _drop_all(self) -> list[SearchAction]:
        tried = list(self._those(_State.TRYING))
        for address in tried:
            self._candidates[address].state = _State.FAILED
        return [DropAddress(address) for address in tried]

    # ----------------------------------------------------------------------- what is so

    @property
    def _is_one_silent(self) -> bool:
        """One that has not failed yet may still answer."""
        return any(one.error is None for one in self._those(_State.TRYING).values())

    def _is_tried(self, address: str) -> bool:
        one = self._candidates.get(address)
        return one is not None and one.state is _State.TRYING

    def _those(self, state: _State) -> dict[str, _Candidate]:
        return {address: one for address, one in self._candidates.items() if one.state is state}

    def _why(self) -> CkptError:
        """One address: its own error. Final only if that of all is: another one may lead yet."""
        found = self._candidates.items()
        failed = sorted((where, one.error) for where, one in found if one.error is not None)
        errors = [error for _, error in failed]
        if len(errors) == 1:
            return errors[0]
        kind: type[CkptError] = Unavailable
        if all(isinstance(error, Refused | Unauthorized) for error in errors):
            kind = Unauthorized if isinstance(errors[0], Unauthorized) else Refused
        text = "; ".join(_with_address(address, error) for address, error in failed)
        hint = next((error.hint for error in errors if error.hint), "")
        return kind(f"no coordinator can be used: {text}", hint=hint)


def _with_address(address: str, error: CkptError) -> str:
    return error.message if address in error.message else f"{address}: {error.message}"
