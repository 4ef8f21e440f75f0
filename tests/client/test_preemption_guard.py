"""A guard in its process: signals that it notes and passes on, what it refuses, what it logs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import Refused
from ckpt.base.system_errors import Scarce
from ckpt_client.default import process_store
from ckpt_client.url import LocalUrl
from tests.client.clikit import run
from tests.no_threads import SAYS, no_threads
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ckpt.Store]:
    directory = tmp_path_factory.mktemp("guard") / "cluster"
    with ckpt.open(f"ckpt+local://{directory}?targets=3&code=2+1") as opened:
        yield opened
    assert run("local", "stop", str(directory), environ=dict(os.environ)).code == 0


@pytest.fixture
def before() -> Iterator[list[int]]:
    """Signals that a handler of the script's own has got."""
    got: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGUSR1, old)


def test_a_handler_that_was_there_before_is_called_too(
    store: ckpt.Store, before: list[int]
) -> None:
    with store.preemption("chained", rank=0, world_size=1) as guard:
        assert guard.should_save(3) is False
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: guard.preempted, "it has heard")
        assert before == [signal.SIGUSR1]
        wait_until(lambda: guard.should_save(4), "a rank alone asks nobody")
        assert (guard.step, guard.fits) == (4, None)
        left_s = guard.left_s
        assert left_s is not None
        assert 0 < left_s <= 30


def test_behind_a_guard_signals_do_again_what_they_did(
    store: ckpt.Store, before: list[int]
) -> None:
    term = signal.getsignal(signal.SIGTERM)
    with store.preemption("again", rank=0, world_size=1) as guard:
        assert signal.getsignal(signal.SIGTERM) != term
    assert signal.getsignal(signal.SIGTERM) == term
    os.kill(os.getpid(), signal.SIGUSR1)
    assert before == [signal.SIGUSR1]
    assert not guard.preempted
    with store.preemption("again", rank=0, world_size=1):
        """The same run may have another one now."""


def test_a_handler_that_was_put_over_it_stays_and_still_reaches_the_one_before(
    store: ckpt.Store, before: list[int]
) -> None:
    with store.preemption("over", rank=0, world_size=1):
        ours = signal.getsignal(signal.SIGUSR1)
        assert callable(ours)
        over = signal.signal(signal.SIGUSR1, lambda number, frame: ours(number, frame))
        assert over is ours
    os.kill(os.getpid(), signal.SIGUSR1)
    assert before == [signal.SIGUSR1]


def test_a_forked_child_passes_over_what_is_for_its_parent_and_is_ended_by_a_sigterm(
    store: ckpt.Store,
) -> None:
    # Other tests of this worker may have left a handler that raises.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with store.preemption("forked", rank=0, world_size=1) as guard:
        ready, say = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(say, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)  # Whatever a handler raised: the child is no second pytest.
        assert os.read(ready, 1) == b"x"
        os.kill(child, signal.SIGUSR1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert not guard.preempted
        for descriptor in (ready, say):
            os.close(descriptor)
    signal.signal(signal.SIGTERM, before)


def test_what_cannot_be_watched_is_refused(store: ckpt.Store) -> None:
    for signals in (("SIGKILL",), ("TERM",), ("SIGNED",)):
        with pytest.raises(Refused, match=signals[0]):
            store.preemption("refused", signals=signals, rank=0, world_size=1)
    for grace_s in (0.0, -1.0, float("inf")):
        with pytest.raises(Refused, match="grace_s"):
            store.preemption("refused", grace_s=grace_s, rank=0, world_size=1)
    with pytest.raises(Refused, match=r"its guards meet as .* a shorter name"):
        store.preemption("r" * 249, rank=0, world_size=1)
    with (
        store.preemption("refused", rank=0, world_size=1),
        pytest.raises(Refused, match="has a preemption guard"),
    ):
        store.preemption("refused", rank=0, world_size=1)


def test_a_guard_is_made_in_the_main_thread(store: ckpt.Store) -> None:
    term, errors = signal.getsignal(signal.SIGTERM), []

    def make() -> None:
        try:
            store.preemption("thread", rank=0, world_size=1)
        except Refused as error:
            errors.append(str(error))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
    assert signal.getsignal(signal.SIGTERM) == term


def test_a_rank_without_a_guard_is_named_and_holds_up_nobody(
    store: ckpt.Store, before: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with store.preemption("missing", rank=0, world_size=2) as guard:
        assert guard.should_save(1) is False
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: "1 of them have no guard (rank 1)" in caplog.text, "it says so")
        assert guard.should_save(2) is False
        assert before == [signal.SIGUSR1]


def test_a_rank_that_saves_alone_for_all_may_have_a_guard_as_one_of_them(tmp_path: Path) -> None:
    url = f"ckpt+local://{tmp_path}/c?targets=3&code=2+1"
    with (
        ckpt.open(url, launch="job") as opened,
        opened.preemption("alone", rank=0, world_size=2),
    ):
        commit = opened.save("alone", 1, {"a": 1}, rank=0, world_size=1).wait(60.0)
        assert commit.world_size == 1
        assert run("ls", environ={"CKPT_STORE": url}).out.count("alone") == 1
    assert run("local", "stop", f"{tmp_path}/c", environ=dict(os.environ)).code == 0


def test_the_store_of_the_environment_has_guards_as_well(
    store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store._url, LocalUrl)
    monkeypatch.setenv("CKPT_STORE", f"ckpt+local://{store._url.directory}")
    try:
        with ckpt.preemption("default", grace_s=9.0, rank=0, world_size=1) as guard:
            assert (guard.should_save(1), guard.left_s, guard.grace_s) == (False, None, 9.0)
    finally:
        process_store().close()


def test_a_closed_store_ends_its_guards(tmp_path: Path) -> None:
    term = signal.getsignal(signal.SIGTERM)
    url = f"ckpt+local://{tmp_path}/c?targets=3&code=2+1"
    opened = ckpt.open(url)
    opened.preemption("closed", rank=0, world_size=1)
    opened.close()
    assert signal.getsignal(signal.SIGTERM) == term
    assert run("local", "stop", f"{tmp_path}/c", environ=dict(os.environ)).code == 0


def test_a_guard_that_gets_no_thread_leaves_signals_as_they_were(store: ckpt.Store) -> None:
    term = signal.getsignal(signal.SIGTERM)
    with store.preemption("scarce", rank=0, world_size=1):
        assert signal.getsignal(signal.SIGTERM) != term  # And the store's own threads are there.
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        store.preemption("scarce", rank=0, world_size=1)
    assert signal.getsignal(signal.SIGTERM) == term
    with store.preemption("scarce", rank=0, world_size=1) as guard:
        assert not guard.preempted
