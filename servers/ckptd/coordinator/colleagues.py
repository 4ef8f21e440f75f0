"""What is asked about the coordinators themselves: who runs, who leads; and that another one lead.

The roll is looked at now and then while I lead: peers hear of it, and `ckpt status` does when there
is nobody else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from time import time
from typing import Final, Protocol

import msgspec

from ckpt.aio.net.bulk import Bulk
from ckpt.base.errors import CkptError, NoSpace, NotFound, Refused, Unavailable
from ckpt.base.shell_words import quoted
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask, StepDown, SteppedDown
from ckpt.format.messages.hello import Failed
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import check
from ckpt.protocol.coordinator.reading.coordinator_answers import (
    CatalogMember,
    CoordinatorRow,
    CoordinatorsView,
)
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import FencedSpace
from ckptd.catalog.etcd.roll import Coordinator, Roll
from ckptd.catalog.etcd.url import mending_command
from ckptd.coordinator.disagreements import other_codes, out_of_reach
from ckptd.coordinator.front import Front
from ckptd.coordinator.metrics import leading_families
from ckptd.coordinator.reception import COORDINATORS
from ckptd.http.exposition import Family
from ckptd.log import Reporter

ASK_S: Final = 2.0
"""Patience with the roll; etcd may not answer."""
STANDING: Final = "standing"
"""The question of the leader to standbys, in the session that it holds."""
STANDING_S: Final = 0.5
"""Patience with their answers."""
SLOW_S: Final = 0.2


class CopyState(msgspec.Struct, frozen=True):
    """What a standby says of itself."""

    id: str
    revision: int
    """All changes up to it are in its copy; 0: it has none."""


class Term(Protocol):
    """What can be known and asked of the term that this process leads."""

    @property
    def number(self) -> int:
        """0 while another one leads."""

    @property
    def leads_since_s(self) -> float:
        """By the wall clock."""

    @property
    def takeovers(self) -> int:
        """Terms of this process so far."""

    @property
    def full(self) -> NoSpace | None:
        """Why my catalog takes nothing more, or I cannot lead."""

    @property
    def silence(self) -> str:
        """Why etcd does not answer; empty while it does."""

    @property
    def missing(self) -> str:
        """Why there is no catalog to lead; empty while there is."""

    def step_down(self) -> None:
        """Let another coordinator lead."""


class Colleagues:
    """I answer for one of several coordinators. `begin` runs what takes time."""

    def __init__(
        self, front: Front, client: EtcdClient, space: FencedSpace, roll: Roll, term: Term,
        begin: Callable[[Coroutine[None, None, None]], object], report: Reporter,
    ) -> None:  # fmt: skip
        self._front = front
        self._client = client
        self._space = space
        self._roll = roll
        self._term = term
        self._begin = begin
        self._report = report
        #: As they were when I looked last.
        self._known: dict[str, Coordinator] = {}
        #: Of those who stand by, to whom I may speak while I lead.
        self._standing_by: dict[Session, Established] = {}
        #: What they said when they were asked last.
        self._standings: dict[str, CopyState] = {}
        self._heard = asyncio.Event()
        self._warned = ""

    async def look(self) -> None:
        """Look who runs now, and tell peers. Raises Unavailable."""
        self._known = await self._roll.all(asyncio.get_running_loop().time() + ASK_S)
        await self._client.recount()
        if self._term.number:
            self._front.named(self.addresses)
        warning = out_of_reach(self._known)
        if warning and warning != self._warned:
            self._report("warning", warning, {"remedy": "--listen an address of the host's own"})
        self._warned = warning

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they listen."""
        return tuple(sorted(each.address for each in self._known.values()))

    # ----------------------------------------------------------------------- the front's people

    def answers(self, session: Session, request: int, message: Message) -> bool:
        """Answer a question about coordinators. False when the message belongs to a term."""
        match message:
            case Ask(what) if what == COORDINATORS:
                self._begin(self._tell(session, request))
            case StepDown():
                self._begin(self._step_down(session, request, message.coordinator))
            case _:
                return False
        return True

    def opened(self, session: Session, peer: Established) -> None:
        """Note a session that a standby may hold."""
        self._standing_by[session] = peer

    def speaking(self) -> Mapping[str, int]:
        """As they wrote themselves down, or in their sessions."""
        known = {id: one.protocol for id, one in self._known.items() if id != self._roll.id}
        return known | {peer.name: peer.version for peer in self._standing_by.values()}

    def closed(self, session: Session) -> None:
        """Any that was open."""
        self._standing_by.pop(session, None)

    def heard(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> bool:
        """Whether it answered what I asked of who stands by. The bulk stays the caller's."""
        if session not in self._standing_by or not isinstance(message, Answer) or bulk is None:
            return False
        # What is nested too deep is no answer either.
        with suppress(msgspec.MsgspecError, RecursionError):
            said = msgspec.json.decode(bytes(bulk.view), type=CopyState)
            # Each for itself: else one word would do for another's, or there would be any number.
            if said.id == self._standing_by[session].name:
                self._standings[said.id] = said
                self._heard.set()
        return True

    def checks(self) -> tuple[Check, ...]:
        """Of `ckpt status`."""
        found: list[Check] = []
        full = self._term.full
        if full is not None and not self._term.number:
            found.append(check("CATALOG_FULL", full.message, full.hint))
        if self._term.silence:
            remedy = "start its members, or bring back the network to them; see ckpt coordinator ls"
            found.append(check("CATALOG_NO_QUORUM", self._term.silence, remedy))
        if self._term.missing:
            remedy = "put its keys back, or make another one from what the targets hold"
            command = mending_command(self._client.url.text)
            found.append(check("CATALOG_OLD", self._term.missing, remedy, command))
        differing = other_codes(self._known)
        if differing:
            remedy = "give all of them the same options, one after the other"
            found.append(check("CODES_DIFFER", differing, remedy))
        if len(self._known) == 1:
            found.append(
                check(
                    "NO_STANDBY",
                    f"coordinator {self._roll.id} is the only one",
                    "start another one on another host: ckptd coordinator --catalog"
                    f" {quoted(self._client.url.text)} --id NAME",
                )
            )
        worst_s = self._space.times.percentile(99)
        if worst_s >= SLOW_S:
            found.append(
                check(
                    "CATALOG_SLOW",
                    f"one in a hundred transactions with {self._client.url} takes {worst_s:.2g} s",
                    "see ckpt coordinator ls, and the disks of etcd's members",
                )
            )
        return tuple(found)

    def families(self) -> Iterator[Family]:
        """What Prometheus is answered."""
        return leading_families(
            leads=bool(self._term.number), takeovers=self._term.takeovers,
            written_s=self._space.times.histogram,
            written_bytes=self._space.times.written_bytes,
        )  # fmt: skip

    # ----------------------------------------------------------------------- answers

    async def _tell(self, session: Session, request: int) -> None:
        try:
            # When etcd has no majority, what was seen last is better than nothing.
            with suppress(Unavailable):
                await self.look()
        except CkptError as error:
            self._fail(session, request, error)
            return
        members, _ = await asyncio.gather(self._members(), self._ask_standings())
        rows = tuple(self._row(id, each) for id, each in self._known.items())
        view = CoordinatorsView(str(self._client.url), rows, members, self._term.number)
        self._front.server.send(session, request, Answer(), msgspec.json.encode(view))

    def _row(self, id: str, one: Coordinator) -> CoordinatorRow:
        leads = id == self._roll.id and bool(self._term.number)
        return CoordinatorRow(
            id, one.address, "leads" if leads else "stands by",
            term=self._term.number if leads else None,
            led_s=_passed_s(self._term.leads_since_s) if leads else None,
            pid=one.pid, host=one.host, http=one.http, version=one.version,
            runs_s=_passed_s(one.since_s), lag=self._lag(id),
        )  # fmt: skip

    def _lag(self, id: str) -> int | None:
        said = self._standings.get(id)
        if said is None or not said.revision:
            return None
        return max(0, self._space.written - said.revision)

    async def _ask_standings(self) -> None:
        """Of all who stand by; who says nothing in time, as an older version does, is left out."""
        self._standings.clear()
        for number, session in enumerate(sorted(self._standing_by), 1):
            self._front.server.send(session, number, Ask(STANDING))
        with suppress(TimeoutError):
            async with asyncio.timeout(STANDING_S):
                while len(self._standings) < len(self._standing_by):
                    self._heard.clear()
                    await self._heard.wait()

    async def _members(self) -> tuple[CatalogMember, ...]:
        return tuple(
            await asyncio.gather(*(self._member(each) for each in self._client.url.members))
        )

    async def _member(self, address: str) -> CatalogMember:
        answered_s, reason = await self._client.health(address)
        return CatalogMember(
            address, not reason, None if math.isnan(answered_s) else answered_s, reason
        )

    async def _step_down(self, session: Session, request: int, id: str) -> None:
        try:
            await self._check_step_down(id)
        except CkptError as error:
            self._fail(session, request, error)
        else:
            self._front.server.send(session, request, SteppedDown(self._roll.id, self._term.number))
            self._term.step_down()

    async def _check_step_down(self, id: str) -> None:
        """Raises NotFound, Refused, NoSpace, Unavailable."""
        full = self._term.full
        if full is not None:
            raise NoSpace(
                f"nobody could lead after {self._roll.id}: {full.message}", hint=full.hint
            )
        await self.look()
        if id and id != self._roll.id:
            raise NotFound(
                f"{id} does not lead: {self._roll.id} does", hint="see ckpt coordinator ls"
            )
        if len(self._known) < 2:
            raise Refused(
                f"nobody stands by to lead after {self._roll.id}",
                hint="start another coordinator first",
            )

    def _fail(self, session: Session, request: int, error: CkptError) -> None:
        failed = Failed(error.code, error.message, error.hint)
        self._front.server.send(session, request, failed)


def _passed_s(since_s: float) -> float:
    """Another host's clock may be ahead of this one's, and this one may have been set back."""
    return max(0.0, time() - since_s)
