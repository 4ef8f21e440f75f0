"""A load in a process that may open hardly anything more, as a training whose loaders of data hold
all that `ulimit -n` allows.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.aio.descriptors import RAISED_MAX
from ckpt.aio.secret import make_secret
from ckpt.base.system_errors import Scarce
from ckpt.format.checksum import xxh3_128
from ckpt.native.isal import find_isal
from ckpt.native.libcrypto import find_libcrypto
from ckpt.native.library import find_library
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions
from ckpt_client.fs.sender import FileSender
from ckpt_client.fs.spool import Spool
from ckpt_client.locate import READY_NAME, Locator
from tests.client.clikit import run
from tests.client.test_stager_process import Bench
from tests.no_descriptors import no_descriptors

LOADS = """
import os, resource, sys
import ckpt

def opened():
    return sorted(os.listdir("/proc/self/fd"))

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
with ckpt.open(sys.argv[1]) as store:
    assert len(store.load("r")["a"]) == 1 << 16
    before = opened()
    for left in (1, 5, 12, 15):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + left, hard))
        try:
            with store.resolve("r", 1, timeout_s=1.0) as found:
                found.load()
        except ckpt.Unavailable as error:
            assert "ulimit -n" in str(error), error
            assert "ckpt status" not in str(error), error
        else:
            assert left > 10, "so few are enough"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert opened() == before, f"with {left} left something stays open"
    assert len(store.load("r")["a"]) == 1 << 16
"""


def test_a_load_without_descriptors_blames_nobody_keeps_none_and_works_again(
    tmp_path: Path,
) -> None:
    url = f"ckpt+local://{tmp_path / 'few'}?targets=7&code=4+2"
    elsewhere = tmp_path / "runtime"
    elsewhere.mkdir(mode=0o700)
    try:
        with ckpt.open(url) as store:
            store.save("r", 1, {"a": np.arange(1 << 16)}).wait(60)
        # No stager's memory is found from there.
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(elsewhere)}
        command = [sys.executable, "-c", LOADS, url]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False, env=environ
        )
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
        assert "judge" not in ended.stderr
    finally:
        assert run("local", "stop", str(tmp_path / "few")).code == 0


def test_a_stager_may_open_what_the_system_allows_whatever_its_trainer_may(tmp_path: Path) -> None:
    """A cluster may have more targets than a trainer may have descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    with ExitStack() as stack:
        bench = Bench(tmp_path, stack)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed // 2, hard))
        try:
            pid = bench.start().pid
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == allowed


def payload_sender(_: Path) -> PayloadSender:
    return PayloadSender(SenderOptions(bytes(32), "few"))


def file_sender(directory: Path) -> FileSender:
    secret_file = directory / "secret"
    if not secret_file.exists():
        make_secret(secret_file)
    return FileSender(Locator("", "127.0.0.1:1"), secret_file, lambda _: None)


@pytest.mark.parametrize("make", [payload_sender, file_sender])
def test_who_cannot_begin_to_send_keeps_no_descriptor_and_no_thread(
    make: Callable[[Path], PayloadSender | FileSender], tmp_path: Path
) -> None:
    make(tmp_path).close()
    before, running = len(os.listdir("/proc/self/fd")), threading.active_count()
    for left in range(8):
        try:
            with no_descriptors(left):
                made = make(tmp_path)
        except Scarce:
            assert len(os.listdir("/proc/self/fd")) == before, left
            assert threading.active_count() == running, left
        else:
            made.close()
    assert made, "so many are enough"


def test_a_library_that_cannot_be_opened_now_is_not_missing() -> None:
    for find in (find_isal, find_library, find_libcrypto):
        with no_descriptors(), pytest.raises(Scarce, match=r"cannot be loaded: Too many.*"):
            find.__wrapped__()
        assert find.__wrapped__()


def test_a_written_file_that_cannot_be_mapped_says_so_and_keeps_its_length() -> None:
    """A second try took the room for the last stripe, which the first had added, for its bytes."""
    spool = Spool("run/step_1/model.pt")
    try:
        with os.fdopen(spool.duplicate(), "wb") as file:
            file.write(b"seven b")
        refused = r"cannot seal run/step_1/model.pt: Too many open files.*ulimit -n"
        with no_descriptors(), pytest.raises(Scarce, match=refused):
            spool.seal("model.pt")
        member, plan, memory = spool.seal("model.pt")
        assert (member.length, member.fingerprint) == (7, xxh3_128(b"seven b"))
        assert bytes(memory[:7]) == b"seven b"
        assert plan.payload_bytes <= len(memory)
    finally:
        spool.close()


def test_a_cluster_that_nobody_can_look_for_is_not_said_to_be_stopped(tmp_path: Path) -> None:
    (tmp_path / READY_NAME).write_text(
        '{"address": "127.0.0.1:7070", "pid": 1, "cluster": "c", "boot": "b"}'
    )
    with no_descriptors(), pytest.raises(Scarce, match=r"cannot read .*json: .*ulimit -n"):
        Locator(str(tmp_path), "").address()
    assert Locator(str(tmp_path), "").address() == "127.0.0.1:7070"
