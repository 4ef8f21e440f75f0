"""A hand of `ckptd repair` over real sockets, with a coordinator and targets that stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.ids import BootId, ColumnNumber, PayloadId, Rank
from ckpt.base.units import US_PER_S
from ckpt.format.documents.record import encode_record
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    LostColumn,
    RenewRepair,
    RepairLeased,
    RepairNoted,
    RepairPace,
)
from ckpt.objects.pace import WritePace
from ckpt.protocol.handshake import Caller, Identity
from ckpt.testing.network import Heard, RecordingHandler
from ckpt.transfer import column_sender
from ckptd.repair.worker import RepairProcess, RepairWorker
from tests.aio.netkit import SECRET, ServerThread, serving
from tests.transfer.targetkit import Behaviour, SmallTarget, targets
from tests.transfer.test_homes import OLD, Scene, scene

NAME = "repair host:1"
LOST = ColumnNumber(5)
OFTEN = RepairPace(renew_us=20_000)


class Lessor:
    """A coordinator with one payload to make again: its lease ends once the target of its column
    stands still, and then there is nothing to do.
    """

    def __init__(self, here: Scene, to: SmallTarget) -> None:
        self._here = here
        self._to = to
        self.handler = RecordingHandler(answer=self._answer)
        self.running: ServerThread

    @property
    def asked(self) -> list[type[Message]]:
        """What it was asked, in order; that a worker lives is no question."""
        kinds = [type(heard.message) for heard in self.handler.received_]
        return [kind for kind in kinds if kind is not RenewRepair]

    def _answer(self, heard: Heard) -> None:
        send, bulk = self.running.server.send, b""
        answer: Message
        match heard.message:
            case LeaseRepair() if self.asked.count(LeaseRepair) > 1:
                answer = RepairLeased()
            case LeaseRepair():
                lost = LostColumn(LOST, self._to.place(1))
                answer = RepairLeased(PayloadId(OLD, Rank(0)), (lost,), OFTEN)
            case Resolve():
                record = self._here.records[OLD]
                answer, bulk = Resolved(record.info, 1, self._here.addresses), encode_record(record)
            case RenewRepair() if self._to.frozen.is_set():
                answer = Failed("fenced", "it is another worker's")
            case RenewRepair() | EndRepair():
                answer = RepairNoted(pace=OFTEN)
            case _:
                return
        send(heard.session, heard.request, answer, bulk)


@contextmanager
def working(lessor: Lessor) -> Iterator[None]:
    """A hand works until the `with` ends."""
    stopped = threading.Event()
    identity = Identity("cluster-a", Role.COORDINATOR, "", BootId(5))
    with serving(identity=identity, handler=lessor.handler) as lessor.running:
        address = f"127.0.0.1:{lessor.running.server.port}"
        with RpcClient(address, Caller(SECRET, Role.DRAIN, NAME)) as rpc:
            worker = RepairWorker(rpc, RepairProcess(SECRET, NAME, WritePace()))
            thread = threading.Thread(target=worker.run, args=(0.01, stopped))
            thread.start()
            try:
                yield
            finally:
                stopped.set()
                thread.join()


def test_a_hand_whose_lease_has_ended_waits_no_longer_for_a_target_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for other work, and says nothing of what is another worker's by now."""
    monkeypatch.setattr(column_sender, "SILENCE_US", 3600 * US_PER_S)
    with scene({LOST: "absent"}) as here, targets(1, {0: Behaviour(freeze_after=1)}) as made:
        lessor = Lessor(here, made[0])
        with working(lessor):
            try:
                lessor.running.wait_until(lambda: lessor.asked.count(LeaseRepair) > 1)
            finally:
                made[0].thaw.set()
        assert lessor.asked[:4] == [LeaseRepair, Resolve, ReleasePin, LeaseRepair]
