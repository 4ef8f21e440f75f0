"""Something between a standby and who leads resets their session, as a firewall that forgets its
connections does: who leads is unseated only where its port refuses.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd, free_ports
from tests.ha.places import Prefix
from tests.ha.test_colleagues import lags_at
from tests.waiting import ASKED_S, wait_until

BEFORE = "127.0.0.2"
"""Where colleagues dial; each listens on 127.0.0.1."""
RESETS = 5
_Done = TypeVar("_Done")
GONE = "the leader's process is gone"


class Gate:
    """I pass connections on to a port of 127.0.0.1, until they are reset or I am closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        #: Of the loop's thread alone: both ends of each connection.
        self._ends: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate")
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._pass_on, BEFORE, port))

    def reset(self) -> None:
        """Each connection has ended with RST on return; new ones are taken."""
        self._run(self._reset())

    def refuse(self) -> None:
        """The same, and new ones are refused."""
        self._run(self._refuse())

    def close(self) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[None, None, _Done]) -> _Done:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            # A test's end: who listened there is gone.
            writer.close()
            return
        self._ends += writer, far_writer
        await asyncio.gather(_copied(reader, far_writer), _copied(far_reader, writer))

    async def _reset(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                own = end.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    async def _refuse(self) -> None:
        self._server.close()
        await self._reset()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65536):
            writer.write(part)
        writer.close()


class Gated(Coordinators):
    """Two of them; each has a gate before it, by which the other one reaches it."""

    def __init__(self, directory: Path, etcd: Etcd, gates: dict[str, Gate]) -> None:
        flags = ("--advertise", BEFORE)
        super().__init__(directory, etcd, Prefix(etcd.addresses), ids="ab", flags=flags)
        self.gates = gates
        self.listen = {id: f"127.0.0.1:{gate.port}" for id, gate in gates.items()}


@pytest.fixture
def gated(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    with ExitStack() as stack:
        gates = {id: Gate(port) for id, port in zip("ab", free_ports(2), strict=True)}
        for gate in gates.values():
            stack.callback(gate.close)
        made = stack.enter_context(Gated(tmp_path, etcd, gates))
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


def wait_watched(
    capsys: pytest.CaptureFixture[str], gated: Gated, leader: str, standby: str
) -> None:
    """Who stands by holds a session to who leads, and answers in it."""
    where = gated.listen[leader]
    wait_until(lambda: lags_at(capsys, where).get(standby) == 0, "a session stands", poll_s=ASKED_S)


def test_a_session_that_is_reset_again_and_again_unseats_nobody(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = gated.leader()
    standby = "ab".replace(leader, "")
    for _ in range(RESETS):
        wait_watched(capsys, gated, leader, standby)
        gated.gates[leader].reset()
    wait_watched(capsys, gated, leader, standby)
    assert gated.logged(standby, GONE) == 0
    assert (gated.leader(), gated.term()) == (leader, 1)


def test_what_refuses_in_the_leader_s_place_is_taken_for_its_end_once(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing tells it from the kernel of a host whose process is gone."""
    leader = gated.leader()
    standby = "ab".replace(leader, "")
    wait_watched(capsys, gated, leader, standby)
    gated.gates[leader].refuse()
    assert gated.leader(but=leader) == standby
    assert gated.logged(standby, GONE) == 1
    for _ in range(RESETS):
        wait_watched(capsys, gated, standby, leader)
        gated.gates[standby].reset()
    assert (gated.leader(), gated.term()) == (standby, 2)
    assert gated.logged(leader, GONE) == 0
