"""What a job's control group leaves of the memory: of both versions, its own and those above it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.base.units import GiB, MiB
from ckpt_client.control_group import GroupMemory, limited_groups

NONE = 0x7FFF_FFFF_FFFF_F000
"""What a group of version 1 says that has no limit."""
LOOK = """
import json
from ckpt_client.doctor.probes import memory
from ckpt_client.settings import checked_settings
settings = checked_settings(
    launch=None, replicas="abort", when_full="wait", unchanged="warn", references=True,
    arena_bytes_max=None, stager_idle_s=1.0, start_timeout_s=1.0, durable=None,
)
print(json.dumps([memory().free_bytes, memory().total_bytes, settings.arena_bytes_max]))
"""

MAKE = """
from ckpt.base.errors import NoSpace
from ckpt_client.stager.arena import make_half
try:
    make_half(400 << 20)
except NoSpace as error:
    print(error)
"""


def process(directory: Path, cgroup: str, mount: str) -> Path:
    """A /proc/PID that says so."""
    directory.mkdir()
    (directory / "cgroup").write_text(cgroup)
    (directory / "mountinfo").write_text(mount)
    return directory


def group_of_two(folder: Path, limit: str, used: int, file_pages: int) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\nactive_file {file_pages}\ninactive_file 0\n")


def group_of_one(folder: Path, limit: int, used: int, file_pages: int) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {file_pages}\n")


def test_a_jobs_group_below_the_hosts_root_counts_and_so_do_those_above_it(tmp_path: Path) -> None:
    """As Slurm and systemd make them; pages of files are given back, and are free."""
    mounted = tmp_path / "cgroup"
    group_of_two(mounted / "slurm", str(8 * GiB), 3 * GiB, GiB)
    group_of_two(mounted / "slurm/job_1", "max", 2 * GiB, 0)
    group_of_two(mounted / "slurm/job_1/step_0", str(GiB), GiB // 4, 0)
    found = limited_groups(
        process(
            tmp_path / "own",
            "0::/slurm/job_1/step_0\n",
            f"36 25 0:30 / {mounted} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
    )
    assert found == [GroupMemory(GiB, GiB // 4), GroupMemory(8 * GiB, 2 * GiB)]
    assert [group.free_bytes for group in found] == [3 * GiB // 4, 6 * GiB]


def test_a_group_of_version_1_counts_where_memory_is_counted(tmp_path: Path) -> None:
    """Beside a mounted version 2, which counts none."""
    one, two = tmp_path / "memory", tmp_path / "unified"
    group_of_one(one, NONE, 9 * GiB, 0)
    group_of_one(one / "job", 400 * MiB, 300 * MiB, 100 * MiB)
    (two / "job").mkdir(parents=True)
    found = limited_groups(
        process(
            tmp_path / "own",
            "5:cpu,cpuacct:/other\n4:memory:/job\n0::/job\n",
            f"35 31 0:32 / {one} rw,relatime - cgroup cgroup rw,memory\n"
            f"41 31 0:38 / {two} rw,relatime - cgroup2 cgroup2 rw\n"
            f"32 31 0:29 / {tmp_path} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n",
        )
    )
    assert found == [GroupMemory(400 * MiB, 200 * MiB), GroupMemory(NONE, 9 * GiB)]


def test_a_container_that_sees_its_group_as_the_root_finds_it(tmp_path: Path) -> None:
    """Its path is still the host's, and only that folder is mounted."""
    mounted = tmp_path / "memory"
    group_of_one(mounted, GiB, 0, 0)
    found = limited_groups(
        process(
            tmp_path / "own",
            "4:memory:/docker/c0ffee\n",
            f"35 31 0:32 /docker/c0ffee {mounted} ro - cgroup cgroup rw,memory\n",
        )
    )
    assert found == [GroupMemory(GiB, 0)]


def test_without_groups_nothing_limits(tmp_path: Path) -> None:
    assert limited_groups(tmp_path) == []
    assert (
        limited_groups(process(tmp_path / "own", "", "21 1 0:4 / /proc rw - proc proc rw\n")) == []
    )


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A real one of 300 MiB below this process's own; skips where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            made, limit = Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"
        elif not controllers:
            made, limit = Path(f"/sys/fs/cgroup{path}"), "memory.max"
        else:
            continue
        made /= f"ckpt-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / limit).write_text(str(300 * MiB))
            yield made
            return
        except OSError:
            continue
        finally:
            made.rmdir()
    pytest.skip("no control group can be made here")


def test_doctor_and_the_default_of_staging_memory_see_what_a_real_group_leaves(
    small_group: Path,
) -> None:
    free, total, staging = json.loads(run_in(small_group, LOOK))
    assert staging == 150 * MiB
    assert total == 300 * MiB
    assert 100 * MiB < free < 300 * MiB


def test_staging_memory_that_a_group_has_not_is_refused_before_the_kernel_kills(
    small_group: Path,
) -> None:
    said = run_in(small_group, MAKE)
    assert said.startswith("the job's control group has 2")
    assert "the arena needs 400 MiB; lower arena_bytes_max, or give the job more mem" in said


def run_in(group: Path, script: str) -> str:
    """What a process of the group prints."""
    joined = subprocess.run(
        ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
         sys.executable, "-P", "-c", script],
        capture_output=True, text=True,
    )  # fmt: skip
    assert joined.returncode == 0, joined.stderr
    return joined.stdout
