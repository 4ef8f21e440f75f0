"""Programs to which the system gives no thread: who asked hears why, and all goes on afterwards."""

from __future__ import annotations

import os
import select
import threading
from io import StringIO
from pathlib import Path

import pytest
from msgspec import structs

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.system_errors import Scarce
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.protocol.handshake import Caller
from ckpt.protocol.stager.events import PayloadFailed, PayloadStopped, StopPayload
from ckpt_client.cli.output import Output
from ckpt_client.fs.sender import FileSender
from ckpt_client.load.memory_check import ALONE_BYTES, is_committed
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.ring import Ring
from ckpt_client.load.verify import _ask, _ask_all, _Question
from ckpt_client.locate import Locator
from ckpt_client.stager.arena import Half
from ckpt_client.stager.jobs import Jobs
from tests.client.test_memory_check import content
from tests.client.test_memory_check import payload_of as payload_of_memory
from tests.client.test_moving import Desk
from tests.no_threads import SAYS, no_threads
from tests.transfer.test_payload_sender import Arena, payload_of, start_of
from tests.waiting import ASKED_S, wait_until


def test_a_sender_of_files_says_so_and_keeps_nothing_open(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text("00" * 32)
    secret_file.chmod(0o600)
    before, running = len(os.listdir("/proc/self/fd")), threading.active_count()
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        FileSender(Locator("", "127.0.0.1:1"), secret_file, lambda _: None)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, running)


@pytest.mark.parametrize("refers", [False, True])
def test_a_stager_ends_the_save_that_it_cannot_send_and_serves_the_next(*, refers: bool) -> None:
    desk = Desk()
    arena = Arena("2+1", 700_000)
    start = structs.replace(start_of(1, arena, []), refers=refers)
    with no_threads():
        desk.start(start, Half(memoryview(arena.map), -1), [])
        desk.command(StopPayload(payload_of(1)))
        wait_until(desk.has_moved, "the move")
    failed, stopped = desk.told
    assert isinstance(failed, PayloadFailed)
    assert "can't start new thread" in failed.message
    assert "pids.max" in failed.hint
    assert isinstance(stopped, PayloadStopped)
    desk.start(
        structs.replace(start_of(2, arena, []), refers=refers), Half(memoryview(arena.map), -1), []
    )
    wait_until(desk.has_moved, "the move")
    desk.command(StopPayload(payload_of(2)))
    wait_until(lambda: len(desk.heard(PayloadStopped)) == 2, "the end")
    desk.close()


def test_work_that_found_no_thread_is_never_done() -> None:
    """Whoever asked for it has heard that it failed, and uses the memory for something else."""
    jobs, done, failed = Jobs(), list[int](), list[CkptError]()
    with no_threads():
        jobs.start(lambda: done.append(1), lambda _: None, failed.append)
        jobs.finish()
    (error,) = failed
    assert isinstance(error, Scarce)
    jobs.start(lambda: done.append(2), lambda _: None, failed.append)
    with no_threads():  # It has a worker, and none more.
        jobs.start(lambda: done.append(3), lambda _: None, failed.append)
    while jobs.pending:
        select.select([jobs.descriptor], [], [], ASKED_S)
        jobs.finish()
    jobs.close()
    assert (sorted(done), len(failed)) == ([2, 3], 1)


@pytest.mark.parametrize("harmed", [False, True])
def test_a_stager_s_memory_is_compared_by_the_caller_alone(*, harmed: bool) -> None:
    data = bytearray(content(ALONE_BYTES + 12_345))
    payload = payload_of_memory(bytes(data), MiB)
    data[-1] ^= harmed
    with no_threads():
        assert is_committed(memoryview(data), payload) is not harmed


def test_slots_on_the_way_to_a_device_are_made_as_they_are_taken() -> None:
    ring = Ring(lambda: bytearray(64), 2)
    with no_threads():
        ring.make_ahead(2)
        assert ring.take() == bytearray(64)
        ring.close()


def test_a_command_that_waits_does_so_without_a_word() -> None:
    output = Output(json=False, stdout=StringIO(), stderr=StringIO(), environ={})
    with no_threads(), output.waiting("asking") as nothing:
        assert nothing is None


def asked(target: TargetId) -> _Question:
    id = PayloadId(CheckpointId(RunName("run"), Step(1), Generation(1, 1)), Rank(0))
    return _Question(ColumnId(id, ColumnNumber(0)), target, "", documents=False)


def test_a_verification_blames_no_target() -> None:
    context = ReaderContext(lambda: "127.0.0.1:1", bytes(32), "", "reader")
    target = TargetId("t0")
    where = TargetAddress(target, BootId(1), "127.0.0.1:1", "")
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        _ask_all(context, [asked(target)], {target: where}, lambda _done, _count: None)
    caller = Caller.of_target(bytes(32), Role.READER, "reader", target)
    with (
        RpcClient("127.0.0.1:1", caller) as peer,
        no_threads(),
        pytest.raises(Scarce, match=SAYS),
    ):
        _ask(asked(target), {target: peer})
