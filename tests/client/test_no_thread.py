"""Programs to which the system gives no thread: who asked hears why, and all goes on afterwards."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest
from msgspec import structs

from ckpt.base.errors import CkptError
from ckpt.base.system_errors import Scarce
from ckpt.protocol.stager.events import PayloadFailed, PayloadStopped, StopPayload
from ckpt_client.fs.sender import FileSender
from ckpt_client.locate import Locator
from ckpt_client.stager.arena import Half
from ckpt_client.stager.jobs import Jobs
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
