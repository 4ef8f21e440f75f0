"""Whoever compares what a thread may have changed lets the call return in which it is."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckpt_client.save.calls import let_return

ROUNDS = 150_000
"""Of a key derivation: some tenths of a second of C code without the GIL."""


@contextmanager
def running(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread that is in this call."""
    begins = threading.Event()

    def run() -> None:
        begins.set()
        act()

    thread = threading.Thread(target=run)
    thread.start()
    assert begins.wait(60)
    yield thread
    thread.join()


def test_a_call_that_computes_is_waited_for() -> None:
    """What a call writes is there when its thread goes on."""
    counted: list[int] = []

    def compute() -> None:
        for number in range(3):
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", ROUNDS)
            counted.append(number)
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", ROUNDS // 100)

    with running(compute) as thread:
        before = len(counted)
        let_return(thread, lambda: False)
        let_return(thread, lambda: False)
        assert len(counted) > before


def test_a_thread_that_sleeps_in_a_call_is_not_waited_for() -> None:
    may_end = threading.Event()
    with running(lambda: may_end.wait(60)) as thread:
        let_return(thread, lambda: False)
        assert thread.is_alive()
        may_end.set()


def test_a_thread_that_waits_for_the_comparison_is_not_waited_for() -> None:
    with running(lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10 * ROUNDS)) as thread:
        let_return(thread, lambda: True)
        assert thread.is_alive()


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    with running(lambda: None) as thread:
        thread.join()
        let_return(thread, lambda: False)
        assert not thread.is_alive()
