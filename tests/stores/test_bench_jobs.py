"""ckptbench drains into a real S3 server and fetches from there; what stands in its way is named by
message and exit code, and the bucket is left empty."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ckpt.base.errors import CkptError, NotFound, Unauthorized, Unavailable
from ckpt.objects.fsspec_sink import FsspecSink
from tests.stores.gateway import S3, free_port
from tests.stores.proxy import Fault, Proxy, Request

JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs"
SMALL = {"numjobs": "2", "loops": "1", "warmups": "0", "code": "2+1", "targets": "4"}
FEWER_LOST = ("kill:targets=2", "kill:targets=1")
TIMEOUT_S = 300.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the tier's targets lie."""
    made = tmp_path / "tier"
    made.mkdir()
    return made


def ckptbench(
    job: str, durable: str, place: Path, s3: S3, *flags: str, size: str = "4Mi"
) -> subprocess.CompletedProcess[str]:
    """The job file as a user runs it, with less of everything."""
    text = (JOBS / job).read_text().replace(*FEWER_LOST)
    for word, value in {**SMALL, "size": size}.items():
        text = re.sub(rf"^{word}=.*$", f"{word}={value}", text, flags=re.MULTILINE)
    small = place.parent / job
    small.write_text(text)
    where = {"CKPTBENCH_DIR": str(place), "CKPTBENCH_DURABLE": durable}
    return subprocess.run(
        [sys.executable, "-m", "ckptbench.cli", str(small), *flags],
        env={**os.environ, **s3.environment, **where},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_nothing_left(s3: S3, bucket: str) -> None:
    sink = FsspecSink(f"s3://{bucket}", s3.fsspec_options)
    assert list(sink.list("")) == []
    assert sink.pending_uploads("") == []


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


@pytest.mark.parametrize("job", ["drain.fio", "fetch.fio"])
@pytest.mark.parametrize(
    ("harm", "error", "text"),
    [
        ("bucket", NotFound, "there is no such bucket; create it, or see the store's URL"),
        ("secret", Unauthorized, "SignatureDoesNotMatch; see the store's credentials"),
        ("down", Unavailable, "see whether the store answers"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_before_anything_is_started(
    s3: S3, bucket: str, place: Path, job: str, harm: str, error: type[CkptError], text: str
) -> None:
    reached = {"secret": S3(s3.port, s3.access_key, "wrong"), "down": s3.at(free_port())}
    durable = f"s3://{'nowhere' if harm == 'bucket' else bucket}/bench"
    ran = ckptbench(job, durable, place, reached.get(harm, s3))
    assert (ran.returncode, ran.stdout) == (error.exit_code, "")
    assert ran.stderr.startswith("ckptbench: ")
    assert len(ran.stderr.splitlines()) == 1, "no traceback"
    assert text in ran.stderr
    assert list(place.iterdir()) == []
    assert_nothing_left(s3, bucket)


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


def test_a_drain_that_fails_in_the_middle_is_an_error_and_leaves_no_part(
    s3: S3, bucket: str, place: Path
) -> None:
    proxy = Proxy(s3.port)

    def decide(request: Request) -> Fault:
        return Fault.FORBIDDEN if "partNumber" in request.path else Fault.NONE

    proxy.decide = decide
    try:
        # Larger than one part.
        large = ("--tensor_size=32Mi", "--verify=0")
        reached = s3.at(proxy.port)
        ran = ckptbench("drain.fio", f"s3://{bucket}/bench", place, reached, *large, size="32Mi")
    finally:
        proxy.close()
    assert any(fault is Fault.FORBIDDEN for _, fault in proxy.log), "parts were under way"
    assert ran.returncode == Unavailable.exit_code, ran.stderr
    for text in ("cannot be drained", "AccessDenied", "see the store's credentials"):
        assert text in ran.stdout
    assert_nothing_left(s3, bucket)
