"""ckptbench drains into a real S3 server and fetches from there, and leaves the bucket empty."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.landing import in_turn
from tests.stores.benchkit import assert_nothing_left, ckptbench
from tests.stores.gateway import S3

DRAINS = [["save", "drain"], ["save", "drain"]]


@pytest.mark.parametrize(
    ("job", "scheme", "kinds"),
    in_turn(
        [
            ("drain.fio", "s3", DRAINS),
            ("drain.fio", "obstore+s3", DRAINS),
            ("fetch.fio", "s3", [["fetch"], ["load"]]),
            ("offload-s3.fio", "s3", [["save", "drain"], ["save"], ["load"], ["load"]]),
            ("aside.fio", "s3", [["save", "aside"]]),
        ],
        every=3,
    ),
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
