"""What one of several coordinators answers about the others, whatever they say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import time
from typing import cast

import msgspec
import pytest

from ckpt.aio.net.bulk import Bulk
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorsView
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established
from ckpt.testing.catalog_contract import on_a_loop
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import FencedSpace
from ckptd.catalog.etcd.roll import Coordinator, Roll
from ckptd.coordinator.colleagues import Colleagues, CopyState, Term
from ckptd.coordinator.front import Front
from ckptd.coordinator.reception import COORDINATORS

AHEAD_S = 3600.0
STANDBY = Session(7)
ASKER = Session(8)


@dataclass
class _Term:
    """Of this process, which leads."""

    number: int = 3
    leads_since_s: float = 0.0


@dataclass
class _Roll:
    """Of hosts with clocks of their own."""

    known: dict[str, Coordinator]
    id: str = "a"

    async def all(self, deadline: float) -> dict[str, Coordinator]:
        return self.known


@dataclass
class _Front:
    """Server and front in one: keeps what is said to who asks, and answers what standbys are asked
    with `said`.
    """

    said: bytes = b""
    views: list[CoordinatorsView] = field(default_factory=list)
    colleagues: Colleagues | None = None

    @property
    def server(self) -> _Front:
        return self

    def named(self, addresses: tuple[str, ...]) -> None:
        assert addresses

    def send(self, session: Session, request: int, message: object, bulk: bytes = b"") -> None:
        if session == STANDBY:
            assert self.colleagues is not None
            assert isinstance(message, Ask)
            answer = cast(Bulk, _Landed(memoryview(self.said)))
            assert self.colleagues.heard(session, request, Answer(), answer)
        else:
            self.views.append(msgspec.json.decode(bulk, type=CoordinatorsView))


@dataclass
class _Landed:
    view: memoryview


@dataclass
class _Etcd:
    """Has no members to ask how they are."""

    url: _Etcd | str = "etcd://h:1"
    members: tuple[str, ...] = ()

    async def recount(self) -> None:
        """There are none."""


async def answered(said: bytes, ahead_s: float) -> CoordinatorsView:
    """`ckpt coordinator ls`, of one that leads and one that stands by and says this."""
    since_s = time() + ahead_s
    front = _Front(said)
    begun: list[asyncio.Future[None]] = []
    known = {id: Coordinator("p", id, 1, f"{id}:1", since_s=since_s) for id in "ab"}

    def begin(work: Coroutine[None, None, None]) -> None:
        begun.append(asyncio.ensure_future(work))

    etcd = _Etcd(url=_Etcd())
    colleagues = Colleagues(
        cast(Front, front), cast(EtcdClient, etcd), cast(FencedSpace, _Written()),
        cast(Roll, _Roll(known)), cast(Term, _Term(leads_since_s=since_s)), begin,
        lambda *_: None,
    )  # fmt: skip
    front.colleagues = colleagues
    colleagues.opened(
        STANDBY, Established(Role.COORDINATOR, "b", "cluster", BootId(0), Epoch(0), 1)
    )
    assert colleagues.answers(ASKER, 1, Ask(COORDINATORS))
    await asyncio.gather(*begun)
    (view,) = front.views
    return view


@dataclass
class _Written:
    written: int = 9


@on_a_loop
async def test_a_clock_that_is_ahead_makes_no_time_negative() -> None:
    view = await answered(msgspec.json.encode(CopyState("b", 7)), AHEAD_S)
    assert [(each.id, each.led_s, each.runs_s) for each in view.coordinators] == [
        ("a", 0.0, 0.0), ("b", None, 0.0),
    ]  # fmt: skip


@on_a_loop
async def test_what_a_standby_says_is_how_far_its_copy_is() -> None:
    view = await answered(msgspec.json.encode(CopyState("b", 7)), -AHEAD_S)
    assert [(each.id, each.lag) for each in view.coordinators] == [("a", None), ("b", 2)]
    assert all((each.runs_s or 0.0) >= AHEAD_S for each in view.coordinators)


OF_ANOTHER = msgspec.json.encode(CopyState("a", 7))


@pytest.mark.parametrize(
    "said", [b"", b'{"x":' + b"[" * 100_000, OF_ANOTHER], ids=["none", "deep", "of another"]
)
def test_what_a_standby_says_may_be_nothing(said: bytes) -> None:
    view = asyncio.run(answered(said, -AHEAD_S))
    assert [each.lag for each in view.coordinators] == [None, None]
