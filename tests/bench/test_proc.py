"""What the kernel says of real processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from ckpt.base.units import MiB
from ckptbench import proc
from ckptbench.bench_target import read_observed
from ckptbench.probes import PIECE_BYTES
from ckptbench.raw_disk import write_file, write_rate
from ckptbench.roofline import run_probes


def test_cpu_time_of_another_process_grows_with_its_work() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "sum(range(3_000_000)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert 0.005 < proc.cpu_s(worker.pid) < 60
        assert max(proc.thread_cpu_s(worker.pid).values()) > 0.005
        assert proc.resident_bytes(worker.pid) > MiB
        worker.communicate(b"\n")
    assert proc.cpu_s(worker.pid) == 0.0


def test_private_memory_leaves_the_named_mapping_out() -> None:
    name = "ckptbench-test"
    descriptor = os.memfd_create(name)
    os.truncate(descriptor, 32 * MiB)
    with mmap.mmap(descriptor, 32 * MiB) as memory:
        memory.write(b"x" * 32 * MiB)
        everything = proc.private_bytes(os.getpid(), "no such name")
        assert everything - proc.private_bytes(os.getpid(), name) >= 24 * MiB
    os.close(descriptor)


def test_device_writes_are_counted_for_the_process_that_made_them(tmp_path: Path) -> None:
    before = proc.device_bytes(os.getpid())
    write_file(tmp_path / "file", 4 * MiB)
    proc.drop_cached([tmp_path / "file", tmp_path / "gone"])
    written = proc.device_bytes(os.getpid()).written - before.written
    # 0 on tmpfs; elsewhere some pages of metadata come along.
    assert written == 0 or 4 * MiB <= written < 5 * MiB
    assert (tmp_path / "file").stat().st_size == 4 * MiB


def test_raw_writers_leave_nothing_behind(tmp_path: Path) -> None:
    rate = write_rate(tmp_path, 8 * MiB, 2, MiB)
    assert rate.gb_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_probes_say_how_many_bytes_they_moved() -> None:
    rounds = run_probes([["crc", str(PIECE_BYTES)], ["touch", str(MiB)]])
    assert [len(one) for one in rounds] == [5, 1]
    assert rounds[0][0].bytes == 512 * MiB
    assert rounds[1][0].bytes == MiB
    assert rounds[0][0].cost > 0


def test_a_probe_of_parity_moves_a_whole_stripe_of_any_code() -> None:
    """Of 8+2 it is larger than the arena of `--quick`."""
    (rounds,) = run_probes([["ec", "8+2", str(MiB), str(MiB)]])
    assert {one.bytes for one in rounds} == {512 * MiB}


def test_observed_seals_are_read_in_order(tmp_path: Path) -> None:
    log = tmp_path / "observed"
    assert read_observed(log) == []
    log.write_text("10 2\n20 1\n")
    assert read_observed(log) == [(10, 2), (20, 1)]
