"""ckptbench drains into a real S3 server and fetches from there, and leaves the bucket empty."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ckpt.base.errors import NotFound
from tests.stores.benchkit import TIMEOUT_S, assert_nothing_left, ckptbench
from tests.stores.gateway import S3

DRAINS = [["save", "drain"], ["save", "drain"]]


@pytest.mark.parametrize(
    ("job", "scheme", "kinds"),
    [
        ("drain.fio", "s3", DRAINS),
        ("drain.fio", "obstore+s3", DRAINS),
        ("fetch.fio", "s3", [["fetch"], ["load"]]),
    ],
)
def test_the_job_files_run_against_it(
    s3: S3, bucket: str, place: Path, tmp_path: Path, job: str, scheme: str, kinds: list[list[str]]
) -> None:
    found = tmp_path / "found.json"
    flags = ("--output-format=json", f"--output={found}")
    ran = ckptbench(job, f"{scheme}://{bucket}/bench", place, s3, *flags)
    assert ran.returncode == 0, ran.stderr
    found_jobs = [one["checkpoint"] for one in msgspec.json.decode(found.read_bytes())["jobs"]]
    assert [[phase["kind"] for phase in one["phases"]] for one in found_jobs] == kinds
    assert all(one["verified"] for one in found_jobs)
    assert_nothing_left(s3, bucket)
    assert list(place.iterdir()) == []


def test_an_offload_compares_with_the_plain_client_and_names_what_it_cannot_reach(
    s3: S3, bucket: str
) -> None:
    line = [sys.executable, "-m", "ckptbench.cli", "offload", "--size=64MiB", "--loops=1", "--json"]

    def offload(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*line, f"--to={url}"],
            env={**os.environ, **s3.environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    ran = offload(f"obstore+s3://{bucket}/bench")
    assert ran.returncode == 0, ran.stderr
    (only,) = msgspec.json.decode(ran.stdout)["rounds"]
    assert all(seconds > 0 for seconds in only.values())
    ran = offload("obstore+s3://nowhere/bench")
    assert (ran.returncode, ran.stdout) == (NotFound.exit_code, "")
    assert "there is no such bucket" in ran.stderr.splitlines()[-1]
