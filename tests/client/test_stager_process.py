"""A real stager process: its memory, its cap, its end and its trainer's end.

No cluster is needed for these.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ckpt.base.errors import Aborted, Busy, CkptError, Refused, Unavailable
from ckpt.base.units import MiB
from ckpt_client.save.links import stager_link
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.stager.arena import Half, map_half
from tests.client.stagerkit import Bench, kill, runs, stage
from tests.no_descriptors import no_descriptors
from tests.waiting import wait_until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def test_a_stager_is_nobodys_child_and_leads_no_session_of_its_trainer(bench: Bench) -> None:
    link = bench.start()
    fields = Path(f"/proc/{link.pid}/stat").read_text().rpartition(") ")[2].split()
    assert int(fields[1]) != os.getpid()
    assert int(fields[3]) != os.getsid(0)


def test_prepared_memory_is_there_before_the_first_save(bench: Bench) -> None:
    link = bench.start()
    link.prepare(3 * MiB)
    link.ask_half(1, "run", 1, 3 * MiB, "wait")
    granted = link.wait_half(1)
    assert granted is not None
    half, touch_s = granted
    assert len(half.memory) >= 3 * MiB
    assert touch_s == 0.0


def test_the_first_save_says_what_its_memory_cost(bench: Bench) -> None:
    link = bench.start()
    link.ask_half(1, "run", 1, 8 * MiB, "wait")
    granted = link.wait_half(1)
    assert granted is not None
    assert granted[1] > 0


def test_a_half_is_held_until_its_save_ends(bench: Bench) -> None:
    link = bench.start()
    assert stage(link, 1) is not None
    assert stage(link, 2) is not None
    with pytest.raises(Busy):
        stage(link, 3, when_full="error")
    assert stage(link, 4, when_full="skip") is None


def test_a_save_that_waits_for_memory_says_which_saves_hold_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = bench.start()
    saves = [stage(link, 1), stage(link, 2)]
    monkeypatch.setattr(stager_link, "PATIENCE_S", 0.1)
    waiting = threading.Thread(target=suppressed(stage, link, 3))
    waiting.start()
    wait_until(lambda: bool(caplog.messages), "a word about the wait")
    kill(link.pid)
    waiting.join()
    assert all(saves)
    (told,) = caplog.messages
    assert told.startswith("rank 0 waits for staging memory: run@1, run@2 not committed yet")


def test_who_waits_for_a_stopped_stager_is_told_so_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stager_link, "PATIENCE_S", 0.1)
    link = bench.start()
    os.kill(link.pid, signal.SIGSTOP)
    waiting = threading.Thread(target=suppressed(stage, link, 1))
    waiting.start()
    wait_until(lambda: bool(caplog.messages), "a word about the stop")
    assert not link.wait_until(lambda: False, 0.5)
    os.kill(link.pid, signal.SIGCONT)
    waiting.join()
    (told,) = caplog.messages
    assert f"the stager of rank 0 is stopped: kill -CONT {link.pid} lets it go on" in told


def suppressed(function: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """The call, without an error of the package."""

    def call() -> None:
        with suppress(CkptError):
            function(*arguments)

    return call


def test_a_dropped_half_is_granted_again(bench: Bench) -> None:
    link = bench.start()
    for number in range(1, 6):
        link.ask_half(number, "run", number, MiB, "error")
        granted = link.wait_half(number)
        assert granted is not None
        link.drop(number)


def test_an_interrupt_while_memory_is_mapped_loses_no_half(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = bench.start()

    def interrupted(descriptor: int, size: int) -> Half:
        monkeypatch.undo()
        map_half(descriptor, size)
        raise KeyboardInterrupt

    monkeypatch.setattr("ckpt_client.save.links.mapped_halves.map_half", interrupted)
    link.ask_half(1, "run", 1, MiB, "wait")
    with pytest.raises(KeyboardInterrupt):
        link.wait_half(1)
    link.drop(1)
    for number in (2, 3):
        assert stage(link, number) is not None


def test_memory_that_no_descriptor_was_left_for_ends_the_link_by_name(bench: Bench) -> None:
    link = bench.start()
    with no_descriptors():
        link.ask_half(1, "run", 1, MiB, "wait")
        with pytest.raises(Unavailable, match=r"taken over.*ulimit -n"):
            link.wait_half(1)
        with pytest.raises(Unavailable, match="cannot speak with a stager: Too many open files"):
            bench.start()
    assert not link.alive, "a save starts another one"
    assert stage(bench.start(), 2) is not None


def test_announced_memory_may_be_written_before_it_is_granted(bench: Bench) -> None:
    link = bench.start()
    link.prepare(3 * MiB)
    for number in (1, 2, 3):
        early = link.ask_half(number, "run", number, 3 * MiB, "wait")
        assert early is not None
        granted = link.wait_half(number)
        assert granted is not None
        assert granted[0] is early
        link.drop(number)
        # Its answer comes behind the announcement of the half that was dropped.
        link.prepare(3 * MiB)


def test_an_announcement_that_met_an_ask_on_the_way_is_not_taken_for_the_next_save(
    bench: Bench,
) -> None:
    link = bench.start()
    link.prepare(MiB)
    for number in (1, 2):
        link.ask_half(number, "run", number, MiB, "wait")
        assert link.wait_half(number) is not None
    os.kill(link.pid, signal.SIGSTOP)
    link.drop(1)  # Its half is announced, and given to the ask that is under way already.
    assert link.ask_half(3, "run", 3, MiB, "wait") is None
    os.kill(link.pid, signal.SIGCONT)
    assert link.wait_half(3) is not None
    assert link.ask_half(4, "run", 4, MiB, "error") is None, "both halves hold other saves"


def test_a_state_that_outgrew_what_was_announced_waits_for_its_grant(bench: Bench) -> None:
    link = bench.start()
    link.prepare(MiB)
    assert link.ask_half(1, "run", 1, 64 * MiB, "wait") is None
    granted = link.wait_half(1)
    assert granted is not None
    assert len(granted[0].memory) >= 64 * MiB


def test_the_cap_counts_both_halves(bench: Bench) -> None:
    link = bench.start(arena_bytes_max=16 * MiB)
    assert stage(link, 1, 10 * MiB) is not None
    with pytest.raises(Busy, match="cap"):
        stage(link, 2, 10 * MiB, "error")
    assert stage(link, 3, 10 * MiB, "skip") is None
    assert stage(link, 4, 2 * MiB, "error") is not None


def test_a_state_above_the_cap_is_refused(bench: Bench) -> None:
    link = bench.start(arena_bytes_max=16 * MiB)
    with pytest.raises(Refused, match="cap"):
        stage(link, 1, 20 * MiB)
    with pytest.raises(CkptError, match="cap"):
        link.prepare(20 * MiB)
    assert stage(link, 2, MiB) is not None


def test_a_half_grows_with_the_state(bench: Bench) -> None:
    link = bench.start()
    for number, size in enumerate((MiB, 5 * MiB, 3 * MiB, 9 * MiB), 1):
        link.ask_half(number, "run", number, size, "wait")
        granted = link.wait_half(number)
        assert granted is not None
        granted[0].memory[:size] = bytes(size)
        link.drop(number)


def test_a_killed_stager_is_told_by_wait_once_and_for_all(bench: Bench) -> None:
    link = bench.start()
    save = stage(link, 1)
    assert save is not None
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(Aborted, match=f"pid {link.pid}"):
        save.wait(timeout_s=30)
    assert not link.alive
    assert link.take_error() is None, "wait has told it"
    with pytest.raises(Aborted):
        save.wait()


def test_an_error_that_wait_did_not_tell_is_kept(bench: Bench) -> None:
    link = bench.start()
    assert stage(link, 1) is not None
    os.kill(link.pid, signal.SIGKILL)
    wait_until(lambda: not link.alive, "the stager's end was not heard")
    assert isinstance(link.take_error(), Aborted)
    assert link.take_error() is None


def test_an_idle_stager_without_a_trainer_goes(bench: Bench) -> None:
    link = bench.start(idle_s=0.05)
    link.close()
    wait_until(lambda: not runs(link.pid), "the stager stayed")


_TRAINER = """
import os, signal, sys
import msgspec
from pathlib import Path
from ckpt_client.stager import wire
from ckpt_client.save.links.stager_link import StagerLink
attach = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=wire.Attach)
attach = msgspec.structs.replace(attach, pid=os.getpid())
link = StagerLink(attach, Path(sys.argv[2]))
if os.fork() == 0:
    signal.pause()
print(link.pid, flush=True)
signal.pause()
"""


def test_a_killed_trainer_is_noticed_also_while_a_forked_child_of_it_lives(bench: Bench) -> None:
    import msgspec

    attach = msgspec.msgpack.encode(bench.attach(idle_s=0.05)).hex()
    command = [sys.executable, "-c", _TRAINER, attach, str(bench.directory / "stager.log")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as trainer:
        try:
            assert trainer.stdout is not None
            stager = int(trainer.stdout.readline())
            assert runs(stager)
            trainer.kill()
            wait_until(lambda: not runs(stager), "the stager stayed")
        finally:
            os.killpg(trainer.pid, signal.SIGKILL)


def test_who_waits_in_a_forked_child_is_refused_also_while_a_thread_of_its_parent_reads(
    bench: Bench,
) -> None:
    link = bench.start()
    save = stage(link, 1)
    assert save is not None
    reading = threading.Thread(target=suppressed(link.wait_until, lambda: False, None))
    reading.start()
    wait_until(lambda: link._reader == reading.ident, "somebody who reads")
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            save.wait()
        except Refused:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    kill(link.pid)
    reading.join()


def test_a_forked_child_holds_nothing_of_the_staging_memory(bench: Bench) -> None:
    """A loader's workers outlive a stager, and would keep what may be half of a host's memory."""
    link = bench.start()
    assert stage(link, 1) is not None
    child = os.fork()
    if child == 0:
        maps = Path("/proc/self/maps").read_text()
        os._exit(1 if "ckpt-arena" in maps else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert stage(link, 2) is not None, "its parent goes on"


# --------------------------------------------------------------------------- prepared meanwhile


@contextmanager
def preparing(link: StagerLink, half_bytes: int) -> Iterator[Future[None]]:
    """On a thread of its own, by a stager that is stopped, until the end at the latest."""
    os.kill(link.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(link.prepare, half_bytes)
        try:
            wait_until(lambda: link._prepared is None, "the order")
            yield future
        finally:
            if runs(link.pid):
                os.kill(link.pid, signal.SIGCONT)


def test_a_save_needs_no_more_than_its_own_half_of_what_is_prepared(bench: Bench) -> None:
    link = bench.start()
    with preparing(link, 8 * MiB) as future:
        assert link.ask_half(1, "run", 1, 3 * MiB, "wait") is None
        os.kill(link.pid, signal.SIGCONT)
        granted = link.wait_half(1)
        assert granted is not None
        assert len(granted[0].memory) >= 3 * MiB
        future.result(60)
    link.drop(1)
    early = link.ask_half(2, "run", 2, 8 * MiB, "wait")
    assert early is not None
    assert len(early.memory) >= 8 * MiB


def test_what_is_about_to_be_replaced_is_not_written_ahead_of_its_grant(bench: Bench) -> None:
    """A device may be copying into it when its pages are unlocked."""
    link = bench.start()
    link.prepare(MiB)
    with preparing(link, 20 * MiB) as future:
        assert link.ask_half(1, "run", 1, MiB, "wait") is None
        os.kill(link.pid, signal.SIGCONT)
        granted = link.wait_half(1)
        assert granted is not None
        assert len(granted[0].memory) >= 20 * MiB
        future.result(60)


@pytest.mark.parametrize(("cap", "halves"), [(16 * MiB, 1), (64 * MiB, 2)])
def test_memory_that_is_large_enough_stays_when_it_is_prepared_again(
    bench: Bench, cap: int, halves: int
) -> None:
    link = bench.start(arena_bytes_max=cap)
    link.prepare(10 * MiB)
    first = link._halves.all()
    assert len(first) == halves
    for size in (10 * MiB, MiB, 9 * MiB):
        link.prepare(size)
    assert all(map(operator.is_, link._halves.all(), first))
    assert link.ask_half(1, "run", 1, 10 * MiB, "wait") in first


def test_a_prepared_state_may_grow(bench: Bench) -> None:
    link = bench.start()
    for size in (MiB, 9 * MiB, 20 * MiB):
        link.prepare(size)
        assert [len(half.memory) >= size for half in link._halves.all()] == [True, True]
        early = link.ask_half(size, "run", 1, size, "wait")
        assert early is not None
        granted = link.wait_half(size)
        assert granted is not None
        assert granted[0] is early
        link.drop(size)


def test_a_save_under_way_keeps_its_memory_while_more_is_prepared(bench: Bench) -> None:
    link = bench.start()
    link.ask_half(1, "run", 1, MiB, "wait")
    granted = link.wait_half(1)
    assert granted is not None
    link.prepare(9 * MiB)
    held, other = sorted(link._halves.all(), key=lambda half: len(half.memory))
    assert held is granted[0]
    assert len(other.memory) >= 9 * MiB


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_who_prepares_hears_of_the_end(bench: Bench, ending: str) -> None:
    link = bench.start()
    with preparing(link, 8 * MiB) as future:
        if ending == "close":
            link.close()
        else:
            kill(link.pid)
        with pytest.raises(Aborted):
            future.result(60)


def test_a_parked_stager_prepares_nothing_until_it_is_attached_again(bench: Bench) -> None:
    link = bench.start(idle_s=60)
    assert link.park()
    with pytest.raises(Aborted, match="closed before"):
        link.prepare(MiB)
    assert link.attach_again()
    link.prepare(MiB)
    assert link.ask_half(1, "run", 1, MiB, "wait") is not None
