"""An identity names one process of this host, for all time."""

from __future__ import annotations

import os
import subprocess
import sys

from ckpt.aio.process_identity import has_ended, own_identity, pid_of, process_state

SAY = """
import os
from ckpt.aio.process_identity import own_identity
os.write(1, own_identity().encode())
input()
"""


def test_it_is_known_to_run_and_to_have_ended_also_as_a_zombie() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    identity = os.read(other.stdout.fileno(), 200).decode()
    assert (pid_of(identity), has_ended(identity)) == (other.pid, False)
    other.stdin.close()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert (pid_of(identity), has_ended(identity), process_state(other.pid)) == (None, True, "")
    other.wait()
    other.stdout.close()
    assert (pid_of(identity), has_ended(identity)) == (None, True)


def test_a_later_process_of_the_same_id_is_another() -> None:
    pid, start, namespace = own_identity().split()
    before = f"{pid} {int(start) - 1} {namespace}"
    assert (pid_of(before), has_ended(before)) == (None, True)
    assert (pid_of(own_identity()), has_ended(own_identity())) == (os.getpid(), False)


def test_nothing_is_claimed_of_another_container_nor_of_what_is_no_identity() -> None:
    assert not has_ended("4194304 77 pid:[1]")
    # As an earlier version wrote it.
    assert not has_ended("4194304 77")
    assert pid_of(" ".join(own_identity().split()[:2])) == os.getpid()
    for text in ("", "x y z", "² 1 pid:[1]", "\N{REPLACEMENT CHARACTER}"):
        assert (pid_of(text), has_ended(text)) == (None, False), text
