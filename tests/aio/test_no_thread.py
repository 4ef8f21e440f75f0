"""A process to which the system gives no thread, as in a container whose `pids.max` is reached."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Unavailable
from ckpt.base.system_errors import Scarce
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckpt.protocol.reader.events import FinishStripe
from ckpt.transfer.assembly import Assembly
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions
from ckpt.transfer.peer_server import PeerServer
from ckpt.transfer.receiving.decode_worker import DecodeWorker
from tests.no_threads import SAYS, no_threads
from tests.protocol.reading import Columns

SECRET: Final = bytes(32)
NOWHERE: Final = "unix:/nowhere/socket"


def opened() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_who_asks_hears_which_limit_to_raise_and_asks_again_once_there_are_threads() -> None:
    before = opened()
    client = RpcClient(NOWHERE, Caller(SECRET, Role.ADMIN, "test"), lasting=False)
    for _ in range(2):
        with no_threads(), pytest.raises(Scarce, match=SAYS):
            client.call(Ask("status"))
    with pytest.raises(Unavailable, match="cannot connect"):
        client.call(Ask("status"))
    client.close()
    never_asked = RpcClient(NOWHERE, Caller(SECRET, Role.ADMIN, "test"))
    with no_threads(), pytest.raises(Scarce):
        never_asked.tell(Ask("status"))
    never_asked.close()
    assert opened() == before


def test_what_has_to_be_decoded_says_so_and_needs_no_end() -> None:
    data = Columns.make(Code(2, 1), 1000, 64 * 1024, seed=1)
    assembly = Assembly(data.layout, Landings(gap_bytes=0), xxh3_128(data.manifest))
    worker = DecodeWorker(lambda: None)
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        worker.put(assembly, FinishStripe(0, (), (), ()), object())
    worker.stop()


def test_who_sends_or_gives_to_peers_says_so_and_keeps_nothing_open(tmp_path: Path) -> None:
    before, running = opened(), threading.active_count()
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        PayloadSender(SenderOptions(secret=SECRET, name="test"))
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        PeerServer(SECRET, "cluster-a", "127.0.0.1", tmp_path)
    assert (opened(), threading.active_count()) == (before, running)
