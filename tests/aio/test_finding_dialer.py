"""A daemon's dialer among several coordinators: it keeps one session, with the one that leads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack

import pytest

from ckpt.aio.net import approach
from ckpt.aio.net.dial import Dialer
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckpt.testing.network import RecordingHandler
from tests.aio.coordinatorkit import (
    coordinators,
    dead_address,
    full_address,
    silent_address,
)
from tests.aio.netkit import PATIENCE_S, SECRET, Waiter


class Dialing:
    """A dialer, what it heard, and why it failed."""

    def __init__(self, *addresses: str, cluster: str = "") -> None:
        self.heard = RecordingHandler()
        self.errors: list[CkptError] = []
        self._waiter = Waiter(self.heard)
        self.dialer = Dialer(
            self.heard,
            Caller(SECRET, Role.TARGET, "t0", cluster=cluster),
            address=",".join(addresses),
            on_failure=self._failed,
        )
        self.dialer.start()

    async def until(self, condition: Callable[[], bool]) -> None:
        await self._waiter.until(condition)

    async def who_answers(self) -> str:
        """The name of the coordinator of the newest session."""
        session = self.dialer.session
        assert session is not None
        count = len(self.heard.received_)
        self.dialer.send(session, 1, Ask("who"))
        await self.until(lambda: len(self.heard.received_) > count)
        return self.heard.received_[-1].bulk.decode()

    def _failed(self, error: CkptError) -> None:
        self.errors.append(error)
        assert self.heard.on_event is not None
        self.heard.on_event()


def run(work: Coroutine[None, None, None]) -> None:
    """On a loop that finds what was left undone."""
    asyncio.run(work, debug=True)


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an address that never answers would cost, were it waited for."""
    monkeypatch.setattr(approach, "ATTEMPT_S", 600.0)


@pytest.mark.parametrize("make", [silent_address, full_address])
def test_a_session_stands_past_addresses_that_do_not_answer(
    make: Callable[[], AbstractContextManager[str]],
) -> None:
    async def work() -> None:
        with make() as silent, coordinators("a") as (a,):
            a.lead()
            dialing = Dialing(dead_address(), silent, a.address)
            await dialing.until(lambda: len(dialing.heard.opened_) == 1)
            assert await dialing.who_answers() == "a"
            assert dialing.errors == []
            await dialing.dialer.close()
            assert len(dialing.heard.closed_) == 1

    run(work())


def test_a_standby_sends_it_to_the_leader_and_the_next_leader_is_followed() -> None:
    async def work() -> None:
        with coordinators("abc") as (a, b, c):
            b.lead(a, b, c)
            a.follow(b)
            dialing = Dialing(a.address)
            await dialing.until(lambda: len(dialing.heard.opened_) == 1)
            assert await dialing.who_answers() == "b"
            c.lead(a, b, c)
            a.follow(None)
            b.follow(None)
            await dialing.until(lambda: len(dialing.heard.opened_) == 2)
            assert await dialing.who_answers() == "c"
            await dialing.dialer.close()
            assert len(dialing.heard.closed_) == 2

    run(work())


def test_why_none_answers_is_said_once_for_all_of_them() -> None:
    async def work() -> None:
        with coordinators("ab") as (a, b):
            a.follow(b)
            b.follow(a)
            dialing = Dialing(a.address, b.address)
            await dialing.until(lambda: len(dialing.errors) == 3)
            for error in dialing.errors:
                assert isinstance(error, Unavailable)
                assert str(error) == str(dialing.errors[0])
            await dialing.dialer.close()
            assert dialing.heard.opened_ == []
            assert a.turned_away <= 4, "each once in an attempt"

    run(work())


def test_it_is_closed_while_it_searches() -> None:
    async def work() -> None:
        with ExitStack() as held:
            local = ("127.0.0.1", 0)
            silent = [held.enter_context(socket.create_server(local)) for _ in range(2)]
            full = held.enter_context(full_address())
            addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in silent]
            dialing = Dialing(full, *addresses)
            for each in silent:
                each.setblocking(False)
                came, _ = await asyncio.get_running_loop().sock_accept(each)
                held.enter_context(came)
            closing = asyncio.ensure_future(dialing.dialer.close())
            # The system itself ends the connection after 30 s.
            done, _ = await asyncio.wait((closing,), timeout=PATIENCE_S / 2)
            assert done
            assert len(asyncio.all_tasks()) == 1
            assert dialing.heard.opened_ == []

    run(work())


@pytest.mark.parametrize("cluster", ["", "cluster-a"])
def test_members_of_two_clusters_in_one_list_are_refused_by_name(cluster: str) -> None:
    async def work() -> None:
        with coordinators("a", "cluster-a") as (a,), coordinators("b", "cluster-b") as (b,):
            a.lead()
            dialing = Dialing(a.address, b.address, cluster=cluster)
            await dialing.until(lambda: bool(dialing.errors))
            error = dialing.errors[0]
            assert isinstance(error, Refused)
            for text in (a.address, b.address, "cluster-a", "cluster-b"):
                assert text in error.message
            asked = len(dialing.heard.opened_)
            await dialing.until(lambda: len(dialing.errors) == 3)
            assert len(dialing.heard.opened_) == asked, "nobody is dialed by that list any more"
            await dialing.dialer.close()
            assert len(dialing.heard.closed_) == len(dialing.heard.opened_)

    run(work())


def test_a_wrong_list_is_refused() -> None:
    with pytest.raises(Refused, match="'nowhere'"):
        Dialer(RecordingHandler(), Caller(SECRET, Role.TARGET, "t0"), address="127.0.0.1:1,nowhere")
